"""A plan for a run, on a named device or on this machine; measured where asked."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.config import RunConfig, load_preset, resolve
from headstart.errors import ConfigError
from headstart.objectives import OBJECTIVES
from headstart.planning.cluster import Cluster
from headstart.planning.devices import Device, cpu_like, find_device
from headstart.planning.plan import Fit, Plan, fits_everywhere, make_plan, refuse_if_too_large
from headstart.training.callbacks import Event, Note
from headstart.training.compile import can_compile
from headstart.training.runtime import Runtime
from headstart.workflows.finetune_defaults import REFERENCE, finetune_defaults, has_own_budget

GIB = 2**30


@dataclass(frozen=True)
class Planned:
    """A plan, and how the same run fits on every device when none was named."""

    plan: Plan
    devices: list[Fit]
    note: str = ""  # what the preset says of itself

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**self.plan.to_dict(), "note": self.note, "devices": [vars(fit) for fit in self.devices]}


def plan(
    preset: str = "tiny",
    *,
    gpu: str | None = None,
    settings: Mapping[str, Any] | None = None,
    measure: bool = False,
    gpus: int = 1,
    nodes: int = 1,
    network: float = 100.0,
    **asked: Any,
) -> Planned:
    """The plan of a run with this preset and these settings; `asked` goes to `make_plan`."""
    config = plan_config(preset, settings or {})
    device = this_machine() if gpu is None else find_device(gpu)
    cluster = Cluster(gpus, nodes, network, config.training.fsdp and gpus * nodes > 1)
    if measure:
        check_measurable(device, cluster)
    is_here = measure or gpu is None
    asked |= {"cluster": cluster, "can_compile": can_compile(device.kind) if is_here else None}
    first = make_plan(config, device, **asked)
    if cluster.sharded and first.load.source_length:
        raise no_parts()
    if measure:
        first = make_plan(config, device, **asked, seconds_per_step=_measured(config, first))
    sizes = {name: asked.get(name) for name in ("vocabulary", "batch", "length")}
    sizes["classes"] = asked.get("classes", 2)
    note = load_preset(preset).get("note", "")
    return Planned(first, [] if gpu else fits_everywhere(config, first, **sizes), note)


def check_measurable(device: Device, cluster: Cluster) -> None:
    """Refuse to measure what is not here."""
    if cluster.count > 1:
        raise ConfigError(
            "--calibrate runs on one device", hint="leave out --gpus and --nodes, or --calibrate"
        )
    if device.name != this_machine().name:
        raise ConfigError(
            f"--calibrate runs on this machine, and {device.name} is another",
            hint="leave out --gpu or --calibrate",
        )


def no_parts() -> ConfigError:
    """The refusal of a translator that is to be sharded."""
    return ConfigError(
        "a translator is trained with a whole copy in each process, not with a part",
        hint="leave training.fsdp out",
    )


def plan_config(preset: str, settings: Mapping[str, Any]) -> RunConfig:
    """The settings of the job to which the objective belongs: labels and translations are fine-tuned on.

    Without one a preset made for translation is planned as that, and any other as pretraining.
    """
    tuning = load_preset(preset).get("finetune", {}).get("objective", {}).get("name")
    name = settings.get("objective", {}).get("name")
    if name is None and tuning in OBJECTIVES and OBJECTIVES[tuning].reads == "translations":
        name = tuning
    is_tuned = name in OBJECTIVES and OBJECTIVES[name].reads in ("texts", "translations")
    if not is_tuned or has_own_budget(preset):
        return resolve("finetune" if is_tuned else "pretrain", preset, settings)
    body = resolve("finetune", preset, settings).model
    return resolve("finetune", preset, settings, defaults=finetune_defaults(REFERENCE, body, "scratch"))


def check_process_count(plan: Plan, force: bool = False) -> None:
    """Refuse a run that this machine has no memory for, unless forced; processes on a CPU share it."""
    if not force:
        shared = plan.cluster.gpus if plan.device.kind == "cpu" else 1
        refuse_if_too_large(plan, free_bytes(plan.device.kind) / shared)


def announce(
    config: RunConfig,
    runtime: Runtime,
    vocabulary: int,
    classes: int,
    tokens: int,
    on_event: Callable[[Event], None],
) -> None:
    """Tell the plan of a run that is about to start in two lines, and refuse one that this machine cannot hold.

    `tokens` are read in each epoch.
    """
    place = runtime.processes.info
    cluster = Cluster(place.local_count, max(1, place.count // place.local_count), sharded=runtime.is_sharded)
    device = this_machine(runtime.device.type)
    planned = make_plan(
        config,
        part_of_cpu(device, place.local_count) if device.kind == "cpu" else device,
        cluster=cluster,
        can_compile=can_compile(device.kind),
        vocabulary=vocabulary,
        classes=max(2, classes),
        tokens=tokens if config.training.max_epochs is not None else None,
    )
    for line in planned.lines():
        on_event(Note(line))
    check_process_count(planned, config.training.ignore_memory_check)


def part_of_cpu(device: Device, processes: int) -> Device:
    """What each of several processes has of a CPU."""
    return replace(
        device,
        memory=device.memory / processes,
        float32=device.float32 / processes,
        low=device.low / processes,
        bandwidth=device.bandwidth / processes,
    )


def _measured(config: RunConfig, plan: Plan) -> float:
    """Seconds of one step, from real ones; a batch too large for this machine is measured at the largest that fits."""
    from headstart.workflows.measure import measure_steps

    load = plan.load
    batch = max(1, min(load.batch, plan.largest_batch))
    config = config.with_({"training": {"compile": plan.is_compiled}})
    classes = next((spec.size for spec in load.heads.values() if spec.kind == "class"), 2)
    found = measure_steps(config, load.vocabulary, classes, batch, load.length)
    return found.seconds_per_step * load.batch / batch


def this_machine(kind: str | None = None) -> Device:
    """The device that a run uses here, with its real memory; `kind` is what torch calls it."""
    import torch

    if kind in (None, "cuda") and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = properties.total_memory / GIB
        try:
            return replace(find_device(properties.name), memory=memory)
        except ConfigError:  # a GPU that the table lacks: guess from its processors
            rate = 0.15 * properties.multi_processor_count
            return Device(properties.name, memory, rate, 4 * rate, 500, properties.major >= 8)
    found = cpu_like(os.cpu_count() or 1)
    return replace(found, memory=_system_bytes("MemTotal") / GIB) if _system_bytes("MemTotal") else found


def free_bytes(kind: str) -> float:
    """Bytes that a run may still take here, with those that this process holds already."""
    import torch

    if kind == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())
    return _system_bytes("MemAvailable") + _own_bytes() or float("inf")


def _system_bytes(key: str) -> float:
    """A line of /proc/meminfo in bytes, within the control group's limit; 0 where there is no such file."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return 0.0
    found = next((1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), 0.0)
    group = Path("/sys/fs/cgroup/memory.max")
    limit = group.read_text("ascii").strip() if group.is_file() else ""
    return min(found, float(limit)) if limit.isdigit() else found


def _own_bytes() -> float:
    own = Path("/proc/self/statm")
    return float(own.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if own.is_file() else 0.0
