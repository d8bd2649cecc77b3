"""A plan for a run, on a named device or on this machine, perhaps with measured step times."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headstart.config import RunConfig, load_preset, resolve
from headstart.errors import ConfigError
from headstart.objectives import OBJECTIVES
from headstart.planning.communication import Cluster
from headstart.planning.devices import find_device
from headstart.planning.plan import Plan, make_plan, this_machine
from headstart.planning.summary import plan_on_all_devices
from headstart.training.compile import can_compile
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
    cluster = Cluster(gpus, nodes, network, config.training.fsdp) if gpus * nodes > 1 else None
    if measure and cluster:
        raise ConfigError("--calibrate runs on one device", hint="leave out --gpus and --nodes, or --calibrate")
    if measure and device.name != this_machine().name:
        raise ConfigError(
            f"--calibrate runs on this machine, and {device.name} is another", hint="leave out --gpu or --calibrate"
        )
    options = {"tokens": tokens, "epochs": epochs, "price": price, "cluster": cluster, **sizes}
    options["can_compile"] = can_compile(device.kind) if measure or gpu is None else None
    found = make_plan(config, device, **options)
    if cluster and cluster.sharded and found.workload.source_length:
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


def _measured_seconds(config: RunConfig, plan: Plan) -> float:
    """Seconds of one step, from real ones; of a batch too large for this machine, from the largest that fits."""
    from headstart.planning.calibrate import measure_steps

    workload = plan.workload
    batch = max(1, min(workload.batch_size, plan.largest_batch))
    config = config.with_({"training": {"compile": plan.is_compiled}})
    classes = next((spec.size for spec in workload.heads.values() if spec.kind == "class"), 2)
    measured = measure_steps(config, workload.vocab_size, classes, batch, workload.length)
    return measured.seconds_per_step * workload.batch_size / batch
