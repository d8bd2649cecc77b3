"""How near `headstart plan` comes: predicted against measured memory and time, over real training steps.

Each setting runs in a process of its own. Writes benchmarks/results/plan-<device>.md and .json.
    python benchmarks/plan_accuracy.py [--seconds S] [--only NAME]
On a machine that lacks our dependencies, put src and a folder with pydantic on PYTHONPATH.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
MIB = 2**20


@dataclass(frozen=True)
class Setting:
    name: str
    job: str
    preset: str
    batch: int
    length: int
    settings: dict[str, Any] = field(default_factory=dict)


ON_CPU = [
    Setting("lab LM", "pretrain", "lab", 8, 128),
    Setting("lab classifier", "finetune", "lab", 16, 256),
    Setting("lab classifier, short", "finetune", "lab", 16, 128),
    Setting("tiny MLM", "pretrain", "tiny", 64, 64),
    Setting("tiny MLM, longer", "pretrain", "tiny", 64, 256),
    Setting("tiny classifier", "finetune", "tiny", 16, 256),
    Setting("tiny MLM, AdamW", "pretrain", "tiny", 32, 128, {"optimizer": {"kind": "adamw"}}),
    Setting("small MLM", "pretrain", "small", 16, 128),
    Setting("small classifier", "finetune", "small", 4, 256),
]
ON_GPU = [
    Setting("lab LM", "pretrain", "lab", 32, 256),
    Setting("lab LM, large batch", "pretrain", "lab", 256, 256),
    Setting("lab classifier", "finetune", "lab", 64, 256),
    Setting("tiny MLM", "pretrain", "tiny", 64, 64),
    Setting("tiny MLM, large batch", "pretrain", "tiny", 1024, 128),
    Setting("small MLM", "pretrain", "small", 256, 256),
    Setting("small MLM, AdamW", "pretrain", "small", 128, 512, {"optimizer": {"kind": "adamw"}}),
    Setting("small MLM, float32", "pretrain", "small", 64, 256, {"training": {"precision": "float32"}}),
    Setting("small classifier", "finetune", "small", 32, 512),
    Setting(
        "768 wide MLM", "pretrain", "small", 64, 512,
        {"body": {"width": 768, "layers": 12, "attention_heads": 12, "feed_forward": 2048}},
    ),
]  # fmt: skip


def child(setting: Setting, seconds: float, known: dict[str, Any]) -> None:
    """Measure one setting, predict it, and print both as JSON."""
    from headstart.config import resolve
    from headstart.planning.plan import make_plan
    from headstart.workflows.measure import Measured, measure_steps
    from headstart.workflows.plan import this_machine

    config = resolve(setting.job, setting.preset, setting.settings)
    device = this_machine()
    plan = make_plan(config, device, batch=setting.batch, length=setting.length)
    if known:  # measured before: predict alone
        found = Measured(
            known["measured_seconds"], known["measured_bytes"], known["reserved_bytes"], known["steps"]
        )
    else:
        found = measure_steps(config, plan.load.vocabulary, 2, setting.batch, setting.length, seconds)
    on_gpu = device.kind == "cuda"
    print(
        json.dumps(
            {
                "name": setting.name,
                "device": device.name,
                "batch": setting.batch,
                "length": setting.length,
                "precision": plan.load.precision,
                "measured_bytes": found.peak_bytes,
                "predicted_bytes": plan.memory.tensors if on_gpu else plan.memory.peak,
                "reserved_bytes": found.reserved_bytes,
                "measured_seconds": found.seconds_per_step,
                "predicted_seconds": plan.duration.seconds,
                "steps": found.steps,
                "memory_moment": plan.memory.moment,
                "memory_parts": {part.name: part.bytes for part in plan.memory.parts},
                "time_parts": plan.duration.parts,
            }
        )
    )


def wait_until_idle(longest: float) -> None:
    """Wait for other processes to leave the cores alone: times measured beside them say nothing."""
    until = time.monotonic() + longest
    while time.monotonic() < until and Path("/proc/stat").exists():
        before = [int(word) for word in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:]]
        time.sleep(2)
        after = [int(word) for word in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:]]
        spent = [new - old for old, new in zip(before, after, strict=True)]
        if spent[3] >= 0.95 * sum(spent):
            return
    print("  other processes are busy: the next time is not to be trusted", file=sys.stderr)


def run(setting: Setting, seconds: float, known: dict[str, Any]) -> dict[str, Any]:
    """One setting in a fresh process."""
    command = [sys.executable, __file__, "--child", json.dumps(vars(setting)), "--seconds", str(seconds)]
    command += ["--known", json.dumps(known)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        print(f"{setting.name} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.strip().splitlines()[-1])


def row(found: dict[str, Any]) -> list[str]:
    memory = found["predicted_bytes"] / found["measured_bytes"] - 1
    seconds = found["predicted_seconds"] / found["measured_seconds"] - 1
    return [
        found["name"],
        f"{found['batch']} × {found['length']}",
        found["precision"],
        f"{found['measured_bytes'] / MIB:,.0f}",
        f"{found['predicted_bytes'] / MIB:,.0f}",
        f"{memory:+.1%}",
        f"{found['measured_seconds'] * 1e3:,.1f}",
        f"{found['predicted_seconds'] * 1e3:,.1f}",
        f"{seconds:+.0%}",
    ]


GROUPS = {
    "matrix and attention (divide)": ("matrices", "attention"),
    "score_bytes (multiply)": ("scores",),
    "passes (multiply)": ("element-wise",),
    "launch (multiply)": ("launches",),
}


def fit(found: list[dict[str, Any]], on_gpu: bool) -> str:
    """By how much each constant of PACES would have to change for the times measured here to come out."""
    import numpy as np

    names = list(GROUPS)
    parts = np.array(
        [[sum(one["time_parts"][part] for part in GROUPS[name]) for name in names] for one in found]
    )
    rest = np.array([sum(one["time_parts"].values()) for one in found]) - parts.sum(axis=1)
    measured = np.array([one["measured_seconds"] for one in found])

    def miss(factors: Any) -> float:
        work, launches = parts[:, :3] @ factors[:3] + rest, parts[:, 3] * factors[3]
        planned = np.maximum(work, launches) if on_gpu else work + launches
        return float((np.log(planned / measured) ** 2).sum() + 0.02 * (np.log(factors) ** 2).sum())

    factors, chance, step = np.ones(len(names)), np.random.default_rng(0), 0.3
    for _ in range(20_000):
        tried = factors * np.exp(step * chance.normal(size=len(names)))
        if miss(tried) < miss(factors):
            factors = tried
        step = max(0.01, step * 0.9997)
    return "\n".join(f"  {name}: × {factor:.2f}" for name, factor in zip(names, factors, strict=True))


HEAD = ["setting", "batch × length", "numbers", "MiB", "planned", "off", "ms a step", "planned", "off"]


def report(found: list[dict[str, Any]], device: str, what: str, is_again: bool) -> str:
    again = (
        " Measured in an earlier run, predicted anew with the present constants (`--again`)."
        if is_again
        else ""
    )
    lines = [
        f"# What `headstart plan` said, and what came: {device}",
        "",
        f"Real training steps on random tokens, each setting in a fresh process. Memory is {what};",
        f"time is the median step. Made by `python benchmarks/plan_accuracy.py`.{again}",
        "The CPU's constants were fitted on one two-core machine, with settings like these among the data: this table",
        "shows how well one set of constants serves them all, not how it serves a machine that nobody has measured.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
        *("| " + " | ".join(row(one)) + " |" for one in found),
    ]
    memory = [abs(one["predicted_bytes"] / one["measured_bytes"] - 1) for one in found]
    seconds = [abs(one["predicted_seconds"] / one["measured_seconds"] - 1) for one in found]
    lines += [
        "",
        f"Memory within 10 %: {sum(off <= 0.1 for off in memory)} of {len(found)} (largest {max(memory):.1%}).",
        f"Time within 25 %: {sum(off <= 0.25 for off in seconds)} of {len(found)} (largest {max(seconds):.0%}).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument(
        "--wait", type=float, default=20.0, help="seconds to wait for an idle CPU, each setting"
    )
    parser.add_argument("--again", type=Path, help="a JSON of earlier results: predict anew, measure nothing")
    parser.add_argument("--known", default="{}")
    asked = parser.parse_args()
    if asked.child:
        child(Setting(**json.loads(asked.child)), asked.seconds, json.loads(asked.known))
        return
    earlier = {one["name"]: one for one in json.loads(asked.again.read_text("utf-8"))} if asked.again else {}
    import torch

    on_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} cores"
    found = []
    for setting in ON_GPU if on_gpu else ON_CPU:
        if asked.only in setting.name:
            if not on_gpu and not earlier:
                wait_until_idle(asked.wait)
            started = time.monotonic()
            found.append(run(setting, asked.seconds, earlier.get(setting.name, {})))
            if found[-1]:
                print("  ".join(row(found[-1])), f"  ({time.monotonic() - started:.0f} s)", flush=True)
    found = [one for one in found if one]
    what = "the peak of torch's allocator" if on_gpu else "the process's peak (ru_maxrss)"
    label = name.lower().replace("nvidia ", "").replace(", ", "-").replace(" ", "-")
    text = report(found, name, what, bool(earlier))
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / f"plan-{label}.md").write_text(text, "utf-8")
    (asked.out / f"plan-{label}.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    print(text)
    print(f"what planning/duration.py's PACES would need:\n{fit(found, on_gpu)}")


if __name__ == "__main__":
    main()
