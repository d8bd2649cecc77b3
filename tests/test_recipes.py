"""The recipe files that come with the project: each can be read, keeps to its size, and keeps judging texts unread."""

import importlib
import lzma
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from headstart.config import DataConfig, resolve
from headstart.data.built_in import SOURCES
from headstart.data.datasets import load_dataset
from headstart.data.text_io import hashes
from headstart.inference.loaded_model import load_model
from headstart.models.model import build_model, count_parameters
from headstart.objectives import make_objective
from headstart.objectives.distillation import can_teach
from headstart.pretrained import describe_base, shipped_bases
from headstart.quantization import encode
from headstart.workflows.recipe import read_recipe, run_recipe

RECIPES = Path(__file__).parents[1] / "recipes"
FILES = sorted(RECIPES.glob("*.toml"))
BESIDE = {"en": 560_000, "fr": 1_030_000}  # bytes of the tokenizer and of the hashes of what was read, compressed


@pytest.fixture
def script(monkeypatch):
    """Import a preparation script by its name."""
    monkeypatch.syspath_prepend(RECIPES)
    return importlib.import_module


def lay_out(recipe, root):
    """Empty files in the place of those that a recipe reads."""
    tables = [stage["table"] for stage in recipe["stages"] if "table" in stage]
    names = [text["path"] for text in recipe["texts"].values()] + tables
    for name in [*names, *recipe["data"]["exclude_eval_texts_of"]]:
        if name not in SOURCES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    for stage in recipe["stages"]:
        (root / stage.get("teacher", ".")).mkdir(parents=True, exist_ok=True)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def recipe(request, tmp_path):
    content = tomllib.loads(request.param.read_text("utf-8"))
    lay_out(content, tmp_path)
    return request.param.stem, read_recipe(content, tmp_path, {}, 1.0)


def test_the_four_recipes_are_there():
    assert [path.stem for path in FILES] == ["en-small", "en-tiny", "fr-small", "fr-tiny"]


def test_a_recipe_keeps_to_its_size(recipe):
    name, found = recipe
    stage = found.stages[0]
    config = resolve("pretrain", found.config.preset, stage.settings)
    objective = make_objective(config.objective)
    size = config.tokenizer.vocab_size
    with torch.device("meta"):
        body = objective.resolve_backbone(config.model)
        model = build_model(body, size, objective.heads(body, size, 0))
    limits = {"small": (24_000_000, 24 * 2**20), "tiny": (8_000_000, 8 * 2**20)}
    most, most_bytes = limits[name.partition("-")[2]]
    assert 0.75 * most < count_parameters(model) <= most
    stored = sum(
        part.nbytes
        for weight in model.state_dict().values()
        for part in encode(torch.zeros(weight.shape), "int8").values()
    )
    assert stored + BESIDE[name[:2]] < most_bytes
    packed = describe_base(shipped_bases()[name])  # fine-tuning stages add a head
    assert f"{packed['parameters'] / 1e6:.1f} M parameters" in found.config.title == packed["title"]


def test_no_recipe_learns_from_the_labels_it_is_judged_on(recipe):
    _, found = recipe
    for stage in found.stages:
        judged = {Path(name).name for name in stage.settings["data"]["exclude_eval_texts_of"]}
        assert judged & {"imdb", "cls-books-fr"}
        assert Path(stage.table).name not in judged


def objective_of(recipe, stage):
    """The objective of a stage."""
    kind = "finetune" if stage.table else "pretrain"
    return make_objective(resolve(kind, recipe.config.preset, stage.settings).objective)


def test_the_teachers_of_a_recipe_can_teach(recipe, tmp_path):
    """A stage that another recipe names as a teacher has an objective from which the student's can be distilled."""
    _, found = recipe
    for stage in found.stages:
        if not stage.config.teacher.startswith("runs/"):
            continue
        _, name, *rest = Path(stage.config.teacher).parts
        content = tomllib.loads(next(path for path in FILES if path.stem == name).read_text("utf-8"))
        lay_out(content, tmp_path / "other")
        other = read_recipe(content, tmp_path / "other", {}, 1.0)
        at = int(rest[1].partition("-")[0]) - 1 if rest else -1
        assert can_teach(objective_of(other, other.stages[at]), objective_of(found, stage)), stage.config.name


@pytest.mark.slow
def test_the_test_split_of_imdb_is_read_by_no_stage_of_the_english_recipe(tmp_path, script):
    """Proven by hash, in a bad case: the other texts of the recipe hold the test split, or a part of it, too."""
    path = next(path for path in FILES if path.stem == "en-small")
    content = tomllib.loads(path.read_text("utf-8"))
    lay_out(content, tmp_path)
    imdb = load_dataset("imdb", DataConfig(), with_test=True)
    judged = [" ".join(text.split()) for split in ("valid", "test") for text in imdb.texts(split)]
    others = [f"a line of its own, number {number}, {number % 11}/10" for number in range(400)]
    for stage in content["stages"]:
        if "table" in stage and stage["table"] not in SOURCES:
            (tmp_path / stage["table"]).unlink()
    with lzma.open(tmp_path / "imdb-unlabelled.txt.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*judged, *others]) + "\n")
    script("prepare_en_small").main(tmp_path)
    for text in content["texts"].values():
        if text["path"] not in SOURCES:
            (tmp_path / text["path"]).unlink()
            head = [text["text_column"]] if "text_column" in text else []
            plain = tmp_path / text["path"].removesuffix(".xz")
            some = judged[:: 10 if head else 1]
            plain.write_text("\n".join([*head, *some, *others]) + "\n", "utf-8")
    bent = path.read_text("utf-8").replace(".xz", "")
    (tmp_path / "recipe.toml").write_text(bent, "utf-8")
    small = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24}
    over = {"model": small, "tokenizer": {"vocab_size": 2000}, "training": {"max_steps": 2, "tokens_per_batch": 1024}}
    run_recipe(tmp_path / "recipe.toml", tmp_path, tmp_path / "run", settings=over)
    held = hashes(imdb.texts("valid") + imdb.texts("test"))
    for run in [tmp_path / "run", *(tmp_path / "run" / "stages").iterdir()]:
        seen = load_model(str(run)).train_fingerprints
        assert np.isin(hashes(imdb.texts("train")), seen).mean() > 0.9
        assert not np.isin(held, seen).any(), run
