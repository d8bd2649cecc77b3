"""How fast a base is pretrained on a CPU: headstart, the course notebook's way, and transformers' Trainer.

    python benchmarks/speed_cpu_pretrain.py $DATA/cls-books-fr [--repeats N] [--only lab|tiny|small]

`lab`: a causal model of 50,001 tokens over the course's reviews, cut at 256 tokens. `tiny` and `small`: masked language
models over the same text in their own vocabulary. Counts real tokens a second. Writes speed-cpu-pretrain.{md,json}.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from bench import Sheet, ceiling, interleaved, number, options, rate_of, reached, steps_of
from peers import IGNORE, TrainerWay, bert, hidden_tokens, lab_gpt2, notebook_lm, pad_rows

from headstart.config import RunConfig, resolve
from headstart.data.corpus_loaders import BlockLoader
from headstart.data.datasets import load_dataset
from headstart.data.tokenizer import Tokenizer
from headstart.data.tokenizer_training import open_tokenizer, train_tokenizer
from headstart.models.model import build_model, count_parameters
from headstart.objectives import make_objective
from headstart.planning.workload import count_flops, make_workload
from headstart.training.runtime import seed_everything, start_runtime
from headstart.training.trainer import Trainer

PADDED = 16  # reviews in a batch of the course


@dataclass(frozen=True)
class Tokens:
    """A stream in memory."""

    tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def slice(self, start: int, stop: int) -> np.ndarray:
        """The tokens from `start` up to `stop`."""
        return self.tokens[start:stop]


def reviews(data: str, tokenizer: Tokenizer | None, config: RunConfig) -> tuple[Tokenizer, list[np.ndarray]]:
    """The training reviews as framed tokens of at most the preset's length."""
    texts = load_dataset(data, config.data).texts("train")
    tokenizer = tokenizer or train_tokenizer(texts, config.tokenizer)
    length = config.training.max_length
    return tokenizer, [tokenizer.add_special_tokens(ids, length) for ids in tokenizer.encode(texts)]


def ours(config: RunConfig, rows: list[np.ndarray], tokenizer: Tokenizer) -> Callable[[int], int]:
    """Steps of headstart's own loop over packed blocks of the rows."""
    objective = make_objective(config.objective)
    config = config.with_(
        {
            "model": objective.resolve_backbone(config.model).model_dump(),
            "training": {"max_steps": 10**6, "save_minutes": None},
        }
    )
    seed_everything(0)
    model = build_model(config.model, tokenizer.size, objective.heads(config.model, tokenizer.size, 0))
    training = config.training
    loader = BlockLoader(
        Tokens(np.concatenate(rows)), training.max_length, training.tokens_per_batch, 0, objective.lookahead
    )
    trainer = Trainer(model, objective, loader, tokenizer, config, start_runtime(training))
    parameters[config.preset] = count_parameters(model)

    return steps_of(trainer)


parameters: dict[str, int] = {}


def steps_at(way: Callable[[int], int], count: int) -> Callable[[], float]:
    """The rate of `count` steps, after one to warm up."""
    way(1)
    return lambda: rate_of(lambda: way(count))


def real_labels(batch: dict[str, torch.Tensor]) -> int:
    """Tokens with a loss in a causal model of transformers: all real ones but the first of each row."""
    return int((batch["labels"][:, 1:] != IGNORE).sum())


def lab(data: str, steps: int) -> dict[str, Callable[[], float]]:
    """The ways to train the lab's language model."""
    config = resolve("pretrain", "lab", {"training": {"tokens_per_batch": 2048, "precision": "float32"}})
    tokenizer, rows = reviews(data, open_tokenizer(data), config)
    wide = config.with_({"training": {"tokens_per_batch": 8192}})
    fast = config.with_({"training": {"precision": "bf16"}})
    theirs = [{"input_ids": row, "length": len(row)} for row in rows]
    stream = np.concatenate(rows)
    blocks = [{"input_ids": stream[at : at + 257]} for at in range(0, len(stream) - 257, 256)]
    padded = TrainerWay(
        lab_gpt2(tokenizer.size, "lm", tokenizer.pad_id), theirs, pad_rows(tokenizer.pad_id, False), PADDED
    )
    packed = TrainerWay(lab_gpt2(tokenizer.size, "lm", tokenizer.pad_id), blocks, pad_rows(tokenizer.pad_id, False), 8)
    return {
        "headstart": steps_at(ours(config, rows, tokenizer), 2 * steps),
        "(a) notebook": steps_at(notebook_lm(rows, tokenizer.size, tokenizer.pad_id), steps),
        "(b) Trainer": lambda: padded.rate(steps, real_labels),
        "(b) Trainer, packed by hand": lambda: packed.rate(steps, real_labels),
        "headstart, 8,192 tokens a step": steps_at(ours(wide, rows, tokenizer), 1),
        "headstart, bfloat16": steps_at(ours(fast, rows, tokenizer), 2 * steps),
    }


def masked(preset: str, batch: int, steps: int, data: str) -> dict[str, Callable[[], float]]:
    """The ways to train a masked language model, on blocks of equal length with no padding on either side."""
    plain = {"optimizer": {"name": "adamw"}, "training": {"precision": "float32", "tokens_per_batch": batch}}
    config = resolve("pretrain", preset, plain)
    tokenizer, rows = reviews(data, None, config)
    length = config.training.max_length
    stream = np.concatenate(rows)
    blocks = [{"input_ids": stream[at : at + length]} for at in range(0, len(stream) - length, length)]
    assert tokenizer.mask_id is not None
    collate = hidden_tokens(tokenizer.mask_id, tokenizer.size, float(config.objective.settings["mask_rate"]))
    trainer = TrainerWay(bert(tokenizer.size, config.model, length), blocks, collate, batch // length)
    parameters[f"{preset} BERT"] = count_parameters(trainer.model)
    return {
        "headstart": steps_at(ours(config, rows, tokenizer), steps),
        "(b) Trainer": lambda: trainer.rate(steps, lambda batch: batch["input_ids"].numel()),
        "headstart, Muon": steps_at(ours(config.with_({"optimizer": {"name": "muon"}}), rows, tokenizer), steps),
        "headstart, bfloat16": steps_at(
            ours(config.with_({"training": {"precision": "bf16"}}), rows, tokenizer), steps
        ),
    }


def flops_a_token(preset: str, vocabulary: int) -> float:
    """Operations of training on one token, by the plan's formulas."""
    config = resolve("pretrain", preset, {})
    return count_flops(make_workload(config, "cpu", "float32", vocabulary)).training


def main() -> None:
    """Measure and write."""
    began = time.monotonic()
    words = options(__doc__, data=None, repeats=3, only="")
    print("warming up", flush=True)
    sheet = Sheet("speed-cpu-pretrain", "Speed of pretraining on a CPU", WHAT)
    top = ceiling()
    jobs = {
        "lab": (lambda: lab(words.data, 1), 4.0, 50001),
        "tiny": (lambda: masked("tiny", 4096, 6, words.data), 2.0, 8000),
        "small": (lambda: masked("small", 4096, 1, words.data), 2.0, 16000),
    }
    for name, (make, target, vocabulary) in jobs.items():
        if words.only and words.only != name:
            continue
        found = interleaved(make(), words.repeats, 70)
        own = found["headstart"].middle
        flops = flops_a_token(name, vocabulary)
        lines = []
        for way, rate in found.items():
            ratio = own / rate.middle
            note = reached(ratio, target) if way in ("(a) notebook", "(b) Trainer") else f"{ratio:.2f}"
            share = ""
            if way.startswith("headstart"):
                limit = top.bfloat16 if "bfloat16" in way else top.float32
                share = f"{100 * rate.middle * flops / 1e9 / limit:.0f} %"
            lines.append([way, rate.shown(), note if way != "headstart" else "", share])
        title = f"`{name}`, {parameters[name]:,} parameters"
        sheet.tables.append((title, ["way", "real tokens a second", "headstart is faster by", "of the ceiling"], lines))
        sheet.rows[name] = {"target": target, "flops a token": flops, "ways": found}
        print(name, {way: number(rate.middle) for way, rate in found.items()}, flush=True)
    sheet.rows |= {"ceiling": top, "parameters": parameters}
    sheet.notes.append(top.shown())
    sheet.write(words.out, began)


WHAT = """Real tokens a second, padding not counted; the median of interleaved repeats, with the lowest and the highest.
Loss, text, dropout and precision (float32) are the same on all sides; rows that say bfloat16 stand apart. The last column is the
share of a large matrix product's rate, counting the operations of the plan's formulas alone.

`lab`: headstart reads packed blocks, 2,048 tokens a step, about as many as 16 reviews hold. (a) is torch's
nn.TransformerEncoder over padded batches of 16 reviews, full scores, Adam. (b) is a GPT-2 of the same size in the Trainer: padded batches of 16, the
fused AdamW, fused attention; the next row gives it packed blocks, which a user has to write.
`tiny` and `small`: 4,096 tokens a step in blocks without padding on both sides, AdamW on both sides; (b) is a BERT of the same width and depth,
its feed-forward part sized to the same number of weights."""


if __name__ == "__main__":
    main()
