"""`headstart serve` under load: against one call at a time, against a plain `transformers` pipeline, and over many requests.

Server and client (load_client.py) are processes of their own, on the same cores; the client costs little and checks every
answer. The weights are fresh: speed does not depend on what they learnt. Writes benchmarks/results/serve-<device>.md and .json.
    python benchmarks/serve_load.py [--preset tiny] [--precision bf16] [--reviews 1] [--seconds 20] [--clients 64] [--requests 20000]
With --precision bf16 all of it, one call at a time as well, is measured so; the baseline stays in float32.
The baseline needs the `transformers` package; without it that part is left out and the report says so.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
FAST_NEAR = 5e-3  # how far a probability in bfloat16 may be from the one alone
CLIENT = Path(__file__).with_name("load_client.py")


def make_run(folder: Path, preset: str, reviews: int) -> Path:
    """A classifier of a preset's size with hardly any training, and the texts to send it, each of some reviews."""
    from headstart.config import DataConfig
    from headstart.data.datasets import load_dataset
    from headstart.workflows.finetune import finetune

    run = folder / preset
    settings = {"training": {"max_steps": 2}}
    finetune("scratch", "rotten-tomatoes", run, preset=preset, settings=settings)
    found = [example.text for example in load_dataset("rotten-tomatoes", DataConfig()).splits["valid"]]
    texts = [" ".join(found[at : at + reviews]) for at in range(0, len(found) - reviews + 1, reviews)]
    (folder / "texts.json").write_text(json.dumps(texts), "utf-8")
    return run


# --- the baseline: the same sizes in `transformers`, one pipeline call for each request, behind starlette and uvicorn


def serve_baseline(run: Path, port: int) -> None:
    import torch
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        PreTrainedTokenizerFast,
        TextClassificationPipeline,
    )

    about = json.loads((run / "run.json").read_text("utf-8"))
    body, training = about["settings"]["model"], about["settings"]["training"]
    inner = body["intermediate_size"] * (3 if body["activation"] in ("swiglu", "geglu") else 2) // 2
    config = BertConfig(
        vocab_size=about["vocab_size"],
        hidden_size=body["hidden_size"],
        num_hidden_layers=body["num_layers"],
        num_attention_heads=body["num_heads"],
        intermediate_size=inner,  # ours has a third matrix, so this has half as much again: equal weights
        max_position_embeddings=body["max_position_embeddings"],
        num_labels=len(about["classes"]),
    )
    model = BertForSequenceClassification(config).eval()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(run / "tokenizer.json"), pad_token="[PAD]", model_max_length=training["max_length"]
    )
    device = 0 if torch.cuda.is_available() else -1
    pipe = TextClassificationPipeline(model=model, tokenizer=tokenizer, device=device)

    async def classify(request: Request) -> JSONResponse:
        texts = (await request.json())["texts"]
        found = await run_in_threadpool(pipe, texts, truncation=True, batch_size=len(texts))
        return JSONResponse({"labels": found})

    app = Starlette(routes=[Route("/v1/classify", classify, methods=["POST"])])
    print(f"ready {sum(weight.numel() for weight in model.parameters())}", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", access_log=False)


# --- the model without a server: what reading texts together can save at all


def model_alone(run: Path, texts: list[str], precision: str) -> dict[str, Any]:
    """Milliseconds of one core for a text read by itself and among 64; the best of a few tries."""
    from headstart.inference.loaded_model import load_model
    from headstart.serving.model_worker import ModelWorker
    from headstart.serving.schema import Limits

    worker = ModelWorker(load_model(str(run)), Limits(), precision)
    found: dict[str, Any] = {"precision": worker.precision}
    for name, size in (("alone_ms", 1), ("together_ms", 64)):
        groups = [texts[at : at + size] for at in range(0, 64, size)]
        tries = []
        for _ in range(6):
            start = time.process_time()
            for group in groups:
                worker.run_batch(("classify", False), group)
            tries.append(1000 * (time.process_time() - start) / 64)
        found[name] = min(tries[1:])
    return found


# --- the measuring


@contextmanager
def process(words: list[str], ready: str) -> Iterator[tuple[int, str]]:
    """A process that has said `ready`; ended at the end. Gives its number and the line."""
    started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        assert ready in line, (words, line)
        yield started.pid, line
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(60)


def cpu_seconds(number: int) -> float:
    """What a process has used of all cores; 0 where the system does not say."""
    own = Path(f"/proc/{number}/stat")
    if not own.is_file():
        return 0.0
    user, system = own.read_text("ascii").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def ask(server: int, port: int, texts: Path, way: str, **given: Any) -> dict[str, float]:
    """What a client in a process of its own measures, and what a request costs the server."""
    words = [sys.executable, str(CLIENT), json.dumps({"port": port, "texts": str(texts), "way": way, **given})]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as client:
        assert client.stdout is not None
        cpu_readings = []
        for line in client.stdout:  # it says when the clock starts and when it stops
            if line.startswith("{"):
                found = json.loads(line)
            cpu_readings.append(cpu_seconds(server))
    assert client.returncode == 0, "the client broke off"
    return {**found, "server_ms": 1000 * (cpu_readings[1] - cpu_readings[0]) / found["requests"]}


def wait_until_open(port: int) -> None:
    import socket

    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(port)


def metric(port: int, name: str) -> float:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def measure(run: Path, texts: Path, options: argparse.Namespace) -> dict[str, Any]:
    from headstart.inference.loaded_model import load_model

    about = load_model(str(run))
    found: dict[str, Any] = {
        "preset": options.preset,
        "clients": options.clients,
        "reviews": options.reviews,
        "bound_ms": options.p99,
        "requested_precision": options.precision,
        "cores": os.cpu_count(),
    }
    found["parameters"] = sum(weight.numel() for weight in about.model().parameters())
    done = subprocess.run(
        [sys.executable, __file__, "--model", str(run), "--texts", str(texts), "--precision", options.precision],
        stdout=subprocess.PIPE,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=True,
    )
    found["model"] = json.loads(done.stdout)
    port, seconds = options.port, options.seconds
    words = [sys.executable, "-m", "headstart", "serve", str(run), "--port", str(port), "--quiet"]
    words += ["--precision", options.precision]
    near = {"near": FAST_NEAR} if found["model"]["precision"] == "bfloat16" else {}
    with process(words, "serving") as (server, _):
        found["one"] = ask(server, port, texts, "closed", clients=1, seconds=seconds, **near)
        found["many"] = ask(server, port, texts, "closed", clients=options.clients, seconds=seconds, **near)
        rate = 0.8 * found["many"]["per_second"]
        found["at_80"] = {"rate": rate, **ask(server, port, texts, "open", rate=rate, seconds=seconds, **near)}
        memory, sent = [metric(port, "headstart_memory_bytes")], 0
        while sent < options.requests:
            part = ask(server, port, texts, "closed", clients=options.clients, seconds=min(10.0, seconds), **near)
            sent += int(part["requests"])
            memory.append(metric(port, "headstart_memory_bytes"))
        found["memory"] = {"requests": sent, "bytes": memory}
    if has_transformers():
        words = [sys.executable, __file__, "--baseline", str(run), "--port", str(port + 1)]
        with process(words, "ready") as (server, line):
            wait_until_open(port + 1)
            found["baseline"] = {"parameters": int(line.split()[1])}
            for name, clients in (("one", 1), ("many", options.clients)):
                found["baseline"][name] = ask(server, port + 1, texts, "closed", clients=clients, seconds=seconds)
    return found


def has_transformers() -> bool:
    from importlib.util import find_spec

    return find_spec("transformers") is not None


def report(found: dict[str, Any], device: str) -> str:
    """The numbers in words."""
    one, many, at_80, memory = (found[name] for name in ("one", "many", "at_80", "memory"))
    rows = [("headstart serve, one call at a time", one), (f"headstart serve, {found['clients']} clients", many)]
    baseline_rows = found.get("baseline", {})
    if baseline_rows:
        rows += [
            ("transformers pipeline, one call at a time", baseline_rows["one"]),
            (f"transformers pipeline, {found['clients']} clients", baseline_rows["many"]),
        ]
    texts = "One review" if found["reviews"] == 1 else f"A text of {found['reviews']} reviews"
    model, cores = found["model"], found["cores"]
    most = cores * 1000 / (many["server_ms"] + many["client_ms"])
    lines = [
        f"# `headstart serve` under load: {device}, preset {found['preset']}"
        + (f", `--precision {found['requested_precision']}`" if found["requested_precision"] != "auto" else ""),
        "",
        f"{texts} (rotten-tomatoes) a request, {found['parameters']:,} weights in {model['precision']}"
        + (
            f", the baseline's {baseline_rows['parameters']:,} in float32"
            if baseline_rows
            else "; the baseline was not installed"
        )
        + ". Made by `python benchmarks/serve_load.py`; every answer was checked to be the one to its own text.",
        "",
        "| | requests a second | p50 | p99 | CPU of the server | CPU of the client |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {row['per_second']:,.0f} | {row['p50_ms']:.1f} ms | {row['p99_ms']:.1f} ms "
            f"| {row['server_ms']:.2f} ms | {row['client_ms']:.2f} ms |"
            for name, row in [*rows, ("headstart serve at 80 % of its best", {"per_second": at_80["rate"], **at_80})]
        ),
        "",
        f"Many clients against one call at a time: {many['per_second'] / one['per_second']:.1f} times. Were no core ever "
        f"idle, {most:,.0f} requests a second would be served at this cost: {most / one['per_second']:.1f} times.",
        f"The model alone takes {model['alone_ms']:.2f} ms of one core for a text by itself and {model['together_ms']:.2f} ms among "
        f"64: with HTTP for nothing, {cores} cores would read {cores * model['alone_ms'] / model['together_ms']:.1f} times what one "
        "core reads text by text.",
        f"p99 at 80 % load: {at_80['p99_ms']:.0f} ms, {'under' if at_80['p99_ms'] < found['bound_ms'] else 'OVER'} "
        f"the bound of {found['bound_ms']:.0f} ms; {at_80['refused']:.0f} requests were refused.",
    ]
    if baseline_rows:
        lines.append(f"Against the pipeline: {many['per_second'] / baseline_rows['many']['per_second']:.1f} times.")
    first, last = memory["bytes"][1] if len(memory["bytes"]) > 2 else memory["bytes"][0], memory["bytes"][-1]
    lines.append(f"Memory over {memory['requests']:,} requests: {first / 2**20:.0f} MiB, then {last / 2**20:.0f} MiB.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument(
        "--precision", default="auto", help="of `headstart serve`: bf16 = bfloat16 where the processor has it"
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--reviews", type=int, default=1, help="put together in one text")
    parser.add_argument("--p99", type=float, default=150.0, help="bound of the slowest hundredth at 80 %% load, in ms")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--port", type=int, default=18_100)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--texts", type=Path)
    options = parser.parse_args()
    if options.baseline:
        serve_baseline(options.baseline, options.port)
        return
    if options.model:
        print(json.dumps(model_alone(options.model, json.loads(options.texts.read_text("utf-8")), options.precision)))
        return
    import torch

    on_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} cores"
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), options.preset, options.reviews)
        found = measure(run, Path(folder) / "texts.json", options)
    label = device.lower().replace("nvidia ", "").replace(", ", "-").replace(" ", "-")
    text = report(found, device)
    options.out.mkdir(parents=True, exist_ok=True)
    reviews = "" if options.reviews == 1 else f"-{options.reviews}-reviews"
    precision = "" if options.precision == "auto" else f"-{options.precision}"
    name = f"serve-{options.preset}{precision}{reviews}-{label}"
    (options.out / f"{name}.md").write_text(text, "utf-8")
    (options.out / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
