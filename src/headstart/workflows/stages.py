"""A recipe from its first stage to its last: finished stages are kept, a stopped one goes on."""

import json
import math
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headstart.config import PLACES, RunConfig, parse
from headstart.errors import ConfigError, RunError, Stopped
from headstart.files import write_json, write_with, writing
from headstart.sections import FREE
from headstart.storage import compact
from headstart.training.events import Event, Note
from headstart.training.launch import need_alone
from headstart.workflows.finetune import Finetuned, finetune, finetune_config, read_finetuned
from headstart.workflows.places import absolute
from headstart.workflows.pretrain import (
    Pretrained,
    pretrain,
    pretrain_config,
    pretrain_inputs,
    read_pretrained,
)
from headstart.workflows.recipe import Recipe, Stage, StageConfig, open_recipe, read_recipe
from headstart.workflows.rehearsal import rehearse
from headstart.workflows.run import RECIPE, RunFolder, RunInfo, load_trained
from headstart.workflows.teaching import Teaching, make_teaching

FORMAT = 1
STAGES = "stages"
ADVICE = "finetune"  # the table of a recipe with its base's advice
WHAT_IT_READS = {"kind", "mix", "table", "base", "teacher", "unlabelled"}

OnEvent = Callable[[Event], None]


def run_recipe(
    recipe: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    last_stage: int | None = None,
    scale: float = 1.0,
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = lambda event: None,
) -> Pretrained | Finetuned | None:
    """Make a base by a recipe file, from texts under `data`; None when stages after `last_stage` are left.

    Given again, the same command goes on where it stopped, also with a run folder that was copied from elsewhere.
    """
    need_alone("a recipe")
    if not 0 < scale < math.inf:
        raise ConfigError(f"a budget times {scale:g} trains nothing", hint="--scale 0.1 is a tenth of it")
    given = {
        "recipe": open_recipe(Path(recipe)),
        "settings": dict(settings or {}),
        "scale": scale,
    }
    ready = _read(given, Path(data))
    path = Path(out)
    if last_stage is not None and not 1 <= last_stage <= len(ready.stages):
        raise ConfigError(f"there is no stage {last_stage}", hint=f"stages go from 1 to {len(ready.stages)}")
    _check_place(path)
    if not is_recipe(path):  # nothing is made of one with a fault
        rehearse(ready, path / STAGES, last_stage)
    with writing(path):
        (path / STAGES).mkdir(parents=True, exist_ok=True)
    beside = {"data": str(Path(data).resolve()), "text": Path(recipe).read_text("utf-8")}
    with RunFolder(path) as folder:
        _begin(path, ready, given, beside, last_stage)
        return _cook(folder, ready, last_stage, on_event)


def is_recipe(path: Path) -> bool:
    """Whether the folder is that of a recipe."""
    return (path / RECIPE).is_file()


def resume_recipe(path: Path, on_event: OnEvent) -> Pretrained | Finetuned | None:
    """Go on with a recipe to its last stage; None when it was finished before."""
    if (path / "run.json").is_file():
        return None
    given = _known(path)
    with RunFolder(path) as folder:
        return _cook(folder, _read(given, Path(given["data"])), None, on_event)


def _read(given: Mapping[str, Any], root: Path) -> Recipe:
    return read_recipe(given["recipe"], root, given["settings"], given["scale"])


def _check_place(path: Path) -> None:
    """Refuse a place that holds anything but a recipe's run or stages that were brought there."""
    if path.is_file():
        raise RunError(f"{path} is a file, not a place for a run", hint="choose another --out")
    others = [item.name for item in path.iterdir()] if path.is_dir() else []
    if not is_recipe(path) and any(name != STAGES and not name.startswith(".") for name in others):
        raise RunError(f"{path} is not empty", hint="choose another --out")


def _begin(
    path: Path, recipe: Recipe, given: dict[str, Any], beside: dict[str, Any], last_stage: int | None
) -> None:
    """Write what a resume needs; a folder that holds another recipe is left as it is. The caller holds the folder.

    Other advice makes no other recipe: nothing that is trained depends on it. Until the last stage is finished those that
    have not begun may be mended.
    """
    if is_recipe(path):
        if changed := _changed(path, recipe, _known(path), given):
            raise RunError(
                f"{path} was begun otherwise: {', '.join(changed)} {'differ' if len(changed) > 1 else 'differs'}",
                hint="choose another --out, or go on as it was begun; stages that have not begun may be changed",
            )
        if not (path / "run.json").is_file():
            rehearse(recipe, path / STAGES, last_stage)
    write_json(path / RECIPE, {"format": FORMAT, **given, **beside})


def _known(path: Path) -> dict[str, Any]:
    """What the folder's recipe.json says."""
    try:
        known = json.loads((path / RECIPE).read_text("utf-8"))
        return {name: known[name] for name in ("recipe", "settings", "scale", "data")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path / RECIPE} cannot be read: {error!r}",
            hint="take it away and give the recipe again: stages go on",
        ) from None


def _changed(path: Path, recipe: Recipe, known: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """What differs from before of all that a finished recipe was, or of what the stages that have begun were told."""
    if (path / "run.json").is_file():
        return [f"the {name}" for name in given if _trained(known[name]) != _trained(given[name])]
    begun = [folder for folder in (path / STAGES).glob("*") if (folder / "run.json").is_file()]
    here = {stage.folder: stage for stage in recipe.stages}
    found = [f"stage {folder.name}" for folder in begun if folder.name not in here]
    old, new = known["recipe"], given["recipe"]
    if begun:
        found += [
            f"the recipe's {key}" for key in ("base", "tokenizer_texts") if old.get(key) != new.get(key)
        ]
    waits = any(
        stage.is_fresh for stage in recipe.stages if stage.folder not in {each.name for each in begun}
    )
    if (
        begun and waits and _split_by(old) != _split_by(new)
    ):  # one that begins anew learns the tokenizer again
        found.append("what the tokenizer is learnt from")
    for folder in begun:
        if (stage := here.get(folder.name)) is None:
            continue
        said = _reads(stage.config, given["settings"])
        was = next((each for each in old["stages"] if each.get("name") == stage.config.name), None)
        if was is None or said != _reads(parse(StageConfig, was), known["settings"]):
            found.append(f"stage {stage.config.name}")
        names = [*stage.config.mix, *stage.config.unlabelled]
        found += [f"text {name}" for name in names if old["texts"].get(name) != new["texts"].get(name)]
        teaching = make_teaching(stage.teacher(path / STAGES), stage.unlabelled, with_weights=False)
        config = _config(stage, recipe, _base_of(path, recipe, stage), teaching)
        if not _is_as_told(RunFolder(folder).info(), stage, config):
            found.append(f"the settings of stage {stage.config.name}")
    return list(dict.fromkeys(found))


def _reads(stage: StageConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage reads and is taught by; its settings are in its run."""
    told = stage.model_dump(include=WHAT_IT_READS)
    return {**told, "teacher": settings.get(stage.name, {}).get("teacher", stage.teacher)}


def _split_by(recipe: Mapping[str, Any]) -> list[Any]:
    """The texts that a recipe's tokenizer is learnt from."""
    read = (name for stage in recipe["stages"] for name in stage.get("mix", {}))
    names = recipe.get("tokenizer_texts") or list(dict.fromkeys(read))
    return [[name, recipe.get("texts", {}).get(name)] for name in names]


def _trained(given: Any) -> Any:
    """A part of what is given, without the recipe's advice."""
    return {key: value for key, value in given.items() if key != ADVICE} if isinstance(given, dict) else given


def _cook(
    folder: RunFolder, recipe: Recipe, last_stage: int | None, on_event: OnEvent
) -> Pretrained | Finetuned | None:
    path = folder.path
    advice = recipe.config.finetune
    if (path / "run.json").is_file():
        if (info := folder.info()).advice != advice:
            folder.write_info(replace(info, advice=advice))
        return _result(path)
    wanted = recipe.stages[:last_stage]
    for stage in wanted:
        run, base = path / STAGES / stage.folder, _base_of(path, recipe, stage)
        on_event(Note(f"stage {stage.number} of {len(recipe.stages)}: {stage.config.name}"))
        try:
            _finish_stage(run, stage, recipe, base, on_event)
        except Stopped as stopped:
            stopped.again = f"headstart resume {shlex.quote(str(path))}"
            raise
        compact(run, recipe.config.carry.form, recipe.config.carry.shard_mib)
    if len(wanted) < len(recipe.stages):
        on_event(Note(f"stages {len(wanted) + 1} to {len(recipe.stages)} are left"))
        return None
    _present(folder, path / STAGES / recipe.stages[-1].folder, advice)
    return _result(path)


def _base_of(path: Path, recipe: Recipe, stage: Stage) -> str:
    """What a stage goes on from; nothing for one from scratch."""
    if stage.is_fresh:
        return ""
    before = stage.base or (recipe.stages[stage.number - 2] if stage.number > 1 else None)
    return recipe.config.base if before is None else str(path / STAGES / before.folder)


def _finish_stage(run: Path, stage: Stage, recipe: Recipe, base: str, on_event: OnEvent) -> None:
    """Train a stage, go on with it, or see that it is finished as the recipe wants it."""
    from headstart.workflows.resume import resume_run

    preset, teacher = recipe.config.preset, stage.teacher(run.parent)
    is_tuned = stage.config.kind == "finetune"
    if not (run / "run.json").is_file():
        if is_tuned:
            finetune(
                base,
                stage.table,
                run,
                teacher=teacher,
                unlabelled=stage.unlabelled,
                preset=preset,
                settings=stage.settings,
                on_event=on_event,
            )
        else:
            pretrain(
                stage.mix,
                run,
                base=base or None,
                teacher=teacher,
                tokenizer_corpora=None if base or teacher else recipe.tokenizer_texts,
                preset=preset,
                settings=stage.settings,
                adapts=False,
                on_event=on_event,
            )
        return
    info = RunFolder.open(run).info()
    teaching = make_teaching(teacher, stage.unlabelled, with_weights=False)
    config = _config(stage, recipe, base, teaching)
    if not _is_as_told(info, stage, config):
        raise RunError(
            f"{run} was trained with other settings than the recipe's stage {stage.number}",
            hint="give the recipe and the --set that it was begun with, or another --out",
        )
    if info.status == "finished":
        return
    # The texts, or the stages, may have moved since: the run finds them where they are now.
    now = (
        {"data": absolute([stage.table])[0], "base": absolute([base])[0]}
        if is_tuned
        else pretrain_inputs(stage.mix, base or None, recipe.tokenizer_texts if not base else [])
    )
    now |= {} if teaching is None else teaching.inputs()
    moved = info.config.with_({"data": {"apart": config.data.apart}})
    RunFolder(run).write_info(replace(info, config=moved, inputs={**info.inputs, **now}))
    resume_run(run, on_event)


def _config(stage: Stage, recipe: Recipe, base: str, teaching: Teaching | None) -> RunConfig:
    """The settings that a stage is told."""
    trained = load_trained(base, with_weights=False) if base else None
    if stage.config.kind == "finetune":
        return finetune_config(trained, recipe.config.preset, stage.settings)[0]
    return pretrain_config(recipe.config.preset, stage.settings, trained, teaching)[0]


def _is_as_told(info: RunInfo, stage: Stage, config: RunConfig) -> bool:
    """Whether a stage's run is that of these settings and rates."""
    return _essence(info.config) == _essence(config) and _weights(info) == [each.weight for each in stage.mix]


def _essence(config: RunConfig) -> dict[str, Any]:
    """The settings that decide what comes out; paths of other sets by their names."""
    content = config.model_dump()
    content["training"] = {name: value for name, value in content["training"].items() if name not in FREE}
    for key in PLACES:
        content["data"][key] = [Path(name).name for name in content["data"][key]]
    return content


def _weights(info: RunInfo) -> list[float]:
    return [each["weight"] for each in info.inputs.get("mix", [])]


def _present(folder: RunFolder, last: Path, advice: dict[str, Any]) -> None:
    """Make the last stage's result that of the recipe's own folder, run.json, with the advice in it, last."""
    names = [item.name for item in sorted(last.iterdir()) if item.is_file() and not item.name.startswith(".")]
    for name in [name for name in names if name != "run.json"]:
        write_with(folder.path / name, partial(shutil.copyfile, last / name))
    folder.write_info(replace(RunFolder(last).info(), advice=advice))


def _result(path: Path) -> Pretrained | Finetuned:
    folder = RunFolder.open(path)
    return read_finetuned(folder) if folder.info().config.job == "finetune" else read_pretrained(folder)
