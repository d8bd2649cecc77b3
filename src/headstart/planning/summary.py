"""A plan as JSON, what to change in a run that does not fit, and the same run on every device."""

from dataclasses import asdict, replace
from typing import Any

from headstart.config import load_preset, preset_names, resolve
from headstart.planning.communication import link_gbs, predict_communication
from headstart.planning.devices import DEVICES
from headstart.planning.parameters import parameter_table
from headstart.planning.plan import GIB, Plan, fits, largest_batch, make_plan, predict_step_time
from headstart.planning.workload import count_flops, make_workload
from headstart.training.compile import COMPILE_SECONDS


def plan_on_all_devices(plan: Plan, **sizes: Any) -> list[Plan]:
    """The same run on every device of the table."""
    sizes |= {"total_tokens": plan.tokens, "price": plan.price, "cluster": plan.cluster}
    parameters = plan.step.parameters
    return [make_plan(plan.config, device, parameters=parameters, **sizes) for device in DEVICES.values()]


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """JSON-able: parameters, FLOPs, memory, time, verdict."""
    workload, flops, time = plan.workload, count_flops(plan.workload), plan.step_time
    table = parameter_table(workload.model, workload.vocab_size, workload.heads)
    return {
        "parameters": {
            "total": table.total,
            "blocks": [{**asdict(block), "total": block.total} for block in table.blocks],
        },
        "flops": {
            "forward_per_token": flops.forward,
            "backward_per_token": 2 * flops.forward,
            "training_per_token": flops.training,
            "parts_forward": asdict(flops),
            "step": flops.training * plan.step.tokens_per_step,
        },
        "memory": {
            "peak_bytes": plan.memory.peak,
            "moment": plan.memory.moment,
            "parts": plan.memory.parts,
            "batch": workload.batch_size,
            "length": workload.length,
            "source_length": workload.source_length,
            "precision": workload.precision,
        },
        "time": {
            "seconds_per_step": time.seconds,
            "tokens_per_step": plan.step.tokens_per_step,
            "tokens_per_second": plan.step.tokens_per_step / time.seconds,
            "tokens": plan.tokens,
            "hours": plan.seconds / 3600,
            "cost": plan.cost,
            "measured": plan.is_measured,
            "compiled": plan.is_compiled,
            "compile_seconds": COMPILE_SECONDS if workload.is_compiled else 0.0,
            "parts": time.parts,
        },
        "verdict": {
            "device": plan.device.name,
            "fits": plan.fits,
            "largest_batch": plan.largest_batch,
            "advice": find_advice(plan),
        },
        **_cluster_to_dict(plan),
        "note": plan.note,
        "devices": [
            {
                "device": each.device.name,
                "precision": each.workload.precision,
                "memory_gib": each.device.memory_gib,
                "needs_gib": each.memory.peak / GIB,
                "fits": each.fits,
                "largest_batch": each.largest_batch,
                "hours": each.seconds / 3600,
                "cost": each.cost,
                "compiled": each.workload.is_compiled,
            }
            for each in plan.devices
        ],
    }


def _cluster_to_dict(plan: Plan) -> dict[str, Any]:
    if plan.cluster is None:
        return {}
    communication = predict_communication(plan.workload, plan.device, plan.cluster, plan.step_time.batch_seconds)
    speedup = predict_step_time(plan.step, plan.device).seconds / plan.step_time.seconds
    content = {
        **asdict(plan.cluster),
        "processes": plan.cluster.count,
        "link": link_gbs(plan.device),
        "exchanged_bytes": communication.bytes,
        "exchange_seconds": communication.seconds,
        "exposed_seconds": communication.exposed,
        "faster_than_one": speedup,
        "efficiency": speedup / plan.cluster.count,
    }
    return {"cluster": content}


def find_advice(plan: Plan) -> list[str]:
    """Changes that would each make the run fit on the device, the smallest first; none for a run that fits."""
    if plan.fits:
        return []
    advice, workload, device, training = [], plan.workload, plan.device, plan.config.training
    most = largest_batch(replace(workload, accumulation_steps=2), device)
    if 1 <= most < workload.batch_size:
        processes = plan.cluster.count if plan.cluster else 1
        batches = -(-workload.batch_size // most) * workload.accumulation_steps * processes
        advice.append(
            f"batches of {most} texts, {batches} to a step: --set training.tokens_per_batch="
            f"{most * workload.tokens_per_example} --set training.gradient_accumulation_steps={batches}"
        )
    if device.bfloat16 and workload.precision == "float32" and fits(replace(workload, precision="bfloat16"), device):
        advice.append("bfloat16 numbers: --set training.precision=bfloat16")
    shorter, length = workload, workload.length
    while length > 16 and not fits(shorter, device):
        length //= 2
        shorter = replace(workload, length=length, source_length=length if workload.source_length else 0)
    if shorter is not workload and fits(shorter, device):
        tokens = plan.step.batch_size * shorter.tokens_per_example
        shorter_texts = f"--set training.max_length={length} --set training.tokens_per_batch={tokens}"
        advice.append(f"as many, shorter texts: {shorter_texts}")
    can_shard = not (workload.source_length or training.compile or training.gradual_unfreezing_epochs is not None)
    if workload.num_shards == 1 and can_shard and fits(replace(workload, num_shards=8), device):
        advice.append("a part of the model in each of 8 processes: --nproc 8 --set training.fsdp=true")
    smaller = []  # presets that fit with their own batch sizes, and how large they are
    for name in preset_names():
        if plan.config.job in load_preset(name):
            other = make_workload(resolve(plan.config.job, name), device.kind, workload.precision)
            is_same_job = bool(other.source_length) == bool(workload.source_length)
            if is_same_job and other.parameters.total < workload.parameters.total and fits(other, device):
                smaller.append((other.parameters.total, name))
    return [*advice, *(f"a smaller model: --preset {name}" for _, name in sorted(smaller)[-1:])]
