"""A run's size, memory, time and cost before it starts, and what to change when it does not fit."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from headstart.config import RunConfig, load_preset, preset_names, resolve
from headstart.planning.communication import ONE_DEVICE, Cluster, predict_communication, share_of
from headstart.planning.devices import DEVICES, Device
from headstart.planning.flops import Flops, count_flops
from headstart.planning.memory import Memory, predict_memory
from headstart.planning.step_time import StepTime, predict_step_time
from headstart.planning.workload import Workload, make_workload
from headstart.reports.formatting import format_duration
from headstart.training.compile import COMPILE_SECONDS, will_compile

GIB = 2**30
MAX_BATCH = 2**20  # texts
DEFAULT_TOKENS = 1_000_000  # of the run, when no budget is given


def fits(workload: Workload, device: Device) -> bool:
    """Whether the peak is within what the device has."""
    return predict_memory(workload).peak <= device.usable_bytes


@dataclass(frozen=True)
class Plan:
    """All that is known of a run before it starts."""

    config: RunConfig
    device: Device
    step: Workload  # of all processes together
    workload: Workload  # of one process
    memory: Memory
    step_time: StepTime
    tokens: float  # of the whole run
    is_compiled: bool  # whether torch.compile is used in training steps
    cluster: Cluster = ONE_DEVICE
    price: float | None = None  # of one device for an hour
    is_measured: bool = False  # the time is that of steps on this machine
    devices: "list[Plan]" = field(default_factory=list)  # the same run on every device, when none was named
    note: str = ""  # of the preset

    @property
    def flops(self) -> Flops:
        """Operations for each token."""
        return count_flops(self.workload)

    @property
    def fits(self) -> bool:
        """Whether the peak is within what the device has."""
        return self.memory.peak <= self.device.usable_bytes

    @cached_property
    def largest_batch(self) -> int:
        """The most texts in one batch of one process; 0 when not even one fits."""
        return largest_batch(self.workload, self.device)

    @cached_property
    def advice(self) -> list[str]:
        """What to change when it does not fit."""
        return [] if self.fits else list(_advice(self))

    @property
    def compile_seconds(self) -> float:
        """The time that compiling takes before the first step is done."""
        return COMPILE_SECONDS if self.workload.is_compiled else 0.0

    @property
    def seconds(self) -> float:
        """For all tokens, and for compiling where that is done."""
        steps = self.tokens / self.step.tokens_per_step
        return steps * self.step_time.seconds + self.compile_seconds

    @property
    def cost(self) -> float | None:
        """In the currency of the price."""
        return None if self.price is None else self.seconds * self.cluster.count / 3600 * self.price

    def lines(self) -> list[str]:
        """The plan in two lines, for the start of a run."""
        batch = "a batch" if self.cluster.count == 1 else "of a batch each"
        verdict = f"fits, {self.largest_batch:,} texts {batch} at most" if self.fits else "does not fit"
        cost = "" if self.cost is None else f", cost {self.cost:,.2f}"
        processes = f" in each of {self.cluster.count} processes" if self.cluster.count > 1 else ""
        compiled = "compiled " if self.workload.is_compiled else ""
        return [
            f"plan: {self.step.parameters.total:,} parameters, {_short(self.flops.training)}FLOPs a token; peak memory "
            f"{self.memory.peak / GIB:.2f} GiB of {self.device.usable_bytes / GIB:.1f} on {self.device.name}{processes} "
            f"({verdict})",
            f"plan: {self.step.tokens_per_step:,} tokens a {compiled}step in about "
            f"{format_duration(self.step_time.seconds)}; {_short(self.tokens)}tokens in about "
            f"{format_duration(self.seconds)}{cost}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: parameters, FLOPs, memory, time, verdict."""
        workload, flops, time = self.workload, self.flops, self.step_time
        blocks = [{**asdict(block), "total": block.total} for block in workload.parameters.blocks]
        return {
            "parameters": {"total": workload.parameters.total, "blocks": blocks},
            "flops": {
                "forward_per_token": flops.forward,
                "backward_per_token": flops.backward,
                "training_per_token": flops.training,
                "parts_forward": asdict(flops),
                "step": flops.training * self.step.tokens_per_step,
            },
            "memory": {
                "peak_bytes": self.memory.peak,
                "moment": self.memory.moment,
                "parts": self.memory.parts,
                "batch": workload.batch_size,
                "length": workload.length,
                "source_length": workload.source_length,
                "precision": workload.precision,
            },
            "time": {
                "seconds_per_step": time.seconds,
                "tokens_per_step": self.step.tokens_per_step,
                "tokens_per_second": self.step.tokens_per_step / time.seconds,
                "tokens": self.tokens,
                "hours": self.seconds / 3600,
                "cost": self.cost,
                "measured": self.is_measured,
                "compiled": self.is_compiled,
                "compile_seconds": self.compile_seconds,
                "parts": time.parts,
            },
            "verdict": {
                "device": self.device.name,
                "fits": self.fits,
                "largest_batch": self.largest_batch,
                "advice": self.advice,
            },
            **({"cluster": self._cluster_dict()} if self.cluster.count > 1 else {}),
            "note": self.note,
            "devices": [plan._device_dict() for plan in self.devices],
        }

    def _cluster_dict(self) -> dict[str, Any]:
        batch_seconds = self.step_time.batch_seconds
        communication = predict_communication(self.workload, self.device, self.cluster, batch_seconds)
        speedup = predict_step_time(self.step, self.device).seconds / self.step_time.seconds
        return {
            **asdict(self.cluster),
            "processes": self.cluster.count,
            "link": self.device.link,
            "exchanged_bytes": communication.bytes,
            "exchange_seconds": communication.seconds,
            "exposed_seconds": communication.exposed,
            "faster_than_one": speedup,
            "efficiency": speedup / self.cluster.count,
        }

    def _device_dict(self) -> dict[str, Any]:
        return {
            "device": self.device.name,
            "precision": self.workload.precision,
            "memory_gib": self.device.memory_gib,
            "needs_gib": self.memory.peak / GIB,
            "fits": self.fits,
            "largest_batch": self.largest_batch,
            "hours": self.seconds / 3600,
            "cost": self.cost,
            "compiled": self.workload.is_compiled,
        }


def make_plan(
    config: RunConfig,
    device: Device,
    *,
    vocabulary: int | None = None,
    classes: int = 2,
    batch: int | None = None,
    length: int | None = None,
    tokens: float | None = None,
    epochs: float | None = None,
    total_tokens: float | None = None,
    price: float | None = None,
    seconds_per_step: float | None = None,
    cluster: Cluster = ONE_DEVICE,
    can_compile: bool | None = None,
) -> Plan:
    """The plan of a run on a device, or on each of a cluster; `batch` is of all its processes together.

    `tokens` are read once in each epoch, or `total_tokens` in all. `seconds_per_step` is a measured time. `can_compile`
    is by default that of the device.
    """
    precision = _precision(config, device)
    step = make_workload(config, device.kind, precision, vocabulary, classes, batch, length)
    if total_tokens is None:
        total_tokens = _total_tokens(config, step, tokens, epochs)
    is_able = device.can_compile if can_compile is None else can_compile
    is_compiled = (is_able or config.training.compile is True) and will_compile(
        config.training,
        is_able=is_able,
        is_sharded=cluster.sharded,
        weights=step.parameters.total,
        passes=step.num_forward,
        tokens=total_tokens or 0.0,
    )
    if is_compiled:  # compiled code computes every position; what else it changes is known for GPUs alone
        step = replace(step, last_layer_fraction=1.0, is_compiled=device.can_compile)
    workload = share_of(step, cluster)
    step_time = predict_step_time(workload, device, cluster)
    if seconds_per_step is not None:
        step_time = step_time.scaled(seconds_per_step / step_time.seconds)
    if total_tokens is None:  # as many as are read in the minutes of the settings; a step's at least
        assert config.training.max_minutes is not None
        seconds = 60 * config.training.max_minutes - (COMPILE_SECONDS if step.is_compiled else 0)
        total_tokens = max(1.0, seconds / step_time.seconds) * step.tokens_per_step
    return Plan(
        config=config,
        device=device,
        step=step,
        workload=workload,
        memory=predict_memory(workload),
        step_time=step_time,
        tokens=total_tokens,
        is_compiled=is_compiled,
        cluster=cluster,
        price=price,
        is_measured=seconds_per_step is not None,
    )


def plan_on_all_devices(plan: Plan, **sizes: Any) -> list[Plan]:
    """The same run on every device of the table."""
    shared: dict[str, Any] = {"total_tokens": plan.tokens, "price": plan.price, "cluster": plan.cluster}
    return [make_plan(plan.config, device, **shared, **sizes) for device in DEVICES.values()]


def _precision(config: RunConfig, device: Device) -> str:
    """The precision that the settings mean on a device."""
    precision = config.training.precision
    if precision == "bf16":
        return "bfloat16" if device.bfloat16 else "float32"
    return device.default_precision if precision == "auto" else precision


def _total_tokens(config: RunConfig, step: Workload, tokens: float | None, epochs: float | None) -> float | None:
    """Tokens of the whole run: those given times the epochs, else the settings' own budget; None for one in minutes."""
    training = config.training
    if tokens is not None:
        return tokens * (epochs or training.max_epochs or 1)
    if training.max_tokens is not None:
        return training.max_tokens
    if training.max_steps is not None:
        return training.max_steps * step.tokens_per_step
    return None if training.max_minutes is not None else DEFAULT_TOKENS * (epochs or 1)


def largest_batch(workload: Workload, device: Device) -> int:
    """The most texts of this length in one batch that fit; 0 when not even one does."""
    if not fits(replace(workload, batch_size=1), device):
        return 0
    low, high = 1, 2
    while high < MAX_BATCH and fits(replace(workload, batch_size=high), device):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(replace(workload, batch_size=middle), device) else (low, middle)
    return low


def _advice(plan: Plan) -> Iterator[str]:
    """Changes that would each make the run fit on the device, the mildest first."""
    workload, device, training = plan.workload, plan.device, plan.config.training
    most = largest_batch(replace(workload, accumulation_steps=2), device)
    if 1 <= most < workload.batch_size:
        batches = -(-workload.batch_size // most) * workload.accumulation_steps * plan.cluster.count
        yield (
            f"batches of {most} texts, {batches} to a step: --set training.tokens_per_batch="
            f"{most * workload.tokens_per_example} --set training.gradient_accumulation_steps={batches}"
        )
    if device.bfloat16 and workload.precision == "float32" and fits(replace(workload, precision="bfloat16"), device):
        yield "bfloat16 numbers: --set training.precision=bfloat16"
    shorter = workload.length
    while shorter > 16 and not fits(workload.with_length(shorter), device):
        shorter //= 2
    if shorter < workload.length and fits(workload.with_length(shorter), device):
        tokens = plan.step.batch_size * workload.with_length(shorter).tokens_per_example
        yield (f"as many, shorter texts: --set training.max_length={shorter} --set training.tokens_per_batch={tokens}")
    can_shard = not (workload.source_length or training.compile or training.gradual_unfreezing_epochs is not None)
    if workload.num_shards == 1 and can_shard and fits(replace(workload, num_shards=8), device):
        yield "a part of the model in each of 8 processes: --nproc 8 --set training.fsdp=true"
    if smaller := _smaller_preset(plan):
        yield f"a smaller model: --preset {smaller}"


def _smaller_preset(plan: Plan) -> str:
    """The largest preset below this one that fits with its own batch size, or nothing."""
    found = []
    for name in preset_names():
        if plan.config.job not in load_preset(name):
            continue
        other = make_workload(resolve(plan.config.job, name), plan.device.kind, plan.workload.precision)
        is_same_job = bool(other.source_length) == bool(plan.workload.source_length)
        is_smaller = other.parameters.total < plan.workload.parameters.total
        if is_same_job and is_smaller and fits(other, plan.device):
            found.append((other.parameters.total, name))
    return max(found)[1] if found else ""


def _short(number: float) -> str:
    """A large number in three digits, with the letter of its size: "126 M"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g} "
