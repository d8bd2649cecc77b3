"""How near `headstart plan` comes: predicted against measured memory and time, over real training steps.

Each setting runs in a process of its own. Writes benchmarks/results/plan-<device>.md and .json.
    python benchmarks/plan_accuracy.py [--seconds S] [--only NAME]
    python benchmarks/plan_accuracy.py --again benchmarks/results/plan-h200.json    # predict anew, on any machine
A fit is no test: each setting is also predicted with constants fitted to all the others.
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
RESULTS = ROOT / "benchmarks" / "results"
MIB, GIB = 2**20, 2**30


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
    Setting("tiny MLM, AdamW", "pretrain", "tiny", 32, 128, {"optimizer": {"name": "adamw"}}),
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
    Setting("small MLM, AdamW", "pretrain", "small", 128, 512, {"optimizer": {"name": "adamw"}}),
    Setting("small MLM, float32", "pretrain", "small", 64, 256, {"training": {"precision": "float32"}}),
    Setting("small classifier", "finetune", "small", 32, 512),
    Setting(
        "768 wide MLM", "pretrain", "small", 64, 512,
        {"model": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": 2048}},
    ),
]  # fmt: skip
SWIFT = {"training": {"compile": True}}
COMPILED_ON_GPU = [
    Setting("small MLM, compiled", "pretrain", "small", 256, 256, SWIFT),
    Setting("small LM, compiled", "pretrain", "small", 128, 512, {"objective": {"name": "causal-lm"}, **SWIFT}),
    Setting("lab LM, large batch, compiled", "pretrain", "lab", 256, 256, SWIFT),
    Setting("tiny MLM, compiled", "pretrain", "tiny", 64, 64, SWIFT),
    Setting("small classifier, compiled", "finetune", "small", 32, 512, SWIFT),
    Setting("768 wide MLM, compiled", "pretrain", "small", 64, 512, {**ON_GPU[-1].settings, **SWIFT}),
]


def child(setting: Setting, seconds: float, known: dict[str, Any]) -> None:
    """Measure one setting, predict it, and print both as JSON."""
    from headstart.config import resolve
    from headstart.planning.devices import find_device
    from headstart.planning.plan import make_plan, this_machine
    from headstart.workflows.plan import StepMeasurement, measure_steps

    config = resolve(setting.job, setting.preset, setting.settings)
    device = find_device(known["device"]) if known else this_machine()
    plan = make_plan(config, device, batch=setting.batch, length=setting.length)
    if known:  # measured before: predict alone
        found = StepMeasurement(
            known["measured_seconds"], known["measured_bytes"], known["reserved_bytes"], known["steps"]
        )
    else:
        found = measure_steps(config, plan.workload.vocab_size, 2, setting.batch, setting.length, seconds)
    on_gpu = device.kind == "cuda"
    print(
        json.dumps(
            {
                **vars(setting),
                "device": device.name,
                "precision": plan.workload.precision,
                "compiled": plan.is_compiled,
                "measured_bytes": found.peak_bytes,
                "predicted_bytes": plan.memory.tensors if on_gpu else plan.memory.peak,
                "reserved_bytes": found.reserved_bytes,
                "measured_seconds": found.seconds_per_step,
                "predicted_seconds": plan.step_time.seconds,
                "steps": found.steps,
                "memory_moment": plan.memory.moment,
                "memory_parts": plan.memory.parts,
                "time_parts": plan.step_time.parts,
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
    "matmul and attention (divide)": ("matrices", "attention"),
    "logit_bytes (multiply)": ("logits",),
    "passes (multiply)": ("element-wise",),
    "launch (multiply)": ("launches",),
}


def fit(found: list[dict[str, Any]], ridge: float = 0.02) -> Any:
    """By how much each constant of EFFICIENCIES would have to change for the times measured here to come out."""
    import numpy as np

    parts, rest = split(found)
    measured = np.array([one["measured_seconds"] for one in found])

    def miss(factors: Any) -> float:
        planned = together(parts, rest, factors, is_cpu(found))
        return float((np.log(planned / measured) ** 2).sum() + ridge * (np.log(factors) ** 2).sum())

    factors, chance, step = np.ones(len(GROUPS)), np.random.default_rng(0), 0.3
    least = miss(factors)
    for _ in range(20_000):
        tried = factors * np.exp(step * chance.normal(size=len(GROUPS)))
        if (missed := miss(tried)) < least:
            factors, least = tried, missed
        step = max(0.01, step * 0.9997)
    return factors


def split(found: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Planned seconds by the constant that they grow with, and those that grow with none."""
    import numpy as np

    times = [one["time_parts"] for one in found]
    parts = np.array([[sum(time[part] for part in names) for names in GROUPS.values()] for time in times])
    return parts, np.array([sum(time.values()) for time in times]) - parts.sum(axis=1)


def together(parts: Any, rest: Any, factors: Any, on_cpu: bool) -> Any:
    """Seconds of a step with its parts scaled, put together as planning/plan.py does."""
    import numpy as np

    work, launches = parts[:, :3] @ factors[:3] + rest, parts[:, 3] * factors[3]
    return work + launches if on_cpu else np.hypot(work, launches)


def left_out(found: list[dict[str, Any]]) -> list[float]:
    """How far each time is off when all four kinds of constants are fitted to the other settings alone."""
    missed = []
    for index, one in enumerate(found):
        factors = fit([*found[:index], *found[index + 1 :]], ridge=1e-6)
        planned = together(*split([one]), factors, is_cpu(found))[0]
        missed.append(float(planned / one["measured_seconds"] - 1))
    return missed


def is_cpu(found: list[dict[str, Any]]) -> bool:
    return found[0]["device"].startswith("CPU")


def beside(plan: Any, one: dict[str, Any], name: str, source: str) -> dict[str, Any]:
    """A row of speed_gpu.py's with what the plan says of it."""
    return {
        **{key: one[key] for key in ("preset", "job", "settings")},
        "name": name,
        "batch": plan.workload.batch_size,
        "length": plan.workload.length,
        "device": plan.device.name,
        "precision": plan.workload.precision,
        "compiled": one["is_compiled"],
        "source": source,
        "measured_bytes": round(one["peak_gib"] * GIB),
        "predicted_bytes": plan.memory.tensors,
        "measured_seconds": one["step_ms"] / 1e3,
        "predicted_seconds": plan.step_time.seconds,
        "time_parts": plan.step_time.parts,
    }


def from_speed(path: Path) -> list[dict[str, Any]]:
    """The compiled language models of speed_gpu.py, measured in the product's own loop, with what the plan says."""
    from headstart.config import resolve
    from headstart.planning.devices import find_device
    from headstart.planning.plan import make_plan

    content = json.loads(path.read_text("utf-8"))
    rows = []
    for one in content["rows"]:
        is_ours = one["system"] == "headstart" and one["job"] == "pretrain"
        if not is_ours or not one["is_compiled"] or "failed" in one:
            continue
        config = resolve("pretrain", one["preset"], {**one["settings"], **SWIFT})
        device = find_device(content["machine"]["device"])
        plan = make_plan(config, device, length=one["length"])
        rows.append(beside(plan, one, f"{one['preset']}, {one['work']}", f"{path.name}, commit {content['commit']}"))
    return rows


def from_texts(path: Path) -> list[dict[str, Any]]:
    """The classifiers and translators of speed_gpu.py, whose batches have every size, with what the plan says."""
    from headstart.config import resolve
    from headstart.planning.devices import find_device
    from headstart.planning.plan import make_plan

    content = json.loads(path.read_text("utf-8"))["switched"]
    rows = []
    for one in content["rows"]:
        if one["system"] != "headstart":
            continue
        training = {"compile": one["is_compiled"], "precision": "bfloat16"}
        config = resolve(one["job"], one["preset"], {**one["settings"], "training": training})
        device = find_device("H200")
        positions = one["tokens_per_second"] * one["step_ms"] / 1e3 / (1 - one["padding"])
        sides = 2 if one["work"] == "translation" else 1
        batch = round(positions / sides / one["mean_length"])
        plan = make_plan(config, device, batch=batch, length=one["mean_length"])
        name = f"{one['work']}, {one['preset']}" + (", compiled" if one["is_compiled"] else "")
        rows.append(beside(plan, one, name, f"{path.name}, commit {content['commit']}"))
    return rows


UNWAITED = "(A run waits for none, so where the host and the GPU take alike, its steps may be shorter.)"
HEAD = ["setting", "batch × length", "numbers", "MiB", "planned", "off", "ms a step", "planned", "off"]


def table(found: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
        *("| " + " | ".join(row(one)) + " |" for one in found),
    ]
    memory = [abs(one["predicted_bytes"] / one["measured_bytes"] - 1) for one in found]
    seconds = [abs(one["predicted_seconds"] / one["measured_seconds"] - 1) for one in found]
    return [
        *lines,
        "",
        f"Memory within 10 %: {sum(off <= 0.1 for off in memory)} of {len(found)} (largest {max(memory):.1%}).",
        f"Time within 25 %: {sum(off <= 0.25 for off in seconds)} of {len(found)} (largest {max(seconds):.0%}).",
    ]


def report(content: dict[str, Any]) -> str:
    rows = content["rows"]
    plain = [one for one in rows if not one["compiled"]]
    compiled = [one for one in rows if one["compiled"]]
    what = "the process's peak (ru_maxrss)" if is_cpu(rows) else "the peak of torch's allocator"
    lines = [
        f"# What `headstart plan` said, and what came: {content['device']}",
        "",
        "| | |",
        "|---|---|",
        f"| measured by | `{content['command']}` |",
        f"| commit | {content['commit']} |",
        f"| machine | {content['machine']} |",
        *([f"| planned anew by | `{content['again']}` |"] if content.get("again") else []),
        "",
        f"Real training steps on random tokens, each setting in a fresh process. Memory is {what};",
        "time is the median step, each step waited for.",
        *([] if is_cpu(rows) else [UNWAITED]),
        "",
        *table(plain),
    ]
    if len(plain) > len(GROUPS):
        missed = left_out(plain)
        worst = max(range(len(plain)), key=lambda index: abs(missed[index]))
        lines += [
            "",
            "The constants of time were fitted to settings like these. A fairer check: all four kinds of constants are",
            "fitted to every setting but one, and predict that one. "
            f"The largest miss is then {missed[worst]:+.0%} ({plain[worst]['name']}).",
            "In the order of the table: " + ", ".join(f"{off:+.0%}" for off in missed) + ".",
            "How the constants serve a machine that nobody has measured is not known.",
        ]
    if compiled:
        lines += ["", "## Compiled steps", "", *table(compiled)]
    if content.get("speed"):
        sources = sorted({one["source"] for one in content["speed"]})
        lines += [
            "",
            "## Compiled steps of a run",
            "",
            f"Not measured here but by `benchmarks/speed_gpu.py` ({', '.join(sources)}), in the product's own",
            "loop, which waits for no step. Two constants of time were chosen with them in view: how often stored activations are",
            "read or written, and the width at which products reach half of their rate. Memory was counted by reading the code.",
            "",
            *table(content["speed"]),
        ]
    if content.get("texts"):
        sources = sorted({one["source"] for one in content["texts"]})
        lines += [
            "",
            "## Steps of a run over texts, which have every size",
            "",
            f"Likewise ({', '.join(sources)}); batch and length are those of a middling batch, with its padding, and memory is that of",
            "the largest batch, which the plan of a middling one does not know. Three constants were chosen with the compiled rows in view:",
            "what the host takes for an operation of such a step, and the tiles and the rate of attention that reads a mask (also from",
            "the profile in speed-gpu.md); the small classifier of the first table, which was not looked at for that, came from -8% to +4%. The",
            "translator that is not compiled is planned too slow: since the constants of the first table were fitted, the loss over the vocabulary's",
            "logits reads fewer bytes, so language models that are not compiled are planned too slow on a GPU as well.",
            "",
            *table(content["texts"]),
        ]
    return "\n".join(lines) + "\n"


def opened(path: Path) -> dict[str, Any]:
    """Earlier results; those of before were a list of rows alone."""
    content = json.loads(path.read_text("utf-8"))
    return {"rows": content} if isinstance(content, list) else content


def commit() -> str:
    """The commit that is measured, where git knows it."""
    words = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"


def this_place() -> dict[str, Any]:
    """What the page says of this machine and this code."""
    import torch

    on_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} cores"
    return {
        "device": name,
        "machine": f"{name}, torch {torch.__version__}",
        "commit": commit(),
        "command": "python " + " ".join(["benchmarks/plan_accuracy.py", *sys.argv[1:]]),
        "settings": [*ON_GPU, *COMPILED_ON_GPU] if on_gpu else ON_CPU,
    }


def earlier_place(path: Path, earlier: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What the page says of the machine and the code of an earlier measurement."""
    device = earlier["rows"][0]["device"]
    known = {one["name"] for one in earlier["rows"]}
    return {
        "device": earlier.get("device", device),
        "machine": options.machine or earlier.get("machine", device),
        "commit": options.commit or earlier.get("commit", "unknown"),
        "command": earlier.get("command", "python benchmarks/plan_accuracy.py"),
        "again": f"python benchmarks/plan_accuracy.py --again {path.name}",
        "settings": [one for one in ON_CPU if device.startswith("CPU") and one.name in known]
        or [one for one in (*ON_GPU, *COMPILED_ON_GPU) if one.name in known],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--wait", type=float, default=20.0, help="seconds to wait for an idle CPU, each setting")
    parser.add_argument("--again", type=Path, help="a JSON of earlier results: predict anew, measure nothing")
    parser.add_argument("--commit", help="with --again: the commit that was measured, if the JSON does not say")
    parser.add_argument("--machine", help="with --again: the machine, if the JSON does not say")
    parser.add_argument("--known", default="{}")
    options = parser.parse_args()
    if options.child:
        child(Setting(**json.loads(options.child)), options.seconds, json.loads(options.known))
        return
    earlier = opened(options.again) if options.again else {"rows": []}
    content = earlier_place(options.again, earlier, options) if options.again else this_place()
    known = {one["name"]: one for one in earlier["rows"]}
    found = []
    for setting in content.pop("settings"):
        if options.only in setting.name:
            if content["device"].startswith("CPU") and not known:
                wait_until_idle(options.wait)
            started = time.monotonic()
            found.append(run(setting, options.seconds, known.get(setting.name, {})))
            if found[-1]:
                print("  ".join(row(found[-1])), f"  ({time.monotonic() - started:.0f} s)", flush=True)
    content["rows"] = [one for one in found if one]
    speed = RESULTS / "speed-gpu.json"
    if "H200" in content["device"] and speed.exists():
        content["speed"] = from_speed(speed)
        content["texts"] = from_texts(RESULTS / "speed-gpu-texts.json")
    label = content["rows"][0]["device"].lower().replace(" ", "-")
    options.out.mkdir(parents=True, exist_ok=True)
    text = report(content)
    (options.out / f"plan-{label}.md").write_text(text, "utf-8")
    (options.out / f"plan-{label}.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    print(text)
    plain = [one for one in content["rows"] if not one["compiled"]]
    print("what planning/devices.py's EFFICIENCIES would need:")
    for name, factor in zip(GROUPS, fit(plain), strict=True):
        print(f"  {name}: × {factor:.2f}")


if __name__ == "__main__":
    main()
