"""A plan for a run, on a named device or on this machine, perhaps with measured step times."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headstart.config import RunConfig, load_preset, resolve
from headstart.errors import ConfigError
from headstart.objectives import OBJECTIVES
from headstart.planning.communication import Cluster
from headstart.planning.devices import Device, cpu_like, find_device
from headstart.planning.plan import GIB, Plan, make_plan, plan_on_all_devices
from headstart.training.callbacks import Event, Note
from headstart.training.compile import can_compile
from headstart.training.runtime import Runtime
from headstart.workflows.finetune_defaults import REFERENCE, finetune_defaults, has_own_budget


def sharded_translator_error() -> ConfigError:
    """The refusal of a translator that is to be sharded."""
    return ConfigError(
        "a translator is trained with a whole copy in each process, not with a part", hint="leave training.fsdp out"
    )


def plan(
    preset: str = "tiny",
    *,
    gpu: str | None = None,
    settings: Mapping[str, Any] | None = None,
    measure: bool = False,
    gpus: int = 1,
    nodes: int = 1,
    network: float = 100.0,
    tokens: float | None = None,
    epochs: float | None = None,
    price: float | None = None,
    **sizes: Any,
) -> Plan:
    """The plan of a run with this preset and these settings; `sizes` are those of `make_plan`."""
    config = plan_config(preset, settings or {})
    device = this_machine() if gpu is None else find_device(gpu)
    cluster = Cluster(gpus, nodes, network, config.training.fsdp and gpus * nodes > 1)
    if measure and cluster.count > 1:
        raise ConfigError("--calibrate runs on one device", hint="leave out --gpus and --nodes, or --calibrate")
    if measure and device.name != this_machine().name:
        raise ConfigError(
            f"--calibrate runs on this machine, and {device.name} is another", hint="leave out --gpu or --calibrate"
        )
    options = {"tokens": tokens, "epochs": epochs, "price": price, "cluster": cluster, **sizes}
    options["can_compile"] = can_compile(device.kind) if measure or gpu is None else None
    found = make_plan(config, device, **options)
    if cluster.sharded and found.workload.source_length:
        raise sharded_translator_error()
    if measure:
        found = make_plan(config, device, **options, seconds_per_step=_measured_seconds(config, found))
    devices = plan_on_all_devices(found, **sizes) if gpu is None else []
    return replace(found, devices=devices, note=load_preset(preset).get("note", ""))


def plan_config(preset: str, settings: Mapping[str, Any]) -> RunConfig:
    """The settings of the job of the objective: fine-tuning for labels and translations, else pretraining.

    Without an objective, a preset made for translation is planned as translation, any other as pretraining.
    """
    preset_objective = load_preset(preset).get("finetune", {}).get("objective", {}).get("name")
    name = settings.get("objective", {}).get("name")
    if name is None and preset_objective in OBJECTIVES:
        name = preset_objective if OBJECTIVES[preset_objective].reads == "translations" else None
    is_finetuning = name in OBJECTIVES and OBJECTIVES[name].reads in ("texts", "translations")
    if not is_finetuning or has_own_budget(preset):
        return resolve("finetune" if is_finetuning else "pretrain", preset, settings)
    model = resolve("finetune", preset, settings).model
    return resolve("finetune", preset, settings, defaults=finetune_defaults(REFERENCE, model, "scratch"))


def announce(
    config: RunConfig, runtime: Runtime, vocabulary: int, classes: int, tokens: int, on_event: Callable[[Event], None]
) -> None:
    """Report the plan of a run that is about to start in two lines, and refuse one that this machine cannot hold.

    `tokens` are read in each epoch.
    """
    rank = runtime.processes.info
    device, processes = this_machine(runtime.device.type), 1
    if device.kind == "cpu":  # processes on one CPU share it
        processes = rank.local_count
        device = replace(
            device,
            memory_gib=device.memory_gib / processes,
            float32_tflops=device.float32_tflops / processes,
            half_tflops=device.half_tflops / processes,
            bandwidth_gbs=device.bandwidth_gbs / processes,
        )
    planned = make_plan(
        config,
        device,
        cluster=Cluster(rank.local_count, max(1, rank.count // rank.local_count), sharded=runtime.is_sharded),
        can_compile=device.kind == "cuda" and can_compile(device.kind),
        vocabulary=vocabulary,
        classes=max(2, classes),
        tokens=tokens if config.training.max_epochs is not None else None,
    )
    if not config.training.ignore_memory_check:
        check_memory(planned, free_bytes(device.kind) / processes)
    for line in planned.lines():
        on_event(Note(line))


def check_memory(plan: Plan, available_bytes: float) -> None:
    """Refuse a run that would run out of memory, with the plan's advice."""
    if plan.memory.peak <= available_bytes:
        return
    advice = "; or ".join(plan.advice) or "choose a smaller --preset, batch or length"
    raise ConfigError(
        f"this run needs about {plan.memory.peak / GIB:.1f} GiB, and {plan.device.name} has "
        f"{available_bytes / GIB:.1f} GiB free",
        hint=f"{advice}; or --ignore-memory-check to try all the same",
    )


def _measured_seconds(config: RunConfig, plan: Plan) -> float:
    """Seconds of one step, from real ones; of a batch too large for this machine, from the largest that fits."""
    from headstart.planning.calibrate import measure_steps

    workload = plan.workload
    batch = max(1, min(workload.batch_size, plan.largest_batch))
    config = config.with_({"training": {"compile": plan.is_compiled}})
    classes = next((spec.size for spec in workload.heads.values() if spec.kind == "class"), 2)
    measured = measure_steps(config, workload.vocab_size, classes, batch, workload.length)
    return measured.seconds_per_step * workload.batch_size / batch


def this_machine(kind: str | None = None) -> Device:
    """The device that a run uses here, with its real memory; `kind` is torch's name for it."""
    if kind in (None, "cuda") and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = properties.total_memory / GIB
        try:
            return replace(find_device(properties.name), memory_gib=memory)
        except ConfigError:  # a GPU that is not in the table: guess from its processors
            rate = 0.15 * properties.multi_processor_count
            return Device(properties.name, memory, rate, 4 * rate, 500, properties.major >= 8)
    device = cpu_like(os.cpu_count() or 1)
    memory = _system_bytes("MemTotal") / GIB
    return replace(device, memory_gib=memory) if memory else device


def free_bytes(kind: str) -> float:
    """Bytes that a run may still take here, with those that this process holds already."""
    if kind == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())
    own = Path("/proc/self/statm")
    own_pages = int(own.read_text("ascii").split()[1]) if own.is_file() else 0
    return _system_bytes("MemAvailable") + own_pages * os.sysconf("SC_PAGE_SIZE") or float("inf")


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
