"""How fast a causal model continues a prompt: with a cache, without one, and in transformers.

    python benchmarks/speed_generate.py [--preset PRESET] [--prompt N] [--tokens N] [--batches 1 8] [--threads N]

The model is made up: a body of PRESET's shape with a causal head, and its counterpart as transformers' Llama with the same weights
(headstart export). All decode N tokens greedily and must write the same. They run alternately, and time is
that of the processor, which other work on the machine disturbs least. Writes benchmarks/results/speed-generate.{md,json}.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

import headstart as hs
from headstart.batch import Batch
from headstart.generation.generate import ModelDecoder, Rules, decode, prompt_batch
from headstart.inference.loaded_model import load_model

RESULTS = Path(__file__).parent / "results"
Way = Callable[[Batch, int], list[list[int]]]


def make_run(folder: Path, preset: str) -> Path:
    """A base of the preset's shape that has read one batch."""
    chance = np.random.default_rng(0)
    words = ["".join(chance.choice(list("abcdefghijklmnopqrstuvwxyz"), chance.integers(2, 9))) for _ in range(3000)]
    lines = [" ".join(words[int(3000 * spot**2)] for spot in chance.random(30)) for _ in range(3000)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    settings = {
        "objective": {"name": "causal-lm"},
        "training": {"max_steps": 1, "tokens_per_batch": 512, "device": "cpu"},
        "tokenizer": {"vocab_size": 8000},
    }
    return hs.pretrain([str(folder / "text.txt")], folder / "run", preset=preset, settings=settings).path


def over_a_cache(model: torch.nn.Module, last: int) -> Way:
    decoder = ModelDecoder(model)
    return lambda batch, count: [text.tokens for text in decode(decoder, batch, Rules(last, count, count))]


def read_again(model: torch.nn.Module, last: int) -> Way:
    """The same without a cache: every token by reading all of the text."""

    @torch.inference_mode()
    def write(batch: Batch, count: int) -> list[list[int]]:
        tokens = batch.tokens
        weight, _ = model.heads["lm"].projection(model.backbone.table)
        for _ in range(count):
            hidden = model.backbone(Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), unpadded=True))
            scores = hidden[:, -1] @ weight.T
            scores[:, last] = -torch.inf
            tokens = torch.cat((tokens, scores.argmax(dim=-1, keepdim=True)), dim=1)
        return tokens[:, batch.tokens.shape[1] :].tolist()

    return write


def in_transformers(run: Path, folder: Path) -> Way:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hs.export(str(run), "transformers", folder / "llama")
    reference = AutoModelForCausalLM.from_pretrained(folder / "llama").eval()

    @torch.inference_mode()
    def write(batch: Batch, count: int) -> list[list[int]]:
        found = reference.generate(
            input_ids=batch.tokens, attention_mask=batch.attention_mask.long(), do_sample=False, max_new_tokens=count,
            min_new_tokens=count,
        )  # fmt: skip
        return found[:, batch.tokens.shape[1] :].tolist()

    return write


def measure(words: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    """Processor seconds of each way in alternating rounds; the least."""
    run = make_run(folder, words.preset)
    trained = load_model(str(run))
    model, last = trained.model(), trained.tokenizer.eos_id
    ways = {
        "over a cache": over_a_cache(model, last),
        "transformers": in_transformers(run, folder),
        "read again": read_again(model, last),
    }
    rows: list[dict[str, object]] = []
    for size in words.batches:
        chance = np.random.default_rng(size)
        given = prompt_batch([chance.integers(5, trained.tokenizer.size, words.prompt) for _ in range(size)], 0)
        found = {name: way(given, words.tokens) for name, way in ways.items()}  # and all is warm
        assert found["transformers"] == found["over a cache"] == found["read again"], "they write other texts"
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(words.repeats):
            for name, way in ways.items():
                start = time.process_time()
                way(given, words.tokens)
                times[name].append(time.process_time() - start)
        row: dict[str, object] = {"prompts": size, **{name: min(each) for name, each in times.items()}}
        for name in ("transformers", "read again"):
            ratios = np.array(times[name]) / np.array(times["over a cache"])
            row[f"{name} takes"] = [float(of(ratios)) for of in (np.median, np.min, np.max)]
        rows.append(row)
        print(json.dumps(rows[-1]), flush=True)
    return rows


def write(rows: list[dict], words: argparse.Namespace) -> None:
    from headstart.training.runtime import Runtime
    from headstart.workflows.run_dir import commit

    machine = Runtime(torch.device("cpu"), torch.float32).describe()
    others = ("transformers", "read again")
    lines = [
        f"| {row['prompts']} | {row['over a cache']:.2f} | {row['transformers']:.2f} | {row['read again']:.2f} | "
        + " | ".join("{:.1f} ({:.1f} to {:.1f})".format(*row[f"{name} takes"]) for name in others)
        + " |"
        for row in rows
    ]
    text = f"""# Speed of writing

| | |
|---|---|
| command | `python benchmarks/speed_generate.py --preset {words.preset} --prompt {words.prompt} --tokens {words.tokens} --batches {" ".join(map(str, words.batches))} --threads {words.threads} --repeats {words.repeats}` |
| commit | {commit()} |
| machine | {machine}; other work was on it: read the ratios, not the seconds |
| versions | torch {torch.__version__}, transformers {metadata.version("transformers")} |
| what | a causal body of the shape of `{words.preset}`, prompts of {words.prompt} tokens, {words.tokens} more, greedy; processor time, seconds are the least of {words.repeats} alternating rounds |

All three write the same tokens. The last two columns say how many times as long transformers and an uncached loop take:
the middle of the rounds, the least and the most.

| prompts at once | headstart, s | transformers, s | read again, s | transformers takes | read again takes |
|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    (RESULTS / "speed-generate.md").write_text(text, "utf-8")
    (RESULTS / "speed-generate.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    words = parser.parse_args()
    torch.set_num_threads(words.threads)
    with tempfile.TemporaryDirectory() as folder:
        write(measure(words, Path(folder)), words)


if __name__ == "__main__":
    main()
