"""How fast a corpus is prepared: megabytes of text a second on one core, and the memory that takes.

    python benchmarks/speed_cpu_prepare.py $DATA/fr-corpus [--megabytes 60] [--repeats N]

Text of the corpus, decompressed once, is tokenised into shards in fresh processes: byte-pair encoding, 8,000 tokens, learnt
from it before the clock starts. `transformers` splits the same documents with the same tokenizer. Then half and a quarter of the text, to
see time grow with it and memory stand still. Writes speed-cpu-prepare.{md,json}.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import Rate, Sheet, number, options, reached

TARGET = 10.0
VOCABULARY = 8000


def text_of(folder: str, megabytes: int, path: Path) -> None:
    """Write the beginning of the corpus, a part of each file in turn."""
    from headstart.config import DataConfig
    from headstart.data.documents import open_documents

    files = sorted(Path(folder).glob("*.txt.xz")) + sorted(Path(folder).glob("*.tsv.xz"))
    share = megabytes * 10**6 // len(files)

    def lines() -> Iterator[str]:
        for file in files:
            written = 0
            for text in open_documents(str(file), DataConfig(document_separator="line")):
                yield " ".join(text.splitlines()) + "\n"
                written += len(text.encode()) + 1
                if written >= share:
                    break

    with open(path, "w", encoding="utf-8") as handle:
        handle.writelines(lines())


def child(words: object) -> None:
    """Prepare (or only split) a file by one core, and tell processor seconds and memory."""
    from headstart.config import DataConfig
    from headstart.data.documents import open_documents
    from headstart.data.token_cache import prepare
    from headstart.data.tokenizer_training import open_tokenizer
    from headstart.training.runtime import peak_memory

    file, tokenizer, way = getattr(words, "child").split("|")  # noqa: B009
    documents = open_documents(file, DataConfig(document_separator="line"))
    if way == "transformers":
        from transformers import PreTrainedTokenizerFast

        theirs = PreTrainedTokenizerFast(tokenizer_file=f"{tokenizer}/tokenizer.json")
        texts = list(documents)
        start = time.process_time()
        for at in range(0, len(texts), 1000):  # as `datasets` maps it in batches
            theirs(texts[at : at + 1000], add_special_tokens=False, return_attention_mask=False)
    else:
        ours = open_tokenizer(tokenizer)
        _ = documents.fingerprint
        start = time.process_time()
        with tempfile.TemporaryDirectory() as cache:
            prepare(documents, ours, Path(cache))
    print(json.dumps({"seconds": time.process_time() - start, "bytes": peak_memory()}))


def run(file: Path, tokenizer: Path, way: str) -> dict[str, float]:
    """One way over one file in a fresh process, on one core."""
    command = [sys.executable, __file__, "--child", f"{file}|{tokenizer}|{way}", "-"]
    one_core = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **one_core})
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure and write."""
    began = time.monotonic()
    words = options(__doc__, data=None, megabytes=60, repeats=3, child="")
    if words.child:
        child(words)
        return
    from headstart.config import DataConfig, TokenizerConfig
    from headstart.data.documents import open_documents
    from headstart.data.tokenizer_training import sample, train_tokenizer

    rates: dict[str, list[float]] = {"headstart": [], "transformers": []}
    growth = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sizes = [words.megabytes // 4, words.megabytes // 2, words.megabytes]
        for size in sizes:
            text_of(words.data, size, folder / f"{size}.txt")
        texts = sample(
            open_documents(str(folder / f"{sizes[0]}.txt"), DataConfig(document_separator="line")), 5_000_000
        )
        train_tokenizer(texts, TokenizerConfig(vocab_size=VOCABULARY)).save(folder)
        for _ in range(words.repeats):
            for way, file in (("headstart", sizes[-1]), ("transformers", sizes[0])):
                path = folder / f"{file}.txt"
                found = run(path, folder, way)
                rates[way].append(path.stat().st_size / 1e6 / found["seconds"])
        for size in sizes:
            path = folder / f"{size}.txt"
            found = run(path, folder, "headstart")
            growth.append({"megabytes": path.stat().st_size / 1e6, **found})
    found = {way: Rate.of(each) for way, each in rates.items()}
    own = found["headstart"].middle
    lines = [[way, rate.shown(), reached(own, TARGET) if way == "headstart" else f"headstart is faster by {own / rate.middle:.1f}"]
             for way, rate in found.items()]  # fmt: skip
    sheet = Sheet("speed-cpu-prepare", "Speed of preparing a corpus", WHAT)
    sheet.tables.append(("", ["way", "MB of text a second, a core", "note"], lines))
    grown = [
        [number(one["megabytes"]), f"{one['seconds']:.1f}", number(one["megabytes"] / one["seconds"]),
         f"{one['bytes'] / 2**20:,.0f}"] for one in growth
    ]  # fmt: skip
    sheet.tables.append(("Growth", ["MB of text", "seconds", "MB a second", "MiB at the peak"], grown))
    sheet.rows = {"rates": found, "growth": growth, "target": TARGET}
    sheet.write(words.out, began)


WHAT = """French text of many kinds, a document a line, to shards on disk: reading, hashing, splitting, framing and writing, in
processor seconds of one core; the median of interleaved repeats in fresh processes, with the lowest and the highest. `transformers` only splits
(its fast tokenizer in batches of 1,000, lists of ids), it writes nothing."""


if __name__ == "__main__":
    main()
