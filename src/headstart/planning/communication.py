"""Several processes in one run: the share of each, and what they send to each other in a step.

Gradients are all-reduced in a ring: each of g processes sends 2·(g − 1)/g of their bytes (half of that for a gather or a
scatter alone), first over the links inside a machine, then over the network, which the processes of a machine share.
Communication overlaps with computation: of DDP, with the backward pass of the step's last batch, except for the last
bucket; of FSDP, with every batch, except for one layer. The longer of the two counts.
"""

from dataclasses import dataclass, replace

from headstart.planning.workload import FLOAT32, Device, Workload

BUCKET = 25 * 2**20  # bytes that DDP reduces at a time
BANDWIDTH_SHARE = 0.8  # of a link's stated bandwidth that a collective reaches
LINK_LATENCY, NETWORK_LATENCY = 5e-6, 25e-6  # seconds for a message inside a machine, and between two


@dataclass(frozen=True)
class Cluster:
    """Machines that train together."""

    gpus: int = 1  # processes of each machine: one for each GPU
    nodes: int = 1
    network: float = 100.0  # gigabits per second out of each machine
    sharded: bool = False

    @property
    def count(self) -> int:
        """Processes in all."""
        return self.gpus * self.nodes

    @property
    def latency(self) -> float:
        """Seconds for a message around the ring."""
        return (self.gpus - 1) * LINK_LATENCY + (self.nodes - 1) * NETWORK_LATENCY

    def ring_seconds(self, size: float, device: Device) -> float:
        """Seconds to gather or to scatter so many bytes: inside each machine, then between machines."""
        inside = size * (self.gpus - 1) / self.gpus / (1e9 * link_gbs(device) * BANDWIDTH_SHARE)
        between = size * (self.nodes - 1) / self.nodes / (1e9 * self.network / 8 * BANDWIDTH_SHARE)
        return inside + between


def link_gbs(device: Device) -> float:
    """GB/s each way between two such devices of one machine."""
    if device.kind == "cpu":
        return 5.0  # gloo copies through the machine's own memory
    return device.link_gbs or (25.0 if device.bfloat16 else 12.0)


def divide_device(device: Device, count: int) -> Device:
    """The share of a device that each of `count` processes on it has."""
    shared = ("memory_gib", "float32_tflops", "half_tflops", "bandwidth_gbs")
    return replace(device, **{name: getattr(device, name) / count for name in shared})


@dataclass(frozen=True)
class Communication:
    """What one process sends and receives in a step, and how long that takes."""

    bytes: float
    seconds: float  # without computation at the same time
    exposed: float  # seconds that do not overlap with computation


def share_of(workload: Workload, cluster: Cluster) -> Workload:
    """What one process computes of a step: whole batches while each has one, else a slice of every batch."""
    count = cluster.count
    shards = count if cluster.sharded else 1
    if workload.accumulation_steps >= count:
        return replace(workload, accumulation_steps=-(-workload.accumulation_steps // count), num_shards=shards)
    return replace(workload, batch_size=-(-workload.batch_size // count), num_shards=shards)


def predict_communication(workload: Workload, device: Device, cluster: Cluster, batch_seconds: float) -> Communication:
    """The communication in one step of a process's share, whose batches take `batch_seconds` of computation each."""
    if cluster.count == 1:
        return Communication(0.0, 0.0, 0.0)
    total = workload.parameters.total
    if not cluster.sharded:
        size: float = FLOAT32 * total
        buckets = -(-size // BUCKET)
        seconds = 2 * cluster.ring_seconds(size, device) + 2 * buckets * cluster.latency
        exposed = max(seconds - batch_seconds * 2 / 3, seconds / buckets)
        return Communication(2 * size, seconds, exposed)
    layers, matrices = max(1, workload.model.num_layers), workload.parameters.matrices
    size = 2 * workload.matmul_bytes * matrices + FLOAT32 * (total - matrices) + FLOAT32 * total
    seconds = cluster.ring_seconds(size, device) + 3 * (layers + 1) * cluster.latency
    exposed = max(seconds - batch_seconds, seconds / layers)
    return Communication(*(workload.accumulation_steps * each for each in (size, seconds, exposed)))


def sharding_bytes(workload: Workload) -> tuple[float, float]:
    """Bytes of gathered weights and of gradients before they are scattered.

    Weights outside of layers stay gathered during a batch; of the layers, the current one and the next.
    """
    parameters, low = workload.parameters, workload.matmul_bytes
    layer = parameters.matrices / max(1, workload.model.num_layers)
    rest = FLOAT32 * (parameters.total - parameters.matrices)
    return rest + 2 * low * layer, rest + (low + FLOAT32) * layer
