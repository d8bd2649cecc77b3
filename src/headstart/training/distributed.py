"""Several processes that train one model together: what they send each other, and DDP and FSDP2.

They use the default group of torch.distributed. Before training it waits for hours, because one process may tokenise a
corpus while the others wait; `start` makes it anew for training, where minutes of silence are an error.

DDP and FSDP2 hook into a module's call, while an objective uses backbone and heads directly, so both wrap a module whose
call is the objective's work. Both average gradients over processes; losses are scaled so that gradients are sums.
"""

import ctypes
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from headstart.batch import Batch
from headstart.errors import ConfigError, HeadstartError, LostError, Stopped
from headstart.models.model import Model
from headstart.models.transformer import Block
from headstart.objectives.base import Loss, Objective
from headstart.training.launch import RankInfo, cores, rank_info, set_tcp_timeouts
from headstart.training.runtime import Processes, Runtime
from headstart.training.trainer import SingleDevice

PREPARATION = timedelta(hours=24)  # how long one process may work while the others wait, before training
RENDEZVOUS = timedelta(minutes=10)  # for all processes to start
VANISHED = 600.0  # seconds without an answer after which another machine is lost, before training

T = TypeVar("T")


@contextmanager
def peer_errors() -> Iterator[None]:
    """Turn torch's errors about a process that cannot be reached into one sentence."""
    words = ("gloo", "Connection", "connection", "Socket", "NCCL", "Timed out", "Broken pipe", "ProcessGroup")
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(word in str(error) for word in words):
            raise
        raise LostError(
            "another process of this run has died or fallen silent",
            hint="the run is complete up to its newest checkpoint: `headstart resume` continues from there",
        ) from error


class ProcessGroup(Processes):
    """The processes of a run, and which of them this one is."""

    def __init__(self, info: RankInfo):
        super().__init__(info)
        self._names: list[str] = []  # of numbers that were summed before

    # --- Python objects ---------------------------------------------------------------------------------------------

    def all_gather(self, value: T) -> list[T]:
        """The value of every process, by rank."""
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, work: Callable[[], T]) -> T:
        """What `work` returns on the main process, or the error that it raises there, on every process."""
        sent: list[Any] = [None]
        if self.is_main:
            try:
                sent[0] = work()
            except HeadstartError as error:
                sent[0] = error
        dist.broadcast_object_list(sent, src=0)
        if isinstance(sent[0], HeadstartError):
            raise type(sent[0])(sent[0].problem, hint=sent[0].hint, is_shared=True)
        found: T = sent[0]
        return found

    @contextmanager
    def raise_on_all(self) -> Iterator[None]:
        """Work that each process does by itself; the error of any of them is raised by all."""
        own: HeadstartError | None = None
        try:
            yield
        except HeadstartError as error:
            if error.is_shared:
                raise
            own = error
        for rank, each in enumerate(self.all_gather(own)):
            if each is not None:
                raise type(each)(
                    f"process {rank}: {each.problem}" if rank else each.problem, hint=each.hint, is_shared=True
                )

    def assert_equal(self, content: Any, what: str = "settings") -> None:
        """Raise an error if this process was given other content than the main one."""
        mains = self.broadcast(lambda: content)
        with self.raise_on_all():
            if content != mains:
                raise ConfigError(
                    f"{socket.gethostname()} was started with other {what} than the main process: "
                    f"{_difference(mains, content)}",
                    hint="give the same command on each machine",
                )

    def main_first(self, work: Callable[[], T]) -> T:
        """Do `work` on the main process, then on one process of each machine, then on the rest: they find it done."""
        found: list[T] = []
        for turn in range(3):
            with self.raise_on_all():
                if turn == (0 if self.is_main else 1 if self.info.local_rank == 0 else 2):
                    found.append(work())
        return found[0]

    # --- Numbers and tensors ----------------------------------------------------------------------------------------

    def start(self, device: torch.device, minutes: float) -> None:
        """Prepare for training on `device`: from now on a collective that waits longer than `minutes` is an error."""
        dist.destroy_process_group()
        has_nccl = device.type == "cuda" and dist.is_nccl_available()
        _init_group(self.info, timedelta(minutes=minutes), "cpu:gloo,cuda:nccl" if has_nccl else "gloo")

    def all_reduce(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The sum of each number over all processes; a name that some lack counts as zero there."""
        while True:
            unknown = [name for name in numbers if name not in self._names]
            row = [float(len(unknown)), *(float(numbers.get(name, 0)) for name in self._names)]
            sums = torch.tensor(row, dtype=torch.float64)
            dist.all_reduce(sums)
            if not sums[0]:
                return dict(zip(self._names, sums[1:].tolist(), strict=True))
            self._names += sorted({name for names in self.all_gather(unknown) for name in names})

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Iterator[tuple[str, Tensor]]:
        """The main process's named tensors on every process, one at a time."""
        assert (tensors is not None) == self.is_main
        known = tensors or {}
        for name, shape, dtype in self.broadcast(lambda: [(k, t.shape, t.dtype) for k, t in known.items()]):
            tensor = known[name].cpu().contiguous() if self.is_main else torch.empty(shape, dtype=dtype)
            dist.broadcast(tensor, src=0)
            yield name, tensor


def _difference(one: Any, other: Any, where: str = "") -> str:
    """The first difference between two JSON-able values, in words."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{where}.{key}" if where else str(key))
    return f"{where or 'it'} is {other!r}, not {one!r}"


# A group that is destroyed together with the DDP module that uses it waits for itself (torch 2.13), so all are retained.
_groups: list[Any] = []


@contextmanager
def init_group() -> Iterator[Processes]:
    """The processes that torchrun started for this run; it may have started a single one."""
    info = rank_info()
    if info.count == 1:
        yield Processes(info)
        return
    _end_with_parent()
    os.environ.setdefault("RAYON_NUM_THREADS", str(max(1, cores() // info.local_count)))  # of the tokenizers
    with peer_errors():
        _init_group(info, PREPARATION)
        set_tcp_timeouts(VANISHED)
        processes = ProcessGroup(info)
        try:
            yield processes
        except (Stopped, HeadstartError) as error:
            if getattr(error, "is_shared", True):
                _destroy_group(processes)
            raise
        _destroy_group(processes)


def _init_group(info: RankInfo, timeout: timedelta, backend: str = "gloo") -> None:
    """Make the default process group; its keys in the store are new to all processes."""
    store = _store(info)
    fresh = PrefixStore(_fresh_prefix(store, info), store)
    dist.init_process_group(backend, store=fresh, rank=info.rank, world_size=info.count, timeout=timeout)
    _groups.append(dist.group.WORLD)


def _destroy_group(processes: Processes) -> None:
    processes.all_gather(None)  # all have finished
    dist.destroy_process_group()


@lru_cache(maxsize=1)
def _store(info: RankInfo) -> Store:
    """The key-value store of all processes; without torchrun the main process serves it until it ends."""
    found: Store = next(rendezvous("env://", info.rank, info.count, timeout=RENDEZVOUS))[0]
    return found


def _fresh_prefix(store: Store, info: RankInfo) -> str:
    """A key prefix that these processes agree on: after a restart, torchrun's store still holds the keys of before.

    The main process publishes a new prefix; another process takes it once the main process has answered its own new key.
    """
    own, prefix = uuid4().hex, ""
    if info.rank == 0:
        store.set("prefix", own)
        for rank in range(1, info.count):
            other = store.get(f"{own}/{rank}").decode()  # waits for it
            store.set(f"{own}/{other}", "")
        return own
    deadline = time.monotonic() + RENDEZVOUS.total_seconds()
    while not (prefix and store.check([f"{prefix}/{own}"])):
        if time.monotonic() > deadline:
            raise dist.DistStoreError("Timed out: the main process did not start")
        time.sleep(0.02)
        prefix = store.get("prefix").decode()  # perhaps that of an earlier attempt
        store.set(f"{prefix}/{info.rank}", own)
    return prefix


def _end_with_parent() -> None:
    """Ask Linux for a SIGTERM when torchrun dies, so that no process is left behind."""
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal.SIGTERM)


def own_gpu(info: RankInfo) -> str:
    """The name of this process's GPU."""
    available = torch.cuda.device_count()
    if info.local_count > available:
        raise ConfigError(
            f"{info.local_count} processes on one machine need as many GPUs, and this one has {available}",
            hint=f"start {available} processes, or set training.device=cpu",
        )
    torch.cuda.set_device(info.local_rank)
    return f"cuda:{info.local_rank}"


# --- The rows of each process -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchShard:
    """Rows of one batch of a step: slice `number` of `count` even ones."""

    batch: int
    number: int = 0
    count: int = 1

    def rows(self, total: int) -> tuple[int, int]:
        """The first row, and the one after the last, of a batch of `total` rows."""
        return total * self.number // self.count, total * (self.number + 1) // self.count


def batch_shards(batches: int, rank: int, count: int) -> list[BatchShard]:
    """The shards of one process in a step of so many batches; all processes have the same number.

    Each process gets whole batches as long as there is one for each; the rest are cut into rows.
    """
    whole = batches // count * count
    shards = [BatchShard(at + rank) for at in range(0, whole, count)]
    return shards + [BatchShard(at, rank, count) for at in range(whole, batches)]


def collate_shard(
    shard: BatchShard, batches: Sequence[np.ndarray], collate: Callable[[np.ndarray, int], Batch], is_rowwise: bool
) -> Batch:
    """The shard's rows as a batch, with the labels that they have among all rows; a dummy where it has no rows.

    `batches` are the row numbers of each batch of the step; `collate` makes a batch of some, given its number in the step.
    """
    rows = batches[shard.batch]
    start, stop = shard.rows(len(rows))
    is_dummy = start == stop
    if is_dummy:
        start, stop = 0, 1
    if is_rowwise or shard.count == 1:
        batch = collate(rows[start:stop], shard.batch)
    else:
        batch = collate(rows, shard.batch).rows(start, stop)
    return replace(batch, is_dummy=True) if is_dummy else batch


# --- The model in each process ------------------------------------------------------------------------------------------


class CallModule(nn.Module):
    """A model whose call is any work with it."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[Model], Any]) -> Any:
        """What `work` returns for the model."""
        return work(self.model)


class DDPStrategy(SingleDevice):
    """The whole model in each process; gradients are summed during the backward pass (DDP)."""

    def __init__(self, model: Model, runtime: Runtime):
        super().__init__(model, runtime)
        self.scale = float(runtime.processes.count)
        self._call = CallModule(model)
        self._ddp: DistributedDataParallel | None = None
        self._trained: list[nn.Parameter] = []

    def refresh(self) -> None:
        """Note which weights are trained; DDP looks once, so a change needs a new one."""
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        if len(trained) != len(self._trained):
            self._ddp, self._trained = None, trained

    def losses(self, objective: Objective, batch: Batch, is_last: bool) -> dict[str, Loss]:
        """The loss of each head on this process's rows; gradients are not exchanged before the last batch."""
        if self._ddp is None:
            self._ddp = self._wrap(objective, batch)
        with nullcontext() if is_last else self._ddp.no_sync():
            found: dict[str, Loss] = self._ddp(lambda model: objective.losses(model, batch))
            return found

    def _wrap(self, objective: Objective, batch: Batch) -> DistributedDataParallel:
        """DDP that knows whether some weights (such as a pooler) do not affect the losses; a search at each step takes time."""
        with torch.random.fork_rng([self.runtime.device] if self.runtime.device.type == "cuda" else []):
            totals = [loss.total for loss in objective.losses(self.model, batch).values()]
        grads = torch.autograd.grad(sum(totals[1:], totals[0]), self._trained, allow_unused=True)
        unused = float(any(grad is None for grad in grads))
        some_unused = bool(self.runtime.processes.all_reduce({"unused": unused})["unused"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its new name is not in every supported torch
            return DistributedDataParallel(
                self._call, find_unused_parameters=some_unused, gradient_as_bucket_view=True, broadcast_buffers=False
            )


class FSDPStrategy(SingleDevice):
    """A part of every matrix in each process; a block's matrices are gathered when it is computed (FSDP2).

    Gradients are summed at every batch: to hold unsharded ones until the last would cost the memory that is saved.
    """

    def __init__(self, model: Model, runtime: Runtime):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes half a second to import
        from torch.distributed.tensor import DTensor, distribute_tensor

        self._dtensor, self._distribute = DTensor, distribute_tensor
        self.model, self.runtime = model, runtime
        self.scale = float(runtime.processes.count)
        # Matrices are gathered in autocast's precision; gradients are summed in float32.
        policy = MixedPrecisionPolicy()
        if runtime.precision != torch.float32:
            policy = MixedPrecisionPolicy(runtime.precision, torch.float32, cast_forward_inputs=False)
        self._mesh = init_device_mesh(runtime.device.type, (runtime.processes.count,))
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            matrices: list[nn.Module] = [part for part in block.modules() if isinstance(part, nn.Linear)]
            fully_shard(matrices, mesh=self._mesh, mp_policy=policy)
        self._root: Any = fully_shard(CallModule(model), mesh=self._mesh)
        model.to(runtime.device)  # buffers

    def losses(self, objective: Objective, batch: Batch, is_last: bool) -> dict[str, Loss]:
        """The loss of each head on this process's rows."""
        found: dict[str, Loss] = self._root(lambda model: objective.losses(model, batch))
        return found

    def read(self, work: Callable[[Model], T]) -> T:
        """What `work` returns; weights outside of blocks are gathered meanwhile, and each block gathers its own."""
        with torch.no_grad():
            found: T = self._root(work)
        self._root.reshard()
        return found

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gathered one by one; only the main process retains them."""
        unsharded = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor().cpu() if isinstance(tensor, self._dtensor) else tensor
            if self.runtime.processes.is_main:
                unsharded[name] = full
        return unsharded

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Cut out of the unsharded tensor, which every process has."""
        if not isinstance(like, self._dtensor) or tensor.shape != like.shape:
            return tensor
        return self._distribute(tensor.to(self.runtime.device), like.device_mesh, like.placements, src_data_rank=None)

    def matrix(self, tensor: Tensor) -> Tensor:
        """Gathered; every process gets it."""
        return tensor.full_tensor() if isinstance(tensor, self._dtensor) else tensor
