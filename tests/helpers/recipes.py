"""A small recipe over synthetic texts, and functions to run and interrupt it."""

import random

from headstart.training.callbacks import Note
from headstart.workflows.recipe import run_recipe
from tests.helpers.datasets import BAD, GOOD, review, write_corpus, write_labelled

TEXT = """
title = "a small one"
preset = "tiny"

[model]
num_layers = 1
hidden_size = 16
num_heads = 2
intermediate_size = 24
max_position_embeddings = 64

[tokenizer]
type = "bpe"
vocab_size = 300

[objective]
name = "masked-lm"
mask_rate = 0.3

[training]
seed = 4
max_length = 32
tokens_per_batch = 256
save_steps = 3

[data]
deduplicate = true
exclude_eval_texts_of = ["target.tsv"]

[carry]
shard_mib = 0.01

[texts.general]
path = "general.txt"

[texts.reviews]
path = "reviews.tsv"
text_column = "review_text"

[[stages]]
name = "general"
mix = { general = 1, reviews = 0.5 }
training = { max_steps = 8 }
lr_schedule = { name = "warmup-stable-decay", decay_ratio = 0.0 }

[[stages]]
name = "stars"
kind = "finetune"
table = "reviews.tsv"
data = { text_column = "review_text", label_column = "stars", label_map = { negative = ["0.5", "1", "2"], positive = ["4", "5"] } }
training = { max_epochs = 1, max_length = 32 }

[[stages]]
name = "decay"
mix = { reviews = 2, general = 0.2 }
training = { max_tokens = 2000 }
"""


def make_recipe(tmp_path):
    """Write a recipe and its texts; half of the rows of the target task are also among the reviews."""
    root = tmp_path / "texts"
    root.mkdir()
    write_corpus(root / "general.txt", 150)
    target = write_labelled(root / "target.tsv", 80, seed=3)
    rng = random.Random(5)
    rows = [(f"{stars:.1f}", review(rng, GOOD if stars > 3 else BAD)) for stars in (0.5, 1, 2, 3, 4, 5) * 25]
    rows += [("NA", line.split("\t")[0]) for line in target.read_text().splitlines()[1:41]]
    rows += [("5.0", line.split("\t")[0]) for line in target.read_text().splitlines()[41:]]
    extra = [(stars, review(rng, GOOD if stars == "5" else BAD)) for stars in ("1", "5") * 10]
    for name, content in {"reviews.tsv": rows, "more.tsv": extra}.items():
        (root / name).write_text("stars\treview_text\n" + "".join("\t".join(row) + "\n" for row in content))
    (tmp_path / "recipe.toml").write_text(TEXT)
    return tmp_path


def run_small_recipe(world, out, **more):
    return run_recipe(world / "recipe.toml", world / "texts", world / out, **more)


def interrupt_in(stage, step):
    stages = []

    def listen(event):
        if isinstance(event, Note) and event.text.startswith("stage "):
            stages.append(event.text)
        if len(stages) == stage and getattr(event, "step", 0) >= step:
            raise InterruptedError

    return listen


def outcome(run):
    """Return the bytes of the weights and of the training fingerprints."""
    names = [path.name for path in run.glob("weights-*")] + ["train_fingerprints.npy"]
    assert len(names) > 2
    return {name: (run / name).read_bytes() for name in names}
