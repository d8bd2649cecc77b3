"""Where a training step spends its time on a CPU, by torch's own profiler: the evidence for speed-cpu-limits.md.

    python benchmarks/profile_cpu.py [--only lab|small|classifier]

Real steps on made-up tokens, one thread, float32. Writes results/profile-cpu.{md,json}: each operation's own time as a share
of all, the largest first.
"""

import argparse
import json
import re
import time
from typing import Any

import torch
from bench import RESULTS, Sheet
from torch.profiler import ProfilerActivity, profile

from headstart.config import resolve
from headstart.workflows.plan import measure_steps

ADAMW = {"objective": {"name": "masked-lm"}, "optimizer": {"name": "adamw"}}  # as the peers of speed_cpu_pretrain.py
# name, job, preset, settings, texts, tokens of each, vocabulary, classes
SETTINGS = {
    "lab": ("language model `lab`, 50,001 tokens", "pretrain", "lab", {}, 16, 256, 50_001, 0),
    "small": ("masked language model `small`", "pretrain", "small", ADAMW, 16, 256, 16_000, 0),
    "classifier": ("classifier of `lab`, fine-tuning", "finetune", "lab", {}, 16, 128, 50_001, 2),
}
SHOWN = 12  # operations


def profiled(
    job: str, preset: str, settings: dict[str, Any], batch: int, length: int, vocabulary: int, classes: int
) -> dict[str, Any]:
    """Shares of the profiled steps by operation."""
    config = resolve(job, preset, settings, {"training": {"device": "cpu", "precision": "float32"}})
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        found = measure_steps(config, vocabulary, classes, batch, length, seconds=4.0)
    own = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    whole = sum(own.values())
    products = sum(spent for name, spent in own.items() if re.search(r"mm_?$", name))
    largest = sorted(own.items(), key=lambda item: -item[1])[:SHOWN]
    return {
        "steps": found.steps,
        "products": products / whole,
        "largest": [(name, spent / whole) for name, spent in largest],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=list(SETTINGS))
    chosen, began = parser.parse_args().only, time.perf_counter()
    torch.set_num_threads(1)
    sheet = Sheet(
        "profile-cpu",
        "Where a training step spends its time on a CPU",
        "Each operation's own time as a share of all that torch's profiler saw, over real steps on made-up tokens, one thread, "
        "float32, the building of the model and the first steps included. Behind [speed-cpu-limits](speed-cpu-limits.md).",
    )
    for key, (name, *words) in SETTINGS.items():
        if chosen not in (None, key):
            continue
        found = sheet.rows[key] = profiled(*words)
        lines = [[f"`{each}`", f"{share:.1%}"] for each, share in found["largest"]]
        lines.append(["**all matrix products**", f"**{found['products']:.1%}**"])
        sheet.tables.append((f"{name}: {found['steps']} steps", ["operation", "its own time"], lines))
    sheet.write(RESULTS, began)
    print(json.dumps({key: row["products"] for key, row in sheet.rows.items()}))


if __name__ == "__main__":
    main()
