"""How fast a classifier answers on a CPU: headstart and the pipeline of transformers, on equal weights; and how soon.

    python benchmarks/speed_cpu_predict.py $DATA/cls-books-fr [--preset tiny] [--texts N] [--repeats N]

Fine-tunes a classifier of PRESET for a few steps, exports it (`headstart export --to transformers`), and lets both read the
same reviews: one at a time, and all at once. Then starts `headstart predict` on one line of text, in a fresh process. Writes
speed-cpu-predict.{md,json}.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import Rate, Sheet, interleaved, options, rate_of, reached

import headstart as hs
from headstart.data.datasets import Example, load_dataset
from headstart.inference.classify import Classifier
from headstart.inference.loaded_model import load_model

TARGET, START = 2.0, 3.0
Answer = Callable[[Sequence[str]], list[str]]


def ours(run: Path) -> Answer:
    """Labels by headstart, the run in memory."""
    trained = load_model(str(run))
    classifier = Classifier(trained, {"training": {"precision": "float32"}})

    def answer(texts: Sequence[str]) -> list[str]:
        found = classifier.probabilities([Example(text) for text in texts])
        return [trained.info.classes[place] for place in found.argmax(axis=1)]

    return answer


def theirs(folder: Path, length: int, batch: int) -> Answer:
    """Labels by transformers' pipeline, the exported model in memory."""
    from transformers import pipeline
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    made = pipeline("text-classification", model=str(folder), device=-1)

    def answer(texts: Sequence[str]) -> list[str]:
        found = made(list(texts), batch_size=batch, truncation=True, max_length=length)
        return [one["label"] for one in found]

    return answer


def one_by_one(answer: Answer) -> Answer:
    """The same, a call for each text."""
    return lambda texts: [answer([text])[0] for text in texts]


def start_up(run: Path, folder: Path, repeats: int) -> Rate:
    """Seconds from the command to its answer, in fresh processes."""
    line = folder / "one.txt"
    line.write_text("Un livre magnifique, à lire sans attendre.\n", "utf-8")
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        command = [sys.executable, "-m", "headstart", "predict", str(run), str(line)]
        subprocess.run(command, check=True, capture_output=True, env=os.environ)
        taken.append(time.perf_counter() - start)
    return Rate.of(taken)


def main() -> None:
    """Measure and write."""
    began = time.monotonic()
    words = options(__doc__, data=None, preset="tiny", texts=256, repeats=5)
    config = {"training": {"max_steps": 3, "eval_subset_size": 16}}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = hs.finetune("scratch", words.data, folder / "run", preset=words.preset, settings=config).path
        hs.export(str(run), "transformers", folder / "theirs")
        info = load_model(str(run)).info
        texts = load_dataset(words.data, info.config.data).texts("valid")[: words.texts]
        length = info.config.training.max_length
        own = ours(run)
        pipes = {f"pipeline, batches of {size}": theirs(folder / "theirs", length, size) for size in (1, 8, 32)}
        answers = {name: way(texts) for name, way in {"headstart": own, **pipes}.items()}
        alike = {name: sum(map(str.__eq__, own_, answers["headstart"])) for name, own_ in answers.items()}
        few = texts[:64]

        def timed(answer: Answer, inputs: Sequence[str]) -> Callable[[], float]:
            return lambda: rate_of(lambda: len(answer(inputs)))

        single = interleaved(
            {
                "headstart": timed(one_by_one(own), few),
                "pipeline": timed(one_by_one(pipes["pipeline, batches of 1"]), few),
            },
            words.repeats,
        )
        bulk = interleaved(
            {"headstart": timed(own, texts)} | {name: timed(way, texts) for name, way in pipes.items()}, words.repeats
        )
        start = start_up(run, folder, words.repeats)
    best = max(rate.middle for name, rate in bulk.items() if name != "headstart")
    lines = [["one at a time", name, rate.shown(), ""] for name, rate in single.items()]
    lines += [["all at once", name, rate.shown(), f"{alike[name]} of {len(texts)}"] for name, rate in bulk.items()]
    ratios = {"one": single["headstart"].middle / single["pipeline"].middle, "bulk": bulk["headstart"].middle / best}
    sheet = Sheet("speed-cpu-predict", "Speed of prediction on a CPU", WHAT)
    sheet.tables.append(("", ["texts", "way", "texts a second", "labels like headstart's"], lines))
    soon = f"{start.shown()} s, wanted under {START:g} s"
    sheet.tables.append(
        (
            "",
            ["what", "found"],
            [
                ["one at a time, headstart is faster by", reached(ratios["one"], TARGET)],
                ["all at once, faster than the pipeline's best by", reached(ratios["bulk"], TARGET)],
                ["`headstart predict` on one line, start to answer", soon],
            ],
        )
    )
    sheet.rows = {"single": single, "bulk": bulk, "alike": alike, "ratios": ratios, "start-up": start}
    sheet.rows |= {"preset": words.preset, "texts": len(texts), "target": TARGET}
    sheet.write(words.out, began)


WHAT = """One classifier, exported, so that both sides hold the same weights and the same tokenizer; reviews cut at the
run's length. Tokenising is counted on both sides, loading on neither. Texts a second, the median of interleaved repeats with the lowest and the
highest. Both compute in float32. The pipeline is given several batch sizes and judged by its best."""


if __name__ == "__main__":
    main()
