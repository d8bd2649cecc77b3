"""A large corpus, prepared by all cores and trained on: megabytes a second a core, and memory at three sizes.

    python benchmarks/speed_cpu_large.py $DATA/fr-corpus [--megabytes 1000] [--steps 300] [--cores N]

The text is made in a temporary folder (about twice the corpus on disk, removed afterwards) from what it is given: sentences
are dealt anew into documents, again and again, so that no document comes twice although sentences do. A tenth, three
tenths and all of it are prepared by `headstart tokenize --shard I/N`, a process a core; then `tiny` is trained on each for a few
hundred steps in a fresh process. Writes speed-cpu-large.{md,json}.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import Sheet, number, options, reached
from speed_cpu_prepare import TARGET, VOCABULARY, text_of

SHARES = (0.1, 0.3, 1.0)
BASE = 60  # megabytes of real text at most, whose sentences are dealt
SENTENCES = 6  # of a document
MIB = 2**20


def make_texts(data: str, folder: Path, sizes: list[int]) -> list[Path]:
    """Files of so many megabytes, a document a line, each the beginning of the next."""
    text_of(data, min(BASE, sizes[-1]), folder / "base.txt")
    sentences = re.split(r"(?<=[.!?…]) +|\n", (folder / "base.txt").read_text("utf-8"))
    sentences = [sentence for sentence in sentences if sentence]
    paths = [folder / f"{size}.txt" for size in sizes]
    chance, at = random.Random(0), len(sentences)
    written = 0
    handles = [open(path, "w", encoding="utf-8") for path in paths]  # noqa: SIM115 closed below
    while written < sizes[-1] * 10**6:
        if at >= len(sentences):
            chance.shuffle(sentences)
            at = 0
        line = " ".join(sentences[at : at + SENTENCES]) + "\n"
        for handle, size in zip(handles, sizes, strict=True):
            if written < size * 10**6:
                handle.write(line)
        written, at = written + len(line.encode()), at + SENTENCES
    for handle in handles:
        handle.close()
    return paths


def own_memory() -> int:
    """Bytes of this process that are no pages of files, which the system takes back when it needs them."""
    lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def prepare_child(file: str, tokenizer: str, number: str, count: str) -> None:
    """Prepare one share, and tell processor seconds and the peak."""
    from headstart.training.runtime import peak_memory
    from headstart.workflows.pretrain import prepare_corpora

    settings = {"data": {"document_separator": "line"}, "tokenizer": {"type": tokenizer}}
    start = time.process_time()
    prepare_corpora([file], share=(int(number), int(count)), settings=settings)
    print(json.dumps({"seconds": time.process_time() - start, "bytes": peak_memory()}))


def train_child(file: str, tokenizer: str, out: str, steps: str) -> None:
    """Train `tiny` on the prepared text and print the peak, with and without pages of files."""
    from headstart.training.runtime import peak_memory
    from headstart.workflows.pretrain import pretrain

    held: list[int] = []
    settings = {
        "data": {"document_separator": "line"},
        "tokenizer": {"type": tokenizer},
        "training": {"max_steps": int(steps), "save_minutes": None},
    }
    pretrain([file], out, settings=settings, on_event=lambda event: held.append(own_memory()))
    print(json.dumps({"bytes": peak_memory(), "own": max(held), "events": len(held)}))


CHILDREN: dict[str, Callable[..., None]] = {"prepare": prepare_child, "train": train_child}


def start(cache: Path, *words: object, one_core: bool = False) -> "subprocess.Popen[str]":
    """A fresh process for a part of the work."""
    alone = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **(alone if one_core else {}), "HEADSTART_CACHE": str(cache)}
    command = [sys.executable, __file__, "--child", "|".join(map(str, words)), "-"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def result_of(process: "subprocess.Popen[str]") -> dict[str, float]:
    """The output of a part of the work when it has ended."""
    out, error = process.communicate()
    if process.returncode:
        raise SystemExit(f"a part failed:\n{error[-2000:]}")
    return json.loads(out.strip().splitlines()[-1])


def measure(path: Path, tokenizer: Path, cores: int, steps: int) -> dict[str, Any]:
    """Prepare one file by all cores, then train on it."""
    megabytes = path.stat().st_size / 1e6
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        began = time.monotonic()
        shares = [start(Path(place), "prepare", path, tokenizer, share, cores, one_core=True) for share in range(cores)]
        found = [result_of(share) for share in shares]
        wall = time.monotonic() - began
        trained = result_of(start(Path(place), "train", path, tokenizer, Path(place) / "run", steps))
    return {
        "megabytes": megabytes,
        "wall": wall,
        "seconds": sum(share["seconds"] for share in found),
        "bytes": max(share["bytes"] for share in found),
        "trained": trained,
    }


def main() -> None:
    """Measure and write."""
    began = time.monotonic()
    words = options(__doc__, data=None, megabytes=1000, steps=300, cores=os.cpu_count() or 1, child="")
    if words.child:
        name, *own = words.child.split("|")
        CHILDREN[name](*own)
        return
    from headstart.config import DataConfig, TokenizerConfig
    from headstart.data.documents import open_documents
    from headstart.data.tokenizer_training import sample, train_tokenizer

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        paths = make_texts(words.data, folder, [max(1, round(words.megabytes * share)) for share in SHARES])
        documents = open_documents(str(folder / "base.txt"), DataConfig(document_separator="line"))
        train_tokenizer(sample(documents, 5_000_000), TokenizerConfig(vocab_size=VOCABULARY)).save(folder / "tokenizer")
        found = [measure(path, folder / "tokenizer", words.cores, words.steps) for path in paths]
    sheet = Sheet("speed-cpu-large", "A large corpus, prepared and trained on", WHAT)
    head = ["MB of text", "seconds", "MB a second, a core", "by the clock", "MiB at the peak of a process"]
    lines = [
        [number(one["megabytes"]), f"{one['wall']:.1f}", number(one["megabytes"] / one["seconds"]),
         number(one["megabytes"] / one["wall"] / words.cores), f"{one['bytes'] / MIB:,.0f}"] for one in found
    ]  # fmt: skip
    sheet.tables.append((f"Preparing by {words.cores} processes", head, lines))
    head = ["MB of text", "MiB at the peak, with pages of files", "MiB at the peak, its own"]
    lines = [
        [number(one["megabytes"]), *(f"{one['trained'][key] / MIB:,.0f}" for key in ("bytes", "own"))] for one in found
    ]
    sheet.tables.append((f"Training `tiny` on it for {words.steps} steps", head, lines))
    last = found[-1]
    sheet.notes.append(f"MB a second a core at the last size: {reached(last['megabytes'] / last['seconds'], TARGET)}.")
    sheet.rows = {"sizes": found, "cores": words.cores, "steps": words.steps, "target": TARGET}
    sheet.write(words.out, began)


WHAT = f"""The text is made: sentences of at most {BASE} MB of real French text, dealt anew into documents of {SENTENCES} sentences in a shuffled order until the size
is reached, so documents differ and words repeat more than in as much new text. MB a second a core counts processor seconds of all processes (`headstart
prepare --shard`, each of which reads all of the text and splits its share; the fingerprint of the file is counted, loading Python is not); by the clock counts all, loading too. Training reads
the tokens from mapped files: pages of those are the system's, which takes them back when it needs them, so the process's own memory (RssAnon, looked at on every
event of the training) is given beside the whole (VmHWM)."""


if __name__ == "__main__":
    main()
