"""How much faster is a masked decoder's one pass than predicting word by word? The loss is the same.

The loss of a translator on every token of random pairs is computed in three ways: all at once under the
causal mask; one token after the other over a cache; and one after the other with all earlier ones read again, as a
decoder without mask or cache would have to. Writes benchmarks/results/parallel-decoder.{md,json}.
    python benchmarks/parallel_decoder.py [--preset NAME] [--batch N] [--repeats N]
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from headstart.batch import Batch
from headstart.config import resolve
from headstart.models.backbones import EncoderDecoderBackbone
from headstart.models.heads import language_head
from headstart.models.model import Model, build_model
from headstart.objectives import make_objective
from headstart.workflows.plan import SyntheticData

RESULTS = Path(__file__).parent / "results"
LENGTHS = (8, 16, 32, 64)
Way = Callable[[Model, Batch], float]


def loss_at(model: Model, hidden: torch.Tensor, labels: torch.Tensor) -> float:
    """The summed loss of vectors (B, T, D) against the tokens that come next (B, T)."""
    weight, bias = language_head(model.heads).projection(model.backbone.table)
    scores = torch.nn.functional.linear(hidden, weight, bias)
    return float(torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum"))


def one_pass(model: Model, batch: Batch) -> float:
    """All tokens at once under the causal mask."""
    return loss_at(model, model.backbone(batch), batch.labels["lm"])


def over_a_cache(model: Model, batch: Batch) -> float:
    """Token after token, the earlier ones being remembered."""
    assert isinstance(model.backbone, EncoderDecoderBackbone)
    cache, total = model.backbone.new_cache(batch, batch.tokens.shape[1]), 0.0
    for place in range(batch.tokens.shape[1]):
        hidden = model.backbone.decode(batch.tokens[:, place : place + 1], cache)
        total += loss_at(model, hidden, batch.labels["lm"][:, place : place + 1])
    return total


def read_again(model: Model, batch: Batch) -> float:
    """Token after token, all earlier ones and the source read anew for each."""
    total = 0.0
    for place in range(1, batch.tokens.shape[1] + 1):
        prefix = replace(batch, tokens=batch.tokens[:, :place], attention_mask=batch.attention_mask[:, :place])
        total += loss_at(model, model.backbone(prefix)[:, -1:], batch.labels["lm"][:, place - 1 : place])
    return total


WAYS: dict[str, Way] = {"one masked pass": one_pass, "over a cache": over_a_cache, "read again": read_again}


@torch.inference_mode()
def measure(preset: str, batch: int, repeats: int, device: str) -> list[dict[str, float]]:
    """Seconds of each way and the largest relative difference of their losses, by length."""
    config = resolve("finetune", preset)
    objective = make_objective(config.objective)
    body, size = objective.resolve_backbone(config.model), config.tokenizer.vocab_size
    torch.manual_seed(0)
    model = build_model(body, size, objective.heads(body, size, 0)).eval().to(device)
    rows = []
    for length in LENGTHS:
        texts = SyntheticData(size, batch, length + 1, 0, size)
        pairs = objective.collate(texts.fetch(texts.batches(0)[0], 0), texts, torch.Generator()).to(device)
        found: dict[str, float] = {"length": length}
        losses = [way(model, pairs) for way in WAYS.values()]  # and all is warm
        for name, way in WAYS.items():
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                way(model, pairs)
                times.append(time.perf_counter() - start)
            found[name] = min(times)  # what others do on the machine only adds
        found["difference"] = max(abs(loss / losses[0] - 1) for loss in losses)
        print(json.dumps(found), flush=True)
        rows.append(found)
    return rows


def write(rows: list[dict[str, float]], words: argparse.Namespace) -> None:
    """The table and the numbers."""
    from headstart.training.runtime import Runtime
    from headstart.workflows.run_dir import commit

    machine = Runtime(torch.device(words.device), torch.float32).describe()
    lines = [
        f"| {row['length']:.0f} | {1000 * row['one masked pass']:.1f} | {1000 * row['over a cache']:.1f} | "
        f"{1000 * row['read again']:.1f} | {row['over a cache'] / row['one masked pass']:.1f} | "
        f"{row['read again'] / row['one masked pass']:.1f} | {row['difference']:.1e} |"
        for row in rows
    ]
    text = f"""# A masked decoder's one pass against word by word

| | |
|---|---|
| command | `python benchmarks/parallel_decoder.py --preset {words.preset} --batch {words.batch} --repeats {words.repeats} --device {words.device}` |
| commit | {commit()} |
| machine | {machine} |
| what | `{words.preset}`, {words.batch} random pairs of equal length, the loss of every target token, no gradients; best of {words.repeats} |

The three ways give the same loss (last column: largest relative difference). One pass is what training does; over a cache
is what writing a translation does; read again is what a decoder without either would do.

| tokens a side | one masked pass, ms | over a cache, ms | read again, ms | faster than over a cache | than read again | losses differ by |
|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    (RESULTS / "parallel-decoder.md").write_text(text, "utf-8")
    (RESULTS / "parallel-decoder.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="translate-tiny")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    words = parser.parse_args()
    write(measure(words.preset, words.batch, words.repeats, words.device), words)


if __name__ == "__main__":
    main()
