"""Several processes in a test: forks that find each other as torchrun's processes do, with what each of them found."""

import faulthandler
import os
import pickle
import socket
import subprocess
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

PATIENCE = 60  # seconds after which a process that hangs is ended


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(condition, process: subprocess.Popen) -> None:
    """Wait until something holds, as long as the process that is to bring it about lives."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def in_processes(count: int, work) -> list:
    """What `work()` returns in each of `count` processes; a problem in one of them is raised here."""
    port = free_port()
    with TemporaryDirectory() as folder:
        children = [_fork(rank, count, port, work, Path(folder) / str(rank)) for rank in range(count)]
        for child in children:
            os.waitpid(child, 0)
        found = [_read(Path(folder) / str(rank)) for rank in range(count)]
    problems = [said for is_well, said in found if not is_well]
    assert not problems, "\n".join(problems)
    return [said for _, said in found]


def _read(place: Path) -> tuple:
    return (
        pickle.loads(place.read_bytes()) if place.exists() else (False, f"process {place.name} died or hung")
    )


def _fork(rank: int, count: int, port: int, work, place: Path) -> int:
    child = os.fork()
    if child:
        return child
    told = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    os.environ.update({name: str(value) for name, value in told.items()})
    try:
        found = (True, work())
    except BaseException:
        found = (False, f"process {rank}: {traceback.format_exc()}")
    place.write_bytes(pickle.dumps(found))
    os._exit(0)
