"""A run's size, memory, time and cost before it starts, and what to change when it does not fit."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from headstart.config import RunConfig, load_preset, preset_names, resolve
from headstart.errors import ConfigError
from headstart.planning.cluster import ONE, Cluster, Exchange, exchange, share_of
from headstart.planning.cost import Flops, count_flops, money, steps_for
from headstart.planning.devices import DEVICES, Device
from headstart.planning.duration import BATCH_WORK, Duration, predict_duration
from headstart.planning.load import Load, make_load
from headstart.planning.memory import Memory, predict_memory
from headstart.reports.formatting import format_duration
from headstart.training.compile import TAKES, will_compile

GIB = 2**30
MOST = 2**20  # texts in a batch; more is of no use
UNSAID = 1_000_000  # tokens that a plan is for when no budget is given


@dataclass(frozen=True)
class Fit:
    """Whether a run trains on a device, and how long it takes there."""

    device: str
    precision: str
    memory_gib: float  # of the device
    needs_gib: float
    fits: bool
    largest_batch: int  # texts; 0 = not even one
    hours: float
    cost: float | None
    compiled: bool  # its steps are


@dataclass(frozen=True)
class Plan:
    """All that is known of a run before it starts."""

    load: Load
    device: Device
    flops: Flops
    memory: Memory
    duration: Duration
    tokens: float  # to be read in all
    largest_batch: int
    advice: list[str]  # what to change when it does not fit
    price: float | None = None
    is_measured: bool = False  # the time rests on steps run on this machine
    cluster: Cluster = ONE
    step: Load | None = None  # the whole step, of which `load` is one process's share
    is_compiled: bool = False  # torch.compile is at work in training steps

    @property
    def fits(self) -> bool:
        """Whether the peak is within what the device has."""
        return self.memory.peak <= self.device.usable

    @property
    def seconds(self) -> float:
        """For all tokens, and for compiling where that is done."""
        return steps_for(self.step or self.load, self.tokens) * self.duration.seconds + self.compile_seconds

    @property
    def compile_seconds(self) -> float:
        """What compiling takes before the first step is done."""
        return TAKES if self.load.is_compiled else 0.0

    @property
    def cost(self) -> float | None:
        """In the money of the price, which is that of one device."""
        return money(self.seconds * self.cluster.count, self.price)

    @property
    def exchange(self) -> Exchange:
        """What each process sends in a step."""
        batch = sum(self.duration.parts.get(name, 0) for name in BATCH_WORK) / max(1, self.load.accumulate)
        return exchange(self.load, self.device, self.cluster, batch)

    @property
    def tokens_per_step(self) -> int:
        """Read by all processes together."""
        whole = self.step or self.load
        return whole.tokens * whole.accumulate

    def lines(self) -> list[str]:
        """The plan in two lines, for the start of a run."""
        among = "a batch" if self.cluster.count == 1 else "of a batch each"
        fits = f"fits, {self.largest_batch:,} texts {among} at most" if self.fits else "does not fit"
        cost = "" if self.cost is None else f", cost {self.cost:,.2f}"
        many = f" in each of {self.cluster.count} processes" if self.cluster.count > 1 else ""
        compiled = "compiled " if self.load.is_compiled else ""
        return [
            f"plan: {self.load.account.total:,} parameters, {human(self.flops.training)}FLOPs a token; peak memory "
            f"{self.memory.peak / GIB:.2f} GiB of {self.device.usable / GIB:.1f} on {self.device.name}{many} ({fits})",
            f"plan: {self.tokens_per_step:,} tokens a {compiled}step in about {format_duration(self.duration.seconds)}; "
            f"{human(self.tokens)}tokens in about {format_duration(self.seconds)}{cost}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: parameters, flops, memory, time, verdict."""
        account, load = self.load.account, self.load
        blocks = [{**asdict(block), "total": block.total} for block in account.blocks]
        cluster = {"cluster": self._cluster()} if self.cluster.count > 1 else {}
        return {
            "parameters": {"total": account.total, "blocks": blocks},
            "flops": {
                "forward_per_token": self.flops.forward,
                "backward_per_token": self.flops.backward,
                "training_per_token": self.flops.training,
                "parts_forward": asdict(self.flops),
                "step": self.flops.training * self.tokens_per_step,
            },
            "memory": {
                "peak_bytes": self.memory.peak,
                "moment": self.memory.moment,
                "parts": {part.name: part.bytes for part in self.memory.parts},
                "batch": load.batch,
                "length": load.length,
                "source_length": load.source_length,
                "precision": load.precision,
            },
            "time": {
                "seconds_per_step": self.duration.seconds,
                "tokens_per_step": self.tokens_per_step,
                "tokens_per_second": self.tokens_per_step / self.duration.seconds,
                "tokens": self.tokens,
                "hours": self.seconds / 3600,
                "cost": self.cost,
                "measured": self.is_measured,
                "compiled": self.is_compiled,
                "compile_seconds": self.compile_seconds,
                "parts": self.duration.parts,
            },
            "verdict": {
                "device": self.device.name,
                "fits": self.fits,
                "largest_batch": self.largest_batch,
                "advice": self.advice,
            },
            **cluster,
        }

    def _cluster(self) -> dict[str, Any]:
        found = self.exchange
        alone = predict_duration(self.step or self.load, self.device)
        faster = alone.seconds / self.duration.seconds
        return {
            **asdict(self.cluster),
            "processes": self.cluster.count,
            "link": self.device.link,
            "exchanged_bytes": found.bytes,
            "exchange_seconds": found.seconds,
            "exposed_seconds": found.exposed,
            "faster_than_one": faster,
            "efficiency": faster / self.cluster.count,
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
    price: float | None = None,
    seconds_per_step: float | None = None,
    cluster: Cluster = ONE,
    can_compile: bool | None = None,
) -> Plan:
    """The plan of a run on a device, or on each of a cluster; `batch` is of all its processes together.

    `tokens` is the text read once, `seconds_per_step` what was measured; `can_compile` is as the device's row says.
    """
    step = make_load(config, device.kind, precision_on(config, device), vocabulary, classes, batch, length)
    asked = tokens_asked(config, step, tokens, epochs)
    is_able = device.can_compile if can_compile is None else can_compile
    is_compiled = is_compiled_on(config, step, asked, is_able, cluster)
    step = step.compiled(device.can_compile) if is_compiled else step
    load = share_of(step, cluster)
    duration = predict_duration(load, device, cluster)
    if seconds_per_step is not None:
        duration = duration.scaled(seconds_per_step / duration.seconds)
    memory = predict_memory(load)
    return Plan(
        load=load,
        device=device,
        flops=count_flops(load),
        memory=memory,
        duration=duration,
        tokens=tokens_in(config, step, duration) if asked is None else asked,
        largest_batch=largest_batch(load, device),
        advice=[] if memory.peak <= device.usable else list(advise(config, load, device, step, cluster)),
        price=price,
        is_measured=seconds_per_step is not None,
        cluster=cluster,
        step=step,
        is_compiled=is_compiled,
    )


def is_compiled_on(
    config: RunConfig, step: Load, tokens: float | None, is_able: bool, cluster: Cluster
) -> bool:
    """Whether training will compile its steps where it `is_able`."""
    return will_compile(
        config.training,
        is_able=is_able,
        is_sharded=cluster.sharded,
        weights=step.account.total,
        num_forward=step.passes,
        tokens=tokens or 0.0,
    )


def precision_on(config: RunConfig, device: Device) -> str:
    """The precision that the settings mean on a device."""
    chosen = config.training.precision
    if chosen == "fast":
        return "bfloat16" if device.has_bfloat16 else "float32"
    return device.precision if chosen == "auto" else chosen


def tokens_asked(config: RunConfig, step: Load, tokens: float | None, epochs: float | None) -> float | None:
    """Tokens of the whole run: those given times the epochs, else the settings' own budget, else a million.

    None = as many as are read in the minutes of the settings.
    """
    training = config.training
    if tokens is not None:
        return tokens * (epochs or training.max_epochs or 1)
    if training.max_tokens is not None:
        return training.max_tokens
    if training.max_steps is not None:
        return training.max_steps * step.tokens * step.accumulate
    return None if training.max_minutes is not None else UNSAID * (epochs or 1)


def tokens_in(config: RunConfig, step: Load, duration: Duration) -> float:
    """Tokens that are read in the minutes of the settings, of which compiling takes its part; a step's at least."""
    assert config.training.max_minutes is not None
    seconds = 60 * config.training.max_minutes - (TAKES if step.is_compiled else 0)
    return max(1.0, seconds / duration.seconds) * step.tokens * step.accumulate


def largest_batch(load: Load, device: Device) -> int:
    """The most texts of this length in one batch that fit; 0 when not even one does."""

    def fits(batch: int) -> bool:
        return predict_memory(load.with_(batch=batch)).peak <= device.usable

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < MOST and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def advise(
    config: RunConfig, load: Load, device: Device, step: Load, cluster: Cluster = ONE
) -> Iterator[str]:
    """Changes that would each make the run fit on the device, the mildest first; `load` is a process's share of `step`."""

    def fits(changed: Load) -> bool:
        return predict_memory(changed).peak <= device.usable

    most = largest_batch(load.with_(accumulate=2), device)
    if 1 <= most < load.batch:
        rounds = -(-load.batch // most) * load.accumulate * cluster.count
        yield (
            f"batches of {most} texts, {rounds} to a step: --set training.tokens_per_batch={most * load.span}"
            f" --set training.gradient_accumulation_steps={rounds}"
        )
    if device.has_bfloat16 and load.precision == "float32" and fits(load.with_(precision="bfloat16")):
        yield "half-wide numbers: --set training.precision=bfloat16"
    shorter = load.length
    while shorter > 16 and not fits(load.with_length(shorter)):
        shorter //= 2
    if shorter < load.length and fits(load.with_length(shorter)):
        yield (
            f"shorter texts, as many: --set training.max_length={shorter}"
            f" --set training.tokens_per_batch={step.batch * load.with_length(shorter).span}"
        )
    if load.parts == 1 and may_be_sharded(config, load) and fits(load.with_(parts=8)):
        yield "a part of the model in each of 8 processes: --nproc 8 --set training.fsdp=true"
    smaller = smaller_preset(config, load, device)
    if smaller:
        yield f"a smaller model: --preset {smaller}"


def may_be_sharded(config: RunConfig, load: Load) -> bool:
    """Whether training takes `training.fsdp` with these settings."""
    training = config.training
    return not (load.source_length or training.compile or training.gradual_unfreezing_epochs is not None)


def smaller_preset(config: RunConfig, load: Load, device: Device) -> str:
    """The largest preset below this one that fits at its own batch, or nothing."""
    found = []
    for name in preset_names():
        if config.job not in load_preset(name):
            continue
        other = make_load(resolve(config.job, name), device.kind, load.precision)
        if bool(other.source_length) != bool(load.source_length):  # made for another kind of job
            continue
        if other.account.total < load.account.total and predict_memory(other).peak <= device.usable:
            found.append((other.account.total, name))
    return max(found)[1] if found else ""


def fits_everywhere(config: RunConfig, plan: Plan, **sizes: Any) -> list[Fit]:
    """The same run on every device of the table."""
    rows = []
    for device in DEVICES.values():
        step = make_load(config, device.kind, precision_on(config, device), **sizes)
        if is_compiled_on(config, step, plan.tokens, device.can_compile, plan.cluster):
            step = step.compiled(device.can_compile)
        load = share_of(step, plan.cluster)
        memory, duration = predict_memory(load), predict_duration(load, device, plan.cluster)
        compiling = TAKES if load.is_compiled else 0
        seconds = steps_for(step, plan.tokens) * duration.seconds + compiling
        rows.append(
            Fit(
                device=device.name,
                precision=load.precision,
                memory_gib=device.memory,
                needs_gib=memory.peak / GIB,
                fits=memory.peak <= device.usable,
                largest_batch=largest_batch(load, device),
                hours=seconds / 3600,
                cost=money(seconds * plan.cluster.count, plan.price),
                compiled=load.is_compiled,
            )
        )
    return rows


def refuse_if_too_large(plan: Plan, available_bytes: float) -> None:
    """Stop a run that would die for want of memory, with the plan's advice."""
    if plan.memory.peak <= available_bytes:
        return
    advice = "; or ".join(plan.advice) or "choose a smaller --preset, batch or length"
    raise ConfigError(
        f"this run needs about {plan.memory.peak / GIB:.1f} GiB, and {plan.device.name} has "
        f"{available_bytes / GIB:.1f} GiB free",
        hint=f"{advice}; or --ignore-memory-check to try all the same",
    )


def human(number: float) -> str:
    """A large number in few digits, with the letter of its size: "126 M"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g} "
