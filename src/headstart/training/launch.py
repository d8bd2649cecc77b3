"""Starting the processes of a run with torchrun, and what each of them is told of itself."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from headstart.errors import ConfigError, LostError

SAVING_SECONDS = 600  # that a stopped run has for its last checkpoint before torchrun kills it
LOOKS = 1.0  # seconds between two looks for new connections
OPEN = Path("/proc/self/fd")
BY_US = "HEADSTART_LAUNCHED"  # set for processes that `--nproc` started


@dataclass(frozen=True)
class RankInfo:
    """Which of a run's processes this one is."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    restarts: int = 0  # how often torchrun has started the processes again
    is_launched: bool = False  # by torchrun, whatever the number of processes
    is_job: bool = False  # by a torchrun of the user's own, as in a scheduler's job that may begin again

    @property
    def may_resume(self) -> bool:
        """Whether the same command as before means to go on with its unfinished run."""
        return self.is_job or self.restarts > 0


def rank_info(environment: Mapping[str, str] | None = None) -> RankInfo:
    """This process's place, as torchrun wrote it into the environment; alone without it."""
    told = os.environ if environment is None else environment
    if not all(name in told for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return RankInfo()
    rank, count = int(told["RANK"]), int(told["WORLD_SIZE"])
    return RankInfo(
        rank=rank,
        count=count,
        local_rank=int(told.get("LOCAL_RANK", rank)),
        local_count=int(told.get("LOCAL_WORLD_SIZE", count)),
        restarts=int(told.get("TORCHELASTIC_RESTART_COUNT", 0)),
        is_launched=True,
        is_job=BY_US not in told,
    )


def require_single_process(what: str) -> None:
    """Refuse to be one of many processes for work that one does alone."""
    if rank_info().count > 1:
        error = ConfigError(f"{what} runs in one process", hint="give the command without torchrun")
        error.is_shared = True  # every process finds the same
        raise error


def check_process_count(processes: int, device: str) -> None:
    """Refuse more processes than this machine has GPUs, or cores where there are none."""
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
    meet: str | None = None,
    max_restarts: int = 0,
    timeout: float = 10.0,
) -> int:
    """Run `headstart WORDS` in many processes under torchrun, and return the exit code of the whole.

    A meeting place that does not answer for `timeout` minutes is lost.
    """
    if nodes > 1 and meet is None:
        raise ConfigError(
            "--nodes needs a place where the machines meet",
            hint="add --meet HOST:PORT, the same on each machine",
        )
    options = ["--nproc-per-node", str(processes), "--max-restarts", str(max_restarts)]
    options += ["--monitor-interval", "0.2"]
    program = ["-m", "--", "headstart", *words]  # what follows -- is no option of torchrun
    with _surroundings(processes):
        if meet is None:
            return _run([*options, "--standalone", *program])
        is_taken = check_rendezvous(meet)
        options += ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", meet]
        options += ["--rdzv-id", "headstart", "--local-addr", own_address(meet), "--rdzv-conf"]
        with limited(int(meet.rpartition(":")[2]), 60 * timeout):
            if is_here(meet) and not is_taken:
                with suppress(LostError):  # another on this machine was quicker
                    return _run([*options, "is_host=1", *program])
            return _run([*options, "is_host=0", *program])


def _run(words: list[str]) -> int:
    """The exit code of torchrun with these words."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(words))
    except ChildFailedError as error:
        return _account_for(error)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except RendezvousError as error:
        raise LostError(
            f"this machine and the others cannot reach each other ({type(error).__name__})",
            hint="are all --nodes up, with the same --meet, and may they talk to each other?",
        ) from None
    return 0


@contextmanager
def _surroundings(processes: int) -> Iterator[None]:
    """Variables for the processes to come, and signals that torchrun may take; both are put back."""
    before = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING_SECONDS))
    os.environ[BY_US] = "1"
    logging.disable(logging.CRITICAL)  # torchrun's own log: what went wrong is told by us, in a sentence
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def check_rendezvous(meet: str) -> bool:
    """Refuse a meeting place that is none, or at which something else listens; whether one of us is there already."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, _, port = meet.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--meet {meet!r} is not HOST:PORT", hint="for example --meet node0:29500")
    try:
        with socket.create_connection((host, int(port)), timeout=2):
            pass
    except socket.gaierror:
        raise ConfigError(
            f"no machine is called {host!r}", hint="check --meet, and the name service"
        ) from None
    except OSError:
        return False  # nobody is there yet: one of us will be
    answered: list[int] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answered.append(
                TCPStore(host, int(port), timeout=timedelta(seconds=5), wait_for_workers=False).num_keys()
            )

    asking = Thread(target=ask, daemon=True)  # a stranger may keep it waiting for ever
    asking.start()
    asking.join(5)
    if not answered:
        raise ConfigError(
            f"port {port} of {host} is in use by something else", hint="choose another port for --meet"
        )
    return True


def is_here(meet: str) -> bool:
    """Whether the meeting place is on this machine: whether one could listen at its address."""
    host, _, _ = meet.rpartition(":")
    for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with suppress(OSError), socket.socket(family, kind) as trial:
            trial.bind(address)
            return True
    return False


def own_address(meet: str) -> str:
    """The address of this machine on the way to the meeting place; a name might mean another network."""
    host, _, port = meet.rpartition(":")
    family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect(address)  # sends nothing
        return way.getsockname()[0]


def _account_for(error: object) -> int:
    """The exit code of processes that failed; one that was killed could not speak, so this does for it."""
    failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)  # type: ignore[attr-defined]
    rank, first = failures[0]
    if first.exitcode < 0:
        print(f"error: process {rank} was killed by signal {-first.exitcode}", file=sys.stderr)
        print(
            "hint: 9 is often a want of memory, 6 a lost GPU or network; with --max-restarts 3 such a run is taken up "
            "again by itself",
            file=sys.stderr,
        )
        return 1
    return first.exitcode


@contextmanager
def limited(port: int, seconds: float) -> Iterator[None]:
    """Meanwhile, connections of this process to `port` of any machine fail after so many seconds without an answer."""
    over = Event()

    def look() -> None:
        while not over.wait(LOOKS):
            limit(port, seconds)

    inference_mode = Thread(target=look, daemon=True)
    inference_mode.start()
    try:
        yield
    finally:
        over.set()
        inference_mode.join()


def limit(port: int, seconds: float) -> int:
    """Let this process's connections to `port` fail after so many seconds without an answer; how many there are.

    Torch opens them without a limit and hands none of them out, so they are looked up where the system lists them.
    """
    if not (hasattr(socket, "TCP_USER_TIMEOUT") and OPEN.is_dir()):  # another system: its own patience holds
        return 0
    found = 0
    for path in list(OPEN.iterdir()):
        with suppress(OSError):  # closed in the meantime, or not connected
            if os.readlink(path).startswith("socket:"):
                found += _limit(int(path.name), port, seconds)
    return found


def _limit(handle: int, port: int, seconds: float) -> bool:
    with socket.socket(fileno=os.dup(handle)) as connection:
        is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
        if not is_internet or connection.type != socket.SOCK_STREAM or connection.getpeername()[1] != port:
            return False
        tcp = socket.IPPROTO_TCP
        connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
        connection.setsockopt(tcp, socket.TCP_KEEPIDLE, max(1, int(seconds / 3)))
        connection.setsockopt(tcp, socket.TCP_KEEPINTVL, max(1, int(seconds / 6)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return True
