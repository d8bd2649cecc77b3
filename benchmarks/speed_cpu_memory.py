"""How much memory language-model training takes at 50,001 tokens: headstart and the ways that write all scores.

    python benchmarks/speed_cpu_memory.py [--batch 16] [--length 256]

Each way runs two steps of the lab's model on random tokens in a fresh process, all at the same batch without padding, and
tells its peak. Writes speed-cpu-memory.{md,json}.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

from bench import Sheet, options, reached

VOCABULARY, PADDING = 50001, 1
TARGET = 3.0


def headstart(batch: int, length: int) -> None:
    """Steps of headstart's own loop."""
    from headstart.config import resolve
    from headstart.workflows.plan import measure_steps

    config = resolve("pretrain", "lab", {"training": {"precision": "float32"}})
    measure_steps(config, VOCABULARY, 0, batch, length, 0.0)


def notebook(batch: int, length: int) -> None:
    """(a): torch's encoder layers and all scores at once."""
    import numpy as np
    from peers import notebook_lm

    chance = np.random.default_rng(0)
    rows = [chance.integers(4, VOCABULARY, length + 1, dtype=np.int32) for _ in range(batch)]
    notebook_lm(rows, VOCABULARY, PADDING, batch)(2)


def trainer(batch: int, length: int) -> None:
    """(b): transformers' Trainer over GPT-2."""
    import numpy as np
    from peers import TrainerWay, lab_gpt2, pad_rows

    chance = np.random.default_rng(0)
    rows = [{"input_ids": chance.integers(4, VOCABULARY, length, dtype=np.int32)} for _ in range(4 * batch)]
    way = TrainerWay(lab_gpt2(VOCABULARY, "lm", PADDING), rows, pad_rows(PADDING, False), batch)
    way.rate(2, lambda batch: 1)


def nothing(batch: int, length: int) -> None:
    """torch loaded, and that is all."""
    import torch

    torch.ones(8) @ torch.ones(8)


WAYS: dict[str, Callable[[int, int], None]] = {
    "headstart": headstart,
    "(a) notebook": notebook,
    "(b) Trainer": trainer,
    "torch alone": nothing,
}


def peak(name: str, batch: int, length: int) -> int:
    """Bytes that a fresh process needed at most."""
    command = [sys.executable, __file__, "--child", name, "--batch", str(batch), "--length", str(length)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return int(done.stdout.split()[-1])


def main() -> None:
    """Measure and write."""
    began = time.monotonic()
    words = options(__doc__, batch=16, length=256, child="")
    if words.child:
        from headstart.training.runtime import peak_memory

        WAYS[words.child](words.batch, words.length)
        print(peak_memory())
        return
    found = {name: peak(name, words.batch, words.length) for name in WAYS}
    own, bare = found["headstart"], found["torch alone"]
    lines = []
    for name, size in found.items():
        ratio = reached(size / own, TARGET) if name.startswith("(") else ""
        lines.append([name, f"{size / 2**20:,.0f}", f"{(size - bare) / 2**20:,.0f}", ratio])
    sheet = Sheet("speed-cpu-memory", "Memory of language-model training at 50,001 tokens", WHAT)
    head = ["way", "MiB at the peak", "beyond torch itself", "times headstart's"]
    sheet.tables.append((f"{words.batch} rows of {words.length} tokens", head, lines))
    sheet.rows = {"bytes": found, "batch": words.batch, "length": words.length, "target": TARGET}
    sheet.write(words.out, began)


WHAT = """The peak of the whole process (VmHWM) over training steps of the lab's model in float32, the same batch on all sides,
no padding. (a) and (b) write a logit for every token of the vocabulary at every position, and their gradients; headstart never holds more than one chunk."""


if __name__ == "__main__":
    main()
