"""`headstart serve` under load: against one call at a time, against a plain `transformers` pipeline, and over many requests.

Server and client are processes of their own; the client speaks HTTP over plain sockets, so that it costs little. The
weights are fresh: speed does not depend on what they learnt. Writes benchmarks/results/serve-<device>.md and .json.
    python benchmarks/serve_load.py [--preset tiny] [--seconds 20] [--clients 64] [--requests 20000]
The rival needs the `transformers` package; without it that part is left out and the report says so.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
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
WARM = 1.5  # seconds of load before the clock starts


def make_run(folder: Path, preset: str) -> Path:
    """A classifier of a preset's size with hardly any training, and the texts to send it."""
    from headstart.config import DataConfig
    from headstart.data.sources import load_dataset
    from headstart.workflows.finetune import finetune

    run = folder / preset
    settings = {"training": {"steps": 2}}
    finetune("scratch", "rotten-tomatoes", run, preset=preset, settings=settings)
    texts = [example.text for example in load_dataset("rotten-tomatoes", DataConfig()).splits["valid"]]
    (folder / "texts.json").write_text(json.dumps(texts), "utf-8")
    return run


# --- the rival: the same sizes in `transformers`, one pipeline call for each request, behind starlette and uvicorn


def rival(run: Path, port: int) -> None:
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
    body, training = about["settings"]["body"], about["settings"]["training"]
    inner = body["feed_forward"] * (3 if body["activation"] in ("swiglu", "geglu") else 2) // 2
    config = BertConfig(
        vocab_size=about["vocabulary"],
        hidden_size=body["width"],
        num_hidden_layers=body["layers"],
        num_attention_heads=body["attention_heads"],
        intermediate_size=inner,  # ours has a third matrix, so this has half as much again: equal weights
        max_position_embeddings=body["max_length"],
        num_labels=len(about["classes"]),
    )
    model = BertForSequenceClassification(config).eval()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(run / "tokenizer.json"), pad_token="[PAD]", model_max_length=training["length"]
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


# --- the client


async def converse(
    port: int, texts: list[str], until: float, times: list[tuple[float, float]], seed: int
) -> None:
    """One connection that asks again as soon as it is answered; notes when each answer came and how long it took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    rng = random.Random(seed)
    while time.perf_counter() < until:
        start = time.perf_counter()
        await exchange(reader, writer, rng.choice(texts))
        end = time.perf_counter()
        times.append((end, end - start))
    writer.close()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> None:
    body = json.dumps({"texts": [text]}).encode()
    writer.write(
        b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
        + body
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(size)


async def closed_loop(port: int, texts: list[str], clients: int, seconds: float) -> dict[str, float]:
    """As much as `clients` that never rest can get."""
    times: list[tuple[float, float]] = []
    start = time.perf_counter() + WARM
    await asyncio.gather(*(converse(port, texts, start + seconds, times, seed) for seed in range(clients)))
    counted = [took for end, took in times if end >= start]
    return {"per_second": len(counted) / seconds, **latency(counted)}


async def open_loop(port: int, texts: list[str], rate: float, seconds: float) -> dict[str, float]:
    """Requests that come by chance at a rate, whether or not the last one is answered; a late start counts as waiting."""
    rng, took, free, tasks = random.Random(1), [], [], []
    start = due = time.perf_counter() + 0.1

    async def one(due: float, text: str) -> None:
        pair = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        await exchange(*pair, text)
        free.append(pair)
        took.append((due, time.perf_counter() - due))

    while due < start + WARM + seconds:
        due += rng.expovariate(rate)
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.ensure_future(one(due, rng.choice(texts))))
    await asyncio.gather(*tasks)
    for _, writer in free:
        writer.close()
    return latency([spent for due, spent in took if due >= start + WARM])


def latency(took: list[float]) -> dict[str, float]:
    marks = statistics.quantiles(took, n=100, method="inclusive")
    return {"p50_ms": 1000 * marks[49], "p99_ms": 1000 * marks[98], "requests": len(took)}


def client(asked: dict[str, Any]) -> None:
    texts = json.loads(Path(asked.pop("texts")).read_text("utf-8"))
    way = {"closed": closed_loop, "open": open_loop}[asked.pop("way")]
    print(json.dumps(asyncio.run(way(texts=texts, **asked))))


# --- the measuring


@contextmanager
def process(words: list[str], ready: str) -> Iterator[str]:
    """A process that has said `ready`; ended at the end. Gives the line."""
    started = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        assert ready in line, (words, line)
        yield line
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(60)


def ask(port: int, texts: Path, way: str, **given: Any) -> dict[str, float]:
    """What a client in a process of its own measures."""
    words = [
        sys.executable,
        __file__,
        "--client",
        json.dumps({"port": port, "texts": str(texts), "way": way, **given}),
    ]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


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


def measure(run: Path, texts: Path, asked: argparse.Namespace) -> dict[str, Any]:
    from headstart.workflows.run import load_trained

    about = load_trained(str(run))
    found: dict[str, Any] = {"preset": asked.preset, "clients": asked.clients}
    found["parameters"] = sum(weight.numel() for weight in about.model().parameters())
    port = asked.port
    words = [sys.executable, "-m", "headstart", "serve", str(run), "--port", str(port), "--quiet"]
    with process(words, "serving"):
        found["one"] = ask(port, texts, "closed", clients=1, seconds=asked.seconds)
        found["many"] = ask(port, texts, "closed", clients=asked.clients, seconds=asked.seconds)
        rate = 0.8 * found["many"]["per_second"]
        found["at_80"] = {"rate": rate, **ask(port, texts, "open", rate=rate, seconds=asked.seconds)}
        memory, sent = [metric(port, "headstart_memory_bytes")], 0
        while sent < asked.requests:
            part = ask(port, texts, "closed", clients=asked.clients, seconds=min(10.0, asked.seconds))
            sent += int(part["requests"])
            memory.append(metric(port, "headstart_memory_bytes"))
        found["memory"] = {"requests": sent, "bytes": memory}
    if has_transformers():
        with process(
            [sys.executable, __file__, "--rival", str(run), "--port", str(port + 1)], "ready"
        ) as line:
            wait_until_open(port + 1)
            found["rival"] = {"parameters": int(line.split()[1])}
            for name, clients in (("one", 1), ("many", asked.clients)):
                found["rival"][name] = ask(port + 1, texts, "closed", clients=clients, seconds=asked.seconds)
    return found


def has_transformers() -> bool:
    from importlib.util import find_spec

    return find_spec("transformers") is not None


def report(found: dict[str, Any], device: str) -> str:
    """The numbers in words."""
    one, many, at_80, memory = (found[name] for name in ("one", "many", "at_80", "memory"))
    rows = [
        ("headstart serve, one call at a time", one),
        (f"headstart serve, {found['clients']} clients", many),
    ]
    rival_rows = found.get("rival", {})
    if rival_rows:
        rows += [
            ("transformers pipeline, one call at a time", rival_rows["one"]),
            (f"transformers pipeline, {found['clients']} clients", rival_rows["many"]),
        ]
    lines = [
        f"# `headstart serve` under load: {device}, preset {found['preset']}",
        "",
        f"One review (rotten-tomatoes) a request, {found['parameters']:,} weights"
        + (f", the rival's {rival_rows['parameters']:,}" if rival_rows else "; the rival was not installed")
        + ". Made by `python benchmarks/serve_load.py`.",
        "",
        "| | requests a second | p50 | p99 |",
        "|---|---|---|---|",
        *(
            f"| {name} | {row['per_second']:,.0f} | {row['p50_ms']:.1f} ms | {row['p99_ms']:.1f} ms |"
            for name, row in rows
        ),
        f"| headstart serve at 80 % of its best | {at_80['rate']:,.0f} | {at_80['p50_ms']:.1f} ms | {at_80['p99_ms']:.1f} ms |",
        "",
        f"Many clients against one call at a time: {many['per_second'] / one['per_second']:.1f} times.",
    ]
    if rival_rows:
        lines.append(
            f"Against the pipeline: {many['per_second'] / rival_rows['many']['per_second']:.1f} times."
        )
    first, last = memory["bytes"][1] if len(memory["bytes"]) > 2 else memory["bytes"][0], memory["bytes"][-1]
    lines.append(
        f"Memory over {memory['requests']:,} requests: {first / 2**20:.0f} MiB, then {last / 2**20:.0f} MiB."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--port", type=int, default=18_100)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--client")
    parser.add_argument("--rival", type=Path)
    asked = parser.parse_args()
    if asked.client:
        client(json.loads(asked.client))
        return
    if asked.rival:
        rival(asked.rival, asked.port)
        return
    import torch

    on_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} cores"
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), asked.preset)
        found = measure(run, Path(folder) / "texts.json", asked)
    label = device.lower().replace("nvidia ", "").replace(", ", "-").replace(" ", "-")
    text = report(found, device)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / f"serve-{asked.preset}-{label}.md").write_text(text, "utf-8")
    (asked.out / f"serve-{asked.preset}-{label}.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
