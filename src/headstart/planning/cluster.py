"""Many processes in one run: the share of each, and what they say to each other in a step.

Gradients are added up in a ring: each of g processes sends 2·(g − 1)/g of their bytes (half of that to gather or
to scatter alone), first over the links inside a machine, then over the network between machines, which the
processes of a machine share. The exchange runs beside the arithmetic: of copies, beside the way back of the step's
last batch, all but the last bucket; of a sharded model, beside every batch, all but one layer. What is longer counts.
"""

from dataclasses import dataclass

from headstart.planning.devices import Device
from headstart.planning.load import Load

BUCKET = 25 * 2**20  # bytes that DDP exchanges at a time
FULL = 4  # bytes of a float32
REACHED = 0.8  # share of a link's stated rate that an exchange reaches
LINK_DELAY, NETWORK_DELAY = 5e-6, 25e-6  # seconds for a message inside a machine, and between two


@dataclass(frozen=True)
class Cluster:
    """Machines that train together."""

    gpus: int = 1  # processes of each machine: one a GPU
    nodes: int = 1
    network: float = 100.0  # gigabits a second out of each machine
    sharded: bool = False

    @property
    def count(self) -> int:
        """Processes in all."""
        return self.gpus * self.nodes


ONE = Cluster()


@dataclass(frozen=True)
class Exchange:
    """What one process sends and receives in a step, and how long that takes."""

    bytes: float
    seconds: float  # if nothing else went on
    exposed: float  # beyond the arithmetic it runs beside


def share_of(load: Load, cluster: Cluster) -> Load:
    """What one process computes of a step: whole batches as long as each has one, else a slice of every batch."""
    count = cluster.count
    if load.accumulate >= count:
        shared = load.with_(accumulate=-(-load.accumulate // count))
    else:
        shared = load.with_(batch=-(-load.batch // count))
    return shared.with_(parts=count if cluster.sharded else 1)


def exchange(load: Load, device: Device, cluster: Cluster, batch_seconds: float) -> Exchange:
    """The exchange of one step of a process's share, whose batches take `batch_seconds` of arithmetic each."""
    if cluster.count == 1:
        return Exchange(0.0, 0.0, 0.0)
    matrices, rest = load.account.matrices, load.account.total - load.account.matrices
    if not cluster.sharded:
        size = FULL * load.account.total
        pieces = -(-size // BUCKET)
        seconds = 2 * _ring(size, device, cluster) + 2 * pieces * _delay(cluster)
        exposed = max(seconds - batch_seconds * 2 / 3, seconds / pieces)
        return Exchange(2 * size, seconds, exposed)
    layers = max(1, load.body.num_layers)
    size = 2 * load.low * matrices + FULL * rest + FULL * load.account.total
    once = _ring(size, device, cluster) + 3 * (layers + 1) * _delay(cluster)
    exposed = max(once - batch_seconds, once / layers)
    return Exchange(load.accumulate * size, load.accumulate * once, load.accumulate * exposed)


def _ring(size: float, device: Device, cluster: Cluster) -> float:
    """Seconds to gather or to scatter so many bytes: inside each machine, then between machines."""
    inside = size * (cluster.gpus - 1) / cluster.gpus / (1e9 * device.link * REACHED)
    between = size * (cluster.nodes - 1) / cluster.nodes / (1e9 * cluster.network / 8 * REACHED)
    return inside + between


def _delay(cluster: Cluster) -> float:
    return (cluster.gpus - 1) * LINK_DELAY + (cluster.nodes - 1) * NETWORK_DELAY
