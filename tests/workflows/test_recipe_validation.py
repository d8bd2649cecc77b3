"""Every stage of a recipe is validated before the first starts, and a recipe is not changed once it has."""

import json

import pytest
import torch
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.errors import ConfigError, HeadstartError, RunError
from headstart.workflows.package import package
from headstart.workflows.resume import resume
from headstart.workflows.run_dir import RunDir
from tests.helpers.datasets import write_labelled
from tests.helpers.recipes import TEXT, make_recipe, run_small_recipe

pytestmark = pytest.mark.slow  # whole trainings, one after the other

DECAY = 'name = "decay"\n'
STARS = 'name = "stars"\n'


@pytest.fixture
def world(tmp_path):
    return make_recipe(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (DECAY, DECAY + "model = { hidden_size = 32 }\n", "stage decay: model.hidden_size of stars is 16, not 32"),
        (
            "training = { max_epochs = 1, max_length = 32 }",
            "training = { max_epochs = 1, max_length = 4096 }",
            "stage stars: .*4096",
        ),
        (DECAY, DECAY + 'objective = { name = "classify" }\n', "stage decay: classify needs labels"),
        (
            STARS,
            STARS + 'objective = { name = "masked-lm", mask_rate = 0.3 }\n',
            "stage stars: masked-lm reads no labels",
        ),
        (
            "training = { max_tokens = 2000 }",
            "training = { max_tokens = 2000, freeze_backbone = true }",
            "stage decay: training.freeze_backbone is for fine-tuning",
        ),
        (
            "training = { max_epochs = 1,",
            "training = { reinit_top_layers = 3, max_epochs = 1,",
            "stage stars: .*reinit_top",
        ),
        ("tokens = 2000 }", "tokens = 2000 }\nteacher = 'here'", "stage decay: here is not a run directory"),
        ("tokens = 2000 }", "tokens = 2000 }\nteacher = 'general, general'", "one teacher is named twice"),
        ("[texts.general]", "[texts]\nodd = 'corpus.txt'\n[texts.general]", "texts.odd is 'corpus.txt'"),
        ("seed = 4", 'seed = "four"', "seed"),
        ("seed = 4", "seed = 1.5", "seed"),
        (STARS, 'name = "data"\n', "cannot be called 'data'"),
    ],
)
def test_a_fault_of_a_later_stage_is_refused_before_the_first(world, monkeypatch, old, new, problem):
    monkeypatch.chdir(world)
    (world / "here").mkdir()
    assert old in TEXT
    (world / "recipe.toml").write_text(TEXT.replace(old, new))
    with pytest.raises(HeadstartError, match=problem) as caught:
        run_small_recipe(world, "run")
    assert caught.value.hint
    assert not (world / "run").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            TEXT.replace("[[stages]]", "[stages]", 1).split("[[stages]]")[0],
            "setting stages in the recipe cannot be .*valid list",
        ),
        ('title = "x"\ntexts = "here"\n', "setting texts in the recipe cannot be 'here'"),
        ('title = "x"\nstages = ["general"]\n', "stage 1 is 'general'"),
        ("title = ", "is not valid TOML"),
    ],
)
def test_an_invalid_recipe_is_refused_in_words(world, text, problem):
    (world / "recipe.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        run_small_recipe(world, "run")
    assert "there are" not in caught.value.hint


def test_a_folder_for_a_file_is_refused_in_words(world, monkeypatch):
    monkeypatch.chdir(world)
    for words in (["--recipe", "texts"], ["texts/general.txt", "--config", "texts"]):
        result = CliRunner().invoke(app, ["pretrain", *words, "--out", "run"])
        assert isinstance(result.exception, ConfigError), result.exception
        assert "cannot be read" in str(result.exception)


def test_a_section_that_is_none_is_refused_in_words(world, monkeypatch):
    monkeypatch.chdir(world)
    (world / "own.toml").write_text("training = 3\n")
    for words in (["pretrain", "texts/general.txt"], ["finetune", "en-tiny", "texts/target.tsv"]):
        result = CliRunner().invoke(app, [*words, "--config", "own.toml", "--out", "run"])
        assert isinstance(result.exception, ConfigError), result.exception
        assert "should be a section" in str(result.exception)


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), -1.0])
def test_a_scale_is_a_number_above_nothing(world, scale):
    with pytest.raises(ConfigError, match="trains nothing"):
        run_small_recipe(world, "run", scale=scale)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("general = 1, reviews = 0.5", "general = 1, reviews = 0.25", "general.mix.reviews was 0.5 and is now 0.25"),
        ('path = "general.txt"', 'path = "other.txt"', "general.texts.general.path was 'general.txt'"),
        ('title = "a small one"', 'title = "a"\ntokenizer_texts = ["general"]', "tokenizer_texts.reviews was there"),
        ('name = "general"', 'name = "first"', "stages.01-general was there and is now absent"),
        ("mask_rate = 0.3", "mask_rate = 0.2", "general.settings.objective.mask_rate was 0.3 and is now 0.2"),
        ("shard_mib = 0.01", "shard_mib = 0.02", "carry.shard_mib was 0.01"),
        # of stages that have not started, too
        (
            "epochs = 1, max_length = 32 }",
            "epochs = 2, max_length = 32 }",
            "stars.settings.training.max_epochs was 1.0",
        ),
        ('name = "decay"', 'name = "end"', "stages.03-decay was there and is now absent"),
        ("tokens = 2000 }", "tokens = 2000 }\nteacher = 'general'", "decay.teacher was '' and is now 'general'"),
    ],
)
def test_a_recipe_that_has_started_is_not_changed(world, old, new, problem):
    run_small_recipe(world, "run", last_stage=1)
    before = (world / "run" / "recipe.json").read_bytes()
    (world / "texts" / "other.txt").write_text((world / "texts" / "general.txt").read_text())
    assert old in TEXT
    (world / "recipe.toml").write_text(TEXT.replace(old, new))
    with pytest.raises(RunError, match=f"another recipe: .*{problem}") as caught:
        run_small_recipe(world, "run")
    assert "--out" in caught.value.hint
    assert (world / "run" / "recipe.json").read_bytes() == before


def test_a_finished_recipe_is_not_changed(world):
    run_small_recipe(world, "run")
    (world / "recipe.toml").write_text(TEXT.replace('name = "decay"', 'name = "end"'))
    with pytest.raises(RunError, match="another recipe"):
        run_small_recipe(world, "run")


def test_a_torn_recipe_is_refused_in_words(world):
    run_small_recipe(world, "run", last_stage=1)
    for content in ("{", "[]", '{"recipe": {}}'):
        (world / "run" / "recipe.json").write_text(content)
        for call in (lambda: run_small_recipe(world, "run"), lambda: resume(world / "run")):
            with pytest.raises(RunError, match=r"recipe\.json cannot be read"):
                call()
    (world / "run" / "recipe.json").unlink()
    assert run_small_recipe(world, "run") is not None


def test_a_card_claims_to_be_blind_only_to_what_every_stage_set_apart(world, tmp_path):
    (world / "recipe.toml").write_text(
        TEXT.replace("tokens = 2000 }", 'tokens = 2000 }\ndata = { exclude_eval_texts_of = ["second.tsv"] }')
    )
    write_labelled(world / "texts" / "second.tsv", 40, seed=8)
    run_small_recipe(world, "run")
    package(str(world / "run"), "xx", tmp_path / "bases")
    assert "Never read" not in (tmp_path / "bases" / "xx" / "card.md").read_text()
    (world / "recipe.toml").write_text(TEXT)
    run_small_recipe(world, "other")
    package(str(world / "other"), "yy", tmp_path / "bases")
    assert (
        "Never read: the validation and test texts of target.tsv" in (tmp_path / "bases" / "yy" / "card.md").read_text()
    )


def test_a_base_without_its_description_or_list_of_files_is_refused(world, tmp_path, monkeypatch):
    run_small_recipe(world, "run")
    done = tmp_path / "bases" / "xx"
    package(str(world / "run"), "xx", tmp_path / "bases")
    saved = {name: (done / name).read_text() for name in ("base.json", "checksums.json")}
    monkeypatch.setenv("HEADSTART_BASES", str(tmp_path / "bases"))
    for name, content in (
        ("base.json", None),
        ("checksums.json", "{}"),
        ("checksums.json", "null"),
        ("checksums.json", None),
    ):
        (done / name).unlink() if content is None else (done / name).write_text(content)
        result = CliRunner().invoke(app, ["evaluate", str(done), str(world / "texts" / "general.txt")])
        assert isinstance(result.exception, RunError), (name, content, result.output, result.exception)
        (done / name).write_text(saved[name])
    for content in ("{}", "null", "{"):
        (done / "base.json").write_text(content)
        listed = CliRunner().invoke(app, ["models"])
        assert listed.exit_code == 0
        assert "en-tiny" in listed.output
        assert "warning:" in listed.stderr
    (done / "base.json").write_text(saved["base.json"])
    (done / "card.md").unlink()
    assert isinstance(CliRunner().invoke(app, ["models", "xx"]).exception, RunError)
    assert json.loads(CliRunner().invoke(app, ["models", "en-tiny", "--json"]).stdout)["name"] == "en-tiny"


def test_what_is_spelt_out_is_no_change_and_another_teacher_is(world):
    run_small_recipe(world, "run", last_stage=1)
    spelt = TEXT.replace('name = "general"\n', 'name = "general"\nkind = "pretrain"\nunlabelled = []\n')
    (world / "recipe.toml").write_text(spelt)
    run_small_recipe(world, "run", last_stage=1)
    distilled = spelt.replace("tokens = 2000 }", "tokens = 2000 }\nteacher = 'general'")
    (world / "recipe.toml").write_text(distilled)
    run_small_recipe(world, "distilled")
    (world / "distilled" / "run.json").unlink()  # as if it had stopped in its last stage
    other = {"decay": {"teacher": str(world / "distilled" / "stages" / "01-general")}}
    with pytest.raises(RunError, match=r"another recipe: stages\.03-decay\.teacher was 'general'"):
        run_small_recipe(world, "distilled", settings=other)
    assert run_small_recipe(world, "distilled") is not None


def test_a_recipe_that_another_trains_keeps_its_own_words(world, monkeypatch):
    monkeypatch.setattr("headstart.workflows.run_dir.LOCK_TIMEOUT", 0.1)
    run_small_recipe(world, "run", last_stage=1)
    (world / "recipe.toml").write_text(TEXT.replace("tokens = 2000 }", "tokens = 3000 }"))
    with RunDir(world / "run"), pytest.raises(RunError, match="another process"):
        run_small_recipe(world, "run")
    assert "max_tokens = 2000" in json.loads((world / "run" / "recipe.json").read_text())["text"]


def test_where_a_stage_is_trained_is_decided_when_it_starts(world):
    text = TEXT.replace("training = { max_tokens = 2000 }", 'training = { max_tokens = 2000, device = "cuda" }')
    (world / "recipe.toml").write_text(text)
    assert run_small_recipe(world, "run", last_stage=1) is None
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="cuda"):
            run_small_recipe(world, "run")
    assert run_small_recipe(world, "run", settings={"decay": {"training.device": "cpu"}}) is not None


def test_a_reader_and_a_run_with_its_tokenizer_teach_together(world):
    run_small_recipe(world, "other", last_stage=1)
    outside = world / "other" / "stages" / "01-general"
    text = TEXT.replace("tokens = 2000 }", f"tokens = 2000 }}\nteacher = 'general, {outside}'")
    (world / "recipe.toml").write_text(text)
    assert run_small_recipe(world, "run", last_stage=1) is None
    assert run_small_recipe(world, "run") is not None


def test_a_card_goes_by_what_was_set_and_not_by_the_recipe_alone(world, tmp_path):
    run_small_recipe(world, "run", settings={"general": {"data.exclude_eval_texts_of": []}})
    package(str(world / "run"), "xx", tmp_path / "bases")
    assert "Never read" not in (tmp_path / "bases" / "xx" / "card.md").read_text()
