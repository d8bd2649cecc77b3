"""Run a function in several processes that form a process group as torchrun's processes do."""

import faulthandler
import os
import pickle
import socket
import subprocess
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

TIMEOUT = 60  # seconds after which a hanging process is killed


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def wait_for(condition, process: subprocess.Popen) -> None:
    """Wait until `condition()` is true; fail if the process that should make it true has ended."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def in_processes(count: int, work) -> list:
    """Return what `work()` returns in each of `count` processes; fail if one of them raises."""
    port = free_port()
    with TemporaryDirectory() as folder:
        children = [_fork(rank, count, port, work, Path(folder) / str(rank)) for rank in range(count)]
        for child in children:
            os.waitpid(child, 0)
        results = [_read(Path(folder) / str(rank)) for rank in range(count)]
    problems = [result for succeeded, result in results if not succeeded]
    assert not problems, "\n".join(problems)
    return [result for _, result in results]


def _read(path: Path) -> tuple:
    if path.exists():
        return pickle.loads(path.read_bytes())
    return False, f"process {path.name} died or hung"


def _fork(rank: int, count: int, port: int, work, path: Path) -> int:
    child = os.fork()
    if child:
        return child
    variables = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        result = (True, work())
    except BaseException:
        result = (False, f"process {rank}: {traceback.format_exc()}")
    path.write_bytes(pickle.dumps(result))
    os._exit(0)
