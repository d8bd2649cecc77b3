"""A server in a process of its own, and clients that behave and misbehave."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager


@contextmanager
def running(*runs, settings=(), options=()):
    """A `headstart serve` over these runs; gives the process and its port, and ends it."""
    words = [str(run) for run in runs] + [word for one in settings for word in ("--set", one)]
    command = [sys.executable, "-m", "headstart", "serve", *words, "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

    def read_log():
        log.seek(0)
        return log.read()

    process.read_log = read_log
    try:
        line = process.stdout.readline()
        assert "serving" in line, line + read_log()
        yield process, int(line.rsplit(":", 1)[1].split("/")[0])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        log.close()


def request_bytes(path, content, headers=()):
    """A POST as it goes over the wire."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def read_answer(reader):
    """The status, the headers and the body of one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(head[0].split()[1]), headers, body


async def ask(port, path, content, headers=()):
    """One request over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request_bytes(path, content, headers))
        await writer.drain()
        status, headers, body = await read_answer(reader)
        return status, headers, json.loads(body)
    finally:
        writer.close()


async def get(port, path):
    """What a GET answers, as text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        status, _, body = await read_answer(reader)
        return status, body.decode("utf-8")
    finally:
        writer.close()
