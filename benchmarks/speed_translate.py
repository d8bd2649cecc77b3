"""How fast translations are written: headstart, transformers and CTranslate2 with the same weights, on a CPU.

    python benchmarks/speed_translate.py [--run RUN --file FILE] [--preset PRESET] [--lines N] [--batches 1 32] [--threads N]
    python benchmarks/speed_translate.py --run RUN --file FILE --whole

With a run, its translations of FILE end where the model ends them, and the share of equal ones is reported. Without one a translator
of PRESET's shape is made up, and every translation has 30 tokens, so that all do the same work. Lines one at a time are
fewer. With --whole a file is translated from lines to lines by each system in its own best way: headstart by its `translate`, the
others in batches of several sizes, of lines of like length and as the lines come. Systems run alternately, and time is that of the
processor, which other work on the machine disturbs least. Writes benchmarks/results/speed-translate.{md,json}, with a run
speed-translate-run, of whole files speed-translate-file.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

import headstart as hs
from headstart.batch import EncodedExample, TextLoader
from headstart.generation.beam_search import Beam, beam_search
from headstart.generation.generate import Rules, source_batch
from headstart.inference.translate import Translator, open_translator

RESULTS = Path(__file__).parent / "results"
FIXED, LONGER = 30, 50
HIDDEN = ("systems", "run", "file", "whole", "preset")  # options that the report shows elsewhere
ONE_BY_ONE = 12  # lines translated one at a time
Way = Callable[[int, float], list[list[int]]]  # width and length penalty -> tokens of each translation


def made_up(folder: Path, preset: str, lines: int) -> tuple[Path, list[str]]:
    """A translator of the preset's shape that has learnt nothing, and lines for it."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(6000)]

    def text() -> str:
        return " ".join(words[int(len(words) * chance.random() ** 2)] for _ in range(chance.randint(4, 24)))

    (folder / "pairs").mkdir()
    for split, count in (("train", 3000), ("valid", 20)):
        for language in ("one", "two"):
            (folder / "pairs" / f"{split}.{language}").write_text("".join(f"{text()}\n" for _ in range(count)))
    settings = {
        "training": {"max_steps": 1, "tokens_per_batch": 512, "eval_subset_size": 1, "device": "cpu"},
        "objective": {"metric_for_best_model": "loss"},
        "tokenizer": {"vocab_size": 8000},
    }
    hs.finetune("scratch", str(folder / "pairs"), folder / "run", pair="one-two", preset=preset, settings=settings)
    return folder / "run", [text() for _ in range(lines)]


class Systems:
    """The three systems over the same sources, sorted by length into the same batches."""

    def __init__(
        self,
        run: Path,
        folder: Path,
        lines: list[str],
        batch: int,
        threads: int,
        fixed: int | None,
        is_sorted: bool = True,
    ):
        folder.mkdir(exist_ok=True)
        self.lines = lines = lines[:ONE_BY_ONE] if batch == 1 else lines
        self.translator: Translator = open_translator(str(run), {"training": {"device": "cpu"}})
        tokenizer = self.translator.source_tokenizer
        self.rows = [tokenizer.add_special_tokens(ids, 512) for ids in tokenizer.encode(lines)]
        loader = TextLoader([EncodedExample(row) for row in self.rows], 10**9, batch, shuffled=False)
        self.batches = [numbers.tolist() for numbers in loader.batches(0)]
        if not is_sorted:
            every = range(len(lines))
            self.batches = [list(every[at : at + batch]) for at in range(0, len(lines), batch)]
        self.batch, self.threads, self.fixed = batch, threads, fixed
        self.folder, self.run = folder, run
        self.last = self.translator.tokenizer.eos_id
        self.banned = tuple(sorted(self.translator.tokenizer.special_ids - {self.last}))

        self.most = fixed or max(map(len, self.rows)) + LONGER  # one limit for all, which all systems know

    def ours(self) -> Way:
        tokenizer = self.translator.tokenizer

        def write(width: int, penalty: float) -> list[list[int]]:
            found: dict[int, list[int]] = {}
            for numbers in self.batches:
                batch = source_batch([self.rows[number] for number in numbers], tokenizer.pad_id, tokenizer.bos_id)
                rules = Rules(self.last, self.most, self.fixed or 0, self.banned)
                best = beam_search(self.translator.decoder, batch, rules, Beam(width, 1, penalty, is_scored=False))
                found.update({number: each[0].tokens for number, each in zip(numbers, best, strict=True)})
            return [found[number] for number in range(len(self.rows))]

        return write

    def transformers(self) -> Way:
        from transformers import AutoModelForSeq2SeqLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        hs.export(str(self.run), "transformers", self.folder / "marian")
        model = AutoModelForSeq2SeqLM.from_pretrained(self.folder / "marian").eval()

        @torch.inference_mode()
        def write(width: int, penalty: float) -> list[list[int]]:
            found: dict[int, list[int]] = {}
            for numbers in self.batches:
                batch = source_batch([self.rows[number] for number in numbers], self.translator.tokenizer.pad_id, 0)
                given = {"min_new_tokens": self.most} if self.fixed else {}
                tokens = model.generate(
                    input_ids=batch.source, attention_mask=batch.source_attention_mask.long(), num_beams=width,
                    do_sample=False, length_penalty=penalty, max_new_tokens=self.most, **given,
                )  # fmt: skip
                found.update(zip(numbers, (self._inner(row[1:]) for row in tokens.tolist()), strict=True))
            return [found[number] for number in range(len(self.rows))]

        return write

    def ctranslate2(self) -> Way:
        import ctranslate2

        hs.export(str(self.run), "ctranslate2", self.folder / "ct2")
        engine = ctranslate2.Translator(
            str(self.folder / "ct2"), compute_type="float32", inter_threads=1, intra_threads=self.threads
        )
        names = json.loads((self.folder / "ct2" / "shared_vocabulary.json").read_text("utf-8"))
        numbers = {name: number for number, name in enumerate(names)}
        texts = [[names[token] for token in row] for row in self.rows]

        def write(width: int, penalty: float) -> list[list[int]]:
            found = engine.translate_batch(
                texts, max_batch_size=self.batch, beam_size=width, length_penalty=penalty,
                max_decoding_length=self.most, min_decoding_length=self.fixed or 1,
                suppress_sequences=[[names[number]] for number in self.banned],
            )  # fmt: skip
            return [[numbers[name] for name in each.hypotheses[0]] for each in found]

        return write

    def _inner(self, tokens: list[int]) -> list[int]:
        return tokens[: tokens.index(self.last)] if self.last in tokens else tokens


Key = TypeVar("Key")
Written = TypeVar("Written")


def interleaved(
    ways: Mapping[Key, Callable[[int, float], Written]], width: int, words: argparse.Namespace
) -> tuple[dict[Key, Written], dict[Key, list[float]]]:
    """What each way writes, and its processor seconds in each of the rounds, in which the ways alternate."""
    found = {key: way(width, words.penalty) for key, way in ways.items()}  # and all is warm
    times: dict[Key, list[float]] = {key: [] for key in ways}
    for _ in range(words.repeats):
        for key, way in ways.items():
            start = time.process_time()
            way(width, words.penalty)
            times[key].append(time.process_time() - start)
    return found, times


def measure(systems: Systems, words: argparse.Namespace) -> list[dict[str, object]]:
    """Processor seconds of each system at each width, alternately: the least, and the median of the rounds' ratios."""
    ways = {name: getattr(systems, name)() for name in words.systems}
    rows: list[dict[str, object]] = []
    for width in (5, 1):
        found, times = interleaved(ways, width, words)
        for name in ways:
            row = {"system": name, "beam": width, "batch": systems.batch, "lines": len(found[name])}
            row["tokens"] = sum(map(len, found[name]))
            rows.append(row | compared(times[name], times["ours"], found[name], found["ours"]))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def from_lines(systems: Systems, way: Way) -> Callable[[int, float], list[str]]:
    """A way of writing tokens as one from lines to lines, so that all are timed over the same work."""
    translator = systems.translator

    def write(width: int, penalty: float) -> list[str]:
        translator.source_tokenizer.encode(systems.lines)
        return [translator.tokenizer.decode(tokens) for tokens in way(width, penalty)]

    return write


def measure_whole(run: Path, folder: Path, lines: list[str], words: argparse.Namespace) -> list[dict[str, object]]:
    """Processor seconds for a whole file, of `headstart translate` and of the others at several batch sizes."""
    ways: dict[tuple[str, str], Callable[[int, float], list[str]]] = {}
    translator = open_translator(str(run), {"training": {"device": "cpu"}})
    ways["ours", "its own"] = lambda width, penalty: [
        each.text for each in hs.translate(translator, lines, beam=width, length_penalty=penalty, scored=False)
    ]
    for size in words.batches:
        systems = Systems(run, folder / f"of-{size}", lines, size, words.threads, None)
        for name in words.systems[1:]:
            ways[name, f"{size}, of like length"] = from_lines(systems, getattr(systems, name)())
        mixed = Systems(run, folder / f"as-{size}", lines, size, words.threads, None, is_sorted=False)
        if "transformers" in words.systems:
            ways["transformers", f"{size}, as they come"] = from_lines(mixed, mixed.transformers())
    rows: list[dict[str, object]] = []
    for width in (5, 1):
        found, times = interleaved(ways, width, words)
        for key in ways:
            row = {"beam": width, "system": key[0], "batch": key[1], "lines": len(lines)}
            rows.append(row | compared(times[key], times["ours", "its own"], found[key], found["ours", "its own"]))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def compared(
    times: list[float], ours: list[float], found: Sequence[object], wanted: Sequence[object]
) -> dict[str, object]:
    """What the rounds say of a system beside headstart."""
    ratios = np.array(times) / np.array(ours)
    alike = np.mean([one == other for one, other in zip(found, wanted, strict=True)])
    return {
        "seconds": min(times), "times_ours": float(np.median(ratios)), "low": float(ratios.min()),
        "high": float(ratios.max()), "alike": float(alike),
    }  # fmt: skip


def versions() -> str:
    """What was measured."""
    names = ("torch", "transformers", "ctranslate2")
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def write(rows: list[dict[str, object]], words: argparse.Namespace, what: str) -> None:
    from headstart.training.runtime import Runtime
    from headstart.workflows.run_dir import commit

    names = {"ours": "headstart", "transformers": "transformers", "ctranslate2": "CTranslate2"}
    lines = [
        f"| {row['batch']} | {row['beam']} | {names[str(row['system'])]} | {row['seconds']:.2f} | {row.get('tokens', '')} | "
        f"{row['times_ours']:.2f} ({row['low']:.2f} to {row['high']:.2f}) | {row['alike']:.0%} |"
        for row in rows
    ]
    machine = Runtime(torch.device("cpu"), torch.float32).describe()
    name = f"speed-translate{'-file' if words.whole else '-run' if words.run else ''}"
    how = (
        "each system with its batches as stated"
        if words.whole
        else "the same batches of sources of like length for all"
    )
    text = f"""# Speed of translating

| | |
|---|---|
| command | `python benchmarks/speed_translate.py {words.shown}` |
| commit | {commit()} |
| machine | {machine}; other work was on it: read the ratios, not the seconds |
| versions | {versions()} |
| what | {what}; {how}; one at a time, {ONE_BY_ONE} lines |
| time | of the processor; seconds are the least of {words.repeats} alternating rounds |

"times headstart's" says how many times as long a system takes: the middle of the rounds, the least and the most; above 1
headstart is faster. "alike" is the share of translations that are headstart's, token for token.

| at once | beam | system | seconds | tokens | times headstart's | alike |
|---|---|---|---|---|---|---|
{chr(10).join(lines)}
"""
    (RESULTS / f"{name}.md").write_text(text, "utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run")
    parser.add_argument("--file")
    parser.add_argument("--preset", default="translate-small")
    parser.add_argument("--lines", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--penalty", type=float, default=0.0)
    parser.add_argument("--systems", nargs="+", default=["ours", "transformers", "ctranslate2"])
    parser.add_argument("--whole", action="store_true")
    words = parser.parse_args()
    shown = {name: value for name, value in vars(words).items() if name not in ("systems", "run", "file", "whole")}
    shown["batches"] = " ".join(map(str, words.batches))
    words.shown = " ".join(f"--{name} {value}" for name, value in shown.items())
    torch.set_num_threads(words.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if words.run:
            run = Path(words.run)
            lines = Path(words.file).read_text("utf-8").splitlines()[: words.lines]
            what = f"{len(lines)} lines, translated to their end"
            words.shown = f"--run {run.name} --file FILE{' --whole' if words.whole else ''} {words.shown}"
        else:
            run, lines = made_up(folder, words.preset, words.lines)
            words.shown = f"--preset {words.preset} {words.shown}"
            what = f"a translator of the shape of `{words.preset}`, {len(lines)} lines, {FIXED} tokens each"
        body = open_translator(str(run)).decoder.backbone.config
        what += f"; {body.num_layers} + {body.num_decoder_layers or body.num_layers} layers of width {body.hidden_size}"
        rows: list[dict[str, object]] = []
        if words.whole:
            write(measure_whole(run, folder, lines, words), words, what)
            return
        for size in words.batches:
            place, fixed = folder / f"of-{size}", None if words.run else FIXED
            rows += measure(Systems(run, place, lines, size, words.threads, fixed), words)
        write(rows, words, what)


if __name__ == "__main__":
    main()
