"""Starting the processes of a run with torchrun, and what each of them learns of itself from the environment."""

import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from headstart.errors import ConfigError, LostError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

SAVING_SECONDS = 600  # for the last checkpoint of a stopped run, before torchrun kills it
CONNECTION_INTERVAL = 1.0  # seconds between two searches for new connections
OPEN_FILES = Path("/proc/self/fd")
LAUNCHED_BY_US = "HEADSTART_LAUNCHED"  # set for processes that `--nproc` started


@dataclass(frozen=True)
class RankInfo:
    """Which of a run's processes this one is."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    restarts: int = 0  # how often torchrun has started the processes again
    is_launched: bool = False  # by torchrun, whatever the number of processes
    is_job: bool = False  # by a torchrun of the user's own, as in a scheduler's job that may start again

    @property
    def may_resume(self) -> bool:
        """Whether the same command as before resumes its unfinished run."""
        return self.is_job or self.restarts > 0


def rank_info(environment: Mapping[str, str] | None = None) -> RankInfo:
    """This process's rank, as torchrun wrote it into the environment; a single process without torchrun."""
    env = os.environ if environment is None else environment
    if not all(name in env for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return RankInfo()
    rank, count = int(env["RANK"]), int(env["WORLD_SIZE"])
    return RankInfo(
        rank=rank,
        count=count,
        local_rank=int(env.get("LOCAL_RANK", rank)),
        local_count=int(env.get("LOCAL_WORLD_SIZE", count)),
        restarts=int(env.get("TORCHELASTIC_RESTART_COUNT", 0)),
        is_launched=True,
        is_job=LAUNCHED_BY_US not in env,
    )


def require_single_process(what: str) -> None:
    """Raise an error if this is one of several processes."""
    if rank_info().count > 1:
        hint = "without torchrun; pretrain, finetune and resume run in several"
        raise ConfigError(f"{what} runs in one process", hint=hint, is_shared=True)


def check_process_count(processes: int, device: str) -> None:
    """Raise an error for more processes than this machine has GPUs, or cores where there are none."""
    if processes < 1:
        raise ConfigError(f"--nproc {processes} starts nothing", hint="--nproc 2 or more")
    import torch

    has_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    most = torch.cuda.device_count() if has_gpu else cores()
    if processes > most:
        what = ("GPU" if has_gpu else "core") + ("" if most == 1 else "s")
        raise ConfigError(
            f"--nproc {processes} is more than the {most} {what} of this machine",
            hint=f"--nproc {most} at most" if most > 1 else "leave --nproc out",
        )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launch(
    words: list[str],
    processes: int,
    nodes: int = 1,
    endpoint: str | None = None,
    max_restarts: int = 0,
    timeout: float = 10.0,
) -> int:
    """The exit code of `headstart WORDS`, run in many processes by torchrun.

    Several machines meet at `endpoint`, HOST:PORT; a machine that does not answer for `timeout` minutes is lost.
    """
    if nodes > 1 and endpoint is None:
        raise ConfigError(
            "--nodes needs an address at which the machines meet",
            hint="add --rdzv-endpoint HOST:PORT, the same on each machine",
        )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING_SECONDS))
    os.environ[LAUNCHED_BY_US] = "1"
    options = ["--nproc-per-node", str(processes), "--max-restarts", str(max_restarts)]
    options += ["--monitor-interval", "0.2"]
    program = ["-m", "--", "headstart", *words]  # what follows -- is not an option of torchrun
    if endpoint is None:
        return _torchrun([*options, "--standalone", *program])
    host, port = _parse_endpoint(endpoint)
    is_host, address = _own_address(host, port)
    is_host = is_host and not _is_served(host, port)
    options += ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    options += ["--rdzv-id", "headstart", "--local-addr", address, "--rdzv-conf"]
    with tcp_timeouts(60 * timeout):
        if is_host:
            with suppress(LostError):  # another process of this machine was quicker
                return _torchrun([*options, "is_host=1", *program])
        return _torchrun([*options, "is_host=0", *program])


def _torchrun(arguments: list[str]) -> int:
    """The exit code of torchrun; its log is silenced, and an error is one sentence."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.run import parse_args, run

    logging.disable(logging.CRITICAL)
    try:
        run(parse_args(arguments))
    except ChildFailedError as error:
        return _exit_code(error)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except RendezvousError as error:
        raise LostError(
            f"this machine and the others cannot reach each other ({type(error).__name__})",
            hint="are all --nodes up, with the same --rdzv-endpoint, is its port free, and may they talk to each other?",
        ) from None
    return 0


def _exit_code(error: "ChildFailedError") -> int:
    """The exit code of the first process that failed; one that was killed printed nothing, so this prints why."""
    rank, first = min(error.failures.items(), key=lambda item: item[1].timestamp)
    if first.exitcode >= 0:
        return first.exitcode
    print(f"error: process {rank} was killed by signal {-first.exitcode}", file=sys.stderr)
    print(
        "hint: 9 often means too little memory, 6 a lost GPU or network; with --max-restarts 3 such a run is resumed "
        "by itself",
        file=sys.stderr,
    )
    return 1


def _own_address(host: str, port: int) -> tuple[bool, str]:
    """Whether this machine is the host, and its own address on the network that leads there."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except socket.gaierror:
        hint = "check --rdzv-endpoint, and the name service"
        raise ConfigError(f"no machine is called {host!r}", hint=hint) from None
    is_host = False
    for family, kind, _, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind) as trial:
            trial.bind((address[0], 0, *address[2:]))
            is_host = True
    family, kind, _, _, address = addresses[0]
    with socket.socket(family, kind) as route:
        route.connect(address)  # sends nothing
        return is_host, route.getsockname()[0]


def _parse_endpoint(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        hint = "for example --rdzv-endpoint node0:29500"
        raise ConfigError(f"--rdzv-endpoint {endpoint!r} is not HOST:PORT", hint=hint)
    return host, int(port)


def _is_served(host: str, port: int) -> bool:
    """Whether another process of the run serves the endpoint already; an error when something else does."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    answers: list[int] = []

    def ask() -> None:
        with suppress(RuntimeError):
            store = TCPStore(host, port, timeout=timedelta(seconds=5), wait_for_workers=False)
            answers.append(store.num_keys())

    question = Thread(target=ask, daemon=True)  # another service may never answer
    question.start()
    question.join(5)
    if not answers:
        hint = "choose another port for --rdzv-endpoint"
        raise ConfigError(f"port {port} of {host} is in use by something else", hint=hint)
    return True


@contextmanager
def tcp_timeouts(seconds: float) -> Iterator[None]:
    """Meanwhile, TCP connections of this process fail after so many seconds without an answer, new ones too."""
    is_over = Event()

    def search() -> None:
        while not is_over.wait(CONNECTION_INTERVAL):
            set_tcp_timeouts(seconds)

    searching = Thread(target=search, daemon=True)
    searching.start()
    try:
        yield
    finally:
        is_over.set()
        searching.join()


def set_tcp_timeouts(seconds: float) -> None:
    """Let the TCP connections of this process fail after so many seconds without an answer.

    Torch opens them without a limit and gives no access to them, so they are found where Linux lists open files.
    """
    if not (hasattr(socket, "TCP_USER_TIMEOUT") and OPEN_FILES.is_dir()):  # other systems have their own limits
        return
    for path in list(OPEN_FILES.iterdir()):
        with suppress(OSError):  # closed in the meantime, or not a TCP socket
            if os.readlink(path).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(path.name))) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds / 3)))
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(seconds / 6)))
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
