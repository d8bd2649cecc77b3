"""The plan of a run: seconds of a training step, the plan of a run on a device, and the check before a run starts.

Each class of work in a step takes the longer of its arithmetic and its memory traffic; on a CPU all are added. A GPU
computes while the host launches kernels, but not always: with small operations it waits for the next one, with large
ones the host is far ahead, and a step has both. So a step takes about the root of the sum of both squares: the longer
where one is much longer, 1.4 times either where they are equal. devices.EFFICIENCIES are measured constants.
"""

import math
import os
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from headstart.config import RunConfig
from headstart.errors import ConfigError
from headstart.planning.communication import Cluster, divide_device, predict_communication, share_of
from headstart.planning.devices import COMPILED, COMPILED_TEXTS, DEVICES, EFFICIENCIES, Efficiency, this_gpu
from headstart.planning.memory import Memory, activations, predict_memory
from headstart.planning.workload import (
    COMPILED_LAYER_OPERATIONS,
    COMPILED_LOGIT_PASSES,
    FLOAT32,
    Device,
    Workload,
    count_flops,
    make_workload,
    masked_attention_work,
    muon_flops,
)
from headstart.reports.formatting import format_duration
from headstart.training.callbacks import Note, OnEvent
from headstart.training.compile import COMPILE_SECONDS, can_compile, will_compile
from headstart.training.runtime import Runtime

GIB = 2**30
MAX_BATCH_POWER = 20  # of 2: texts that are tried
DEFAULT_TOKENS = 1_000_000  # of the run, when no budget is given
UPDATE_BYTES = 60  # traffic for one weight: clipping and the optimizer


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, by kind of work; on a GPU the launches overlap with the rest, in part."""

    parts: dict[str, float]
    seconds: float
    batch_seconds: float  # computation of one of the step's batches


def predict_step_time(workload: Workload, device: Device, cluster: Cluster | None = None) -> StepTime:
    """Seconds of one step of this workload on this device; in a cluster it is one process's share of a step."""
    efficiency = EFFICIENCIES[device.kind]
    if workload.is_compiled:
        efficiency = COMPILED_TEXTS if workload.has_padding else COMPILED
    model, flops = workload.model, count_flops(workload)
    rate = device.matmul_flops(workload.precision)
    matmul_rate = rate * _matmul_share(model.hidden_size, efficiency)
    bandwidth = 1e9 * device.bandwidth_gbs * efficiency.bandwidth
    weights_read = 3 * workload.matmul_bytes * workload.parameters.matrices  # forward and backward
    batch = {
        "matrices": max(3 * flops.body * workload.tokens / matmul_rate, weights_read / bandwidth),
        "attention": _attention_seconds(workload, efficiency, rate, flops.attention * workload.tokens),
        "logits": _logit_seconds(workload, efficiency, rate, bandwidth),
        "element-wise": efficiency.passes * activations(workload) / bandwidth,
        "random numbers": efficiency.random * _dropout_numbers(workload),
    }
    parts = {name: part * workload.accumulation_steps for name, part in batch.items()}
    update = workload.parameters.total * UPDATE_BYTES / bandwidth
    if workload.optimizer == "muon":
        update += muon_flops(workload) / matmul_rate
    parts["update"] = update / workload.num_shards
    batch_seconds = sum(batch.values())
    if cluster is not None:
        parts["communication"] = predict_communication(workload, device, cluster, batch_seconds).exposed
    computing = sum(parts.values())
    parts["launches"] = launching = efficiency.launch * count_operations(workload)
    seconds = computing + launching if device.kind == "cpu" else math.hypot(computing, launching)
    return StepTime(parts, seconds, batch_seconds)


def _matmul_share(inner: float, efficiency: Efficiency) -> float:
    """The fraction of the matrix rate that products over `inner` numbers reach."""
    return efficiency.matmul * inner / (inner + efficiency.half_width)


def _attention_seconds(workload: Workload, efficiency: Efficiency, rate: float, work: float) -> float:
    """Two products forward; fused attention computes them again in the backward pass, plain attention saves them."""
    model = workload.model
    head_size = model.hidden_size // model.num_heads
    if workload.stores_attention_weights:
        return 3 * work / (rate * _matmul_share(head_size, efficiency))  # its weights count as activations
    rate *= min(1.0, head_size / 64)
    if not (work and workload.has_padding and workload.device == "cuda"):
        return 3.5 * work / (rate * efficiency.attention)
    return masked_attention_work(workload, efficiency.attention) / rate


def _logit_seconds(workload: Workload, efficiency: Efficiency, rate: float, bandwidth: float) -> float:
    """Logits forward and backward; every chunk reads the embedding twice and adds to its gradient."""
    if not workload.label_fraction:
        return 0.0
    vocab_size, width, predictions = workload.vocab_size, workload.model.hidden_size, workload.num_predictions
    logits, rows = predictions * vocab_size, max(1, workload.logits_per_chunk // vocab_size)
    in_chunk = min(rows, predictions)
    rate *= _matmul_share(width, efficiency) * in_chunk / (in_chunk + efficiency.half_rows)
    embedding = -(-predictions // rows) * 4 * FLOAT32 * vocab_size * width / bandwidth
    is_fused = workload.is_compiled and not workload.generators
    traffic = COMPILED_LOGIT_PASSES * workload.matmul_bytes if is_fused else efficiency.logit_bytes
    return max(6 * logits * width / rate, embedding) + logits * traffic / bandwidth


def _dropout_numbers(workload: Workload) -> float:
    """Random numbers that dropout draws in one batch."""
    model, drawn = workload.model, 0
    for stack in workload.stacks:
        if model.dropout:
            layer = (3 if stack.source_length else 2) * model.hidden_size + model.intermediate_size
            drawn += stack.length * (stack.layers * layer + model.hidden_size)
        if workload.stores_attention_weights:
            drawn += stack.length * stack.layers * model.num_heads * (stack.length + stack.source_length)
    return drawn * workload.num_forward * workload.batch_size


def count_operations(workload: Workload) -> float:
    """Operations that the host starts in a step, roughly, from a reading of the code."""
    model = workload.model
    layer = 55 + 30 * (workload.matmul_bytes == 2) + 26 * (model.position_embedding == "rotary")
    layer += 10 * (model.dropout > 0)
    if workload.is_compiled:
        layer = COMPILED_LAYER_OPERATIONS
    chunks = 1
    if workload.label_fraction:
        chunks = -(-workload.num_predictions // max(1, workload.logits_per_chunk // workload.vocab_size))
    layers = sum(stack.layers * (1.5 if stack.source_length else 1) for stack in workload.stacks)
    batch = workload.num_forward * (layers * layer + 60 * len(workload.stacks)) + 25 * chunks
    muon = (32 * layers + 140) if workload.optimizer == "muon" else 0
    return workload.accumulation_steps * batch + muon + 60


def fits(workload: Workload, device: Device) -> bool:
    """Whether the peak memory is within what the device has."""
    return predict_memory(workload).peak <= device.usable_bytes


@dataclass(frozen=True)
class Plan:
    """Parameters, memory and time of a run before it starts."""

    config: RunConfig
    device: Device
    step: Workload  # of all processes together
    workload: Workload  # of one process
    memory: Memory
    step_time: StepTime
    tokens: float  # of the whole run
    is_compiled: bool  # whether torch.compile is used in training steps
    cluster: Cluster | None = None  # None = one device
    price: float | None = None  # of one device for an hour
    is_measured: bool = False  # the time is that of steps on this machine
    devices: "list[Plan]" = field(default_factory=list)  # the same run on every device, when none was named
    note: str = ""  # of the preset

    @property
    def fits(self) -> bool:
        """Whether the peak memory is within what the device has."""
        return self.memory.peak <= self.device.usable_bytes

    @cached_property
    def largest_batch(self) -> int:
        """The most texts in one batch of one process; 0 when not even one fits."""
        return largest_batch(self.workload, self.device)

    @property
    def seconds(self) -> float:
        """For all tokens, and for compiling where that is done."""
        steps = self.tokens / self.step.tokens_per_step
        return steps * self.step_time.seconds + (COMPILE_SECONDS if self.workload.is_compiled else 0.0)

    @property
    def cost(self) -> float | None:
        """In the currency of the price."""
        count = self.cluster.count if self.cluster else 1
        return None if self.price is None else self.seconds * count / 3600 * self.price

    def lines(self) -> list[str]:
        """The plan in two lines, for the start of a run."""
        batch = "of a batch each" if self.cluster else "a batch"
        verdict = f"fits, {self.largest_batch:,} texts {batch} at most" if self.fits else "does not fit"
        where = self.device.name + (f" in each of {self.cluster.count} processes" if self.cluster else "")
        needed, usable = self.memory.peak / GIB, self.device.usable_bytes / GIB
        size = f"{self.step.parameters.total:,} parameters, {_short(count_flops(self.workload).training)}FLOPs a token"
        step = f"{self.step.tokens_per_step:,} tokens a {'compiled ' if self.workload.is_compiled else ''}step"
        step_time, run_time = format_duration(self.step_time.seconds), format_duration(self.seconds)
        return [
            f"plan: {size}; peak memory {needed:.2f} GiB of {usable:.1f} on {where} ({verdict})",
            f"plan: {step} in about {step_time}; {_short(self.tokens)}tokens in about {run_time}",
        ]


def _short(number: float) -> str:
    """A large number in three digits, with the letter of its size: "126 M"."""
    sizes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, letter = next((pair for pair in sizes if number >= pair[0]), (1.0, ""))
    return f"{number / size:.3g} {letter}"


def make_plan(
    config: RunConfig,
    device: Device,
    *,
    tokens: float | None = None,
    epochs: float | None = None,
    total_tokens: float | None = None,
    price: float | None = None,
    seconds_per_step: float | None = None,
    cluster: Cluster | None = None,
    can_compile: bool | None = None,
    **sizes: Any,
) -> Plan:
    """The plan of a run on a device, or on each of a cluster; `sizes` are those of `make_workload`, for all processes.

    `tokens` are read once in each epoch, or `total_tokens` in all. `seconds_per_step` is a measured time. `can_compile`
    is by default that of the device.
    """
    training = config.training
    step = make_workload(config, device.kind, device.precision(training.precision), **sizes)
    if total_tokens is None and tokens is not None:
        total_tokens = tokens * (epochs or training.max_epochs or 1)
    elif total_tokens is None and training.max_minutes is None:
        total_tokens = training.max_tokens or (training.max_steps or 0) * step.tokens_per_step
        total_tokens = total_tokens or DEFAULT_TOKENS * (epochs or 1)
    is_able = device.kind == "cuda" and device.compiles  # given a C compiler
    is_compiled = training.compile is True
    if is_able if can_compile is None else can_compile:
        is_compiled = will_compile(
            training,
            is_able=True,
            is_sharded=cluster is not None and cluster.sharded,
            weights=step.parameters.total,
            passes=step.num_forward,
            tokens=total_tokens or 0.0,
        )
    if is_compiled:  # compiled code computes every position; what else it changes is known for GPUs alone
        step = replace(step, last_layer_fraction=1.0, is_compiled=is_able)
    workload = share_of(step, cluster) if cluster else step
    step_time = predict_step_time(workload, device, cluster)
    if seconds_per_step is not None:
        factor = seconds_per_step / step_time.seconds
        parts = {name: part * factor for name, part in step_time.parts.items()}
        step_time = StepTime(parts, step_time.seconds * factor, step_time.batch_seconds * factor)
    if total_tokens is None:  # as many as are read in the minutes of the settings; a step's at least
        assert training.max_minutes is not None
        seconds = 60 * training.max_minutes - (COMPILE_SECONDS if step.is_compiled else 0)
        total_tokens = max(1.0, seconds / step_time.seconds) * step.tokens_per_step
    memory, is_measured = predict_memory(workload), seconds_per_step is not None
    return Plan(
        config, device, step, workload, memory, step_time, total_tokens, is_compiled, cluster, price, is_measured
    )


def largest_batch(workload: Workload, device: Device) -> int:
    """The most texts of this length in one batch that fit; 0 when not even one does."""

    def is_too_large(size: int) -> bool:
        return not fits(replace(workload, batch_size=size), device)

    most = next((power for power in range(MAX_BATCH_POWER) if is_too_large(1 << power)), MAX_BATCH_POWER)
    at_least = (1 << most) // 2
    return at_least + bisect_left(range(at_least + 1, 1 << most), True, key=is_too_large)


# --- Before a run starts --------------------------------------------------------------------------------------------


def announce(
    config: RunConfig, runtime: Runtime, vocabulary: int, classes: int, tokens: int, on_event: OnEvent
) -> None:
    """Report the plan of a run in two lines; refuse one that does not fit into memory, before its model is built.

    `tokens` are read in each epoch.
    """
    device, info = this_machine(runtime.device.type), runtime.processes.info
    sharing, cluster = 1, None
    if info.count > 1:
        cluster = Cluster(info.local_count, max(1, info.count // info.local_count), sharded=runtime.is_sharded)
        sharing = info.local_count if device.kind == "cpu" else 1  # processes on one CPU share it
        device = divide_device(device, sharing)
    budget = tokens if config.training.max_epochs is not None else None
    sizes, is_able = {"vocabulary": vocabulary, "classes": classes}, device.kind == "cuda" and can_compile(device.kind)
    plan = make_plan(config, device, cluster=cluster, can_compile=is_able, tokens=budget, **sizes)
    if not config.training.ignore_memory_check:
        check_memory(plan, free_bytes(device.kind) / sharing)
    for line in plan.lines():
        on_event(Note(line))


def check_memory(plan: Plan, available_bytes: float) -> None:
    """Refuse a run that would run out of memory, with the plan's advice."""
    if plan.memory.peak > available_bytes:
        from headstart.planning.summary import find_advice

        advice = "; or ".join(find_advice(plan)) or "choose a smaller --preset, batch or length"
        has = f"{plan.device.name} has {available_bytes / GIB:.1f} GiB free"
        raise ConfigError(
            f"this run needs about {plan.memory.peak / GIB:.1f} GiB, and {has}",
            hint=f"{advice}; or --ignore-memory-check to try all the same",
        )


def this_machine(kind: str | None = None) -> Device:
    """The device that a run uses here, with its real memory; `kind` is torch's name for it."""
    if kind in (None, "cuda") and torch.cuda.is_available():
        return this_gpu()
    cores = {int(name.split()[1]): device for name, device in DEVICES.items() if device.kind == "cpu"}
    device = cores[min(cores, key=lambda count: abs(count - (os.cpu_count() or 1)))]
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
