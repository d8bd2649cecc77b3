"""How fast a GPU trains: headstart beside the Trainer of transformers, and how near both come to the GPU's own limit.

    python benchmarks/speed_gpu.py [--seconds S] [--window S] [--only PATTERN] [--out FOLDER] [--add] [--profile] [--rehearse]

Each setting is a process of its own. All of them compile at the same time, which a GPU hardly notices; then they are
measured one after the other, alone, the most important first, until the seconds are spent. What was found is written
after each of them to OUT/speed-gpu.{json,md}. `--profile` also says which kernels ten of our own steps spend their time in,
after they were measured. `--rehearse` runs it all on a CPU with very small models.
On a machine that lacks our dependencies, put src and a folder with pydantic on PYTHONPATH.
"""

import argparse
import contextlib
import faulthandler
import gc
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
GIB = 2**30
STUCK = 20.0  # seconds after which a running child prints its stack
WARM_UP = 10  # steps before a setting is ready, and again after its turn has come
VASWANI_STEPS, VASWANI_TOKENS = 100_000, 50_000  # 25,000 tokens of each side a step


@dataclass(frozen=True)
class Setting:
    """One thing to measure: `system` is headstart or what transformers calls a model."""

    work: str  # rows with the same work stand together in a table
    system: str
    job: str
    preset: str
    length: int = 256
    settings: dict[str, Any] = field(default_factory=dict)
    is_compiled: bool = True
    gib: float = 16.0  # that compiling and measuring may take of the GPU's memory

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.work}: {self.system}{'' if self.is_compiled else ', plain'}"


# Kinds of kernels by what their names hold, the first that fits
KERNELS = {
    "attention": r"flash|fmha|sdpa|attention",
    "matrix products": r"gemm|nvjet|cutlass|xmma|matmul|addmm|cublas|mkldnn|\bmm\b|linear",
    "the vocabulary's loss": r"softmax|logsumexp|nll|cross_entropy",
    "norms with the residual sums": r"norm|rsqrt",
    "gated feed-forward, element by element": r"silu|gelu|sigmoid|erf",
    "optimiser": r"multi_tensor|foreach|adam|lerp",
    "copies and rotations": r"copy|memcpy|memset|cat|neg|clone",
}
MASKED, CAUSAL = {"objective": {"name": "masked-lm", "mask_rate": 0.3}}, {"objective": {"name": "causal-lm"}}
SETTINGS = [
    Setting("masked LM, 256 tokens", "headstart", "pretrain", "small", 256, MASKED),
    Setting("causal LM, 256 tokens", "headstart", "pretrain", "small", 256, CAUSAL),
    Setting("masked LM, 256 tokens", "BERT", "pretrain", "small", 256, MASKED, gib=26),
    Setting("causal LM, 256 tokens", "Llama", "pretrain", "small", 256, CAUSAL, gib=34),
    Setting("masked LM, 256 tokens", "ModernBERT", "pretrain", "small", 256, MASKED, gib=30),
    Setting("masked LM, 512 tokens", "headstart", "pretrain", "small", 512, MASKED),
    Setting("causal LM, 512 tokens", "headstart", "pretrain", "small", 512, CAUSAL),
    Setting("translation", "headstart", "finetune", "vaswani-base", 128, gib=24),
    Setting("classification", "headstart", "finetune", "small", 512, gib=8),
    Setting("masked LM, 512 tokens", "BERT", "pretrain", "small", 512, MASKED, gib=26),
    Setting("classification", "BERT", "finetune", "small", 512, is_compiled=False, gib=10),
    Setting("translation", "Marian", "finetune", "vaswani-base", 128, is_compiled=False, gib=30),
    Setting("translation", "headstart", "finetune", "vaswani-base", 128, is_compiled=False, gib=24),
    Setting("classification", "headstart", "finetune", "small", 512, is_compiled=False, gib=8),
    Setting("masked LM, 256 tokens", "headstart", "pretrain", "small", 256, MASKED, is_compiled=False),
    Setting("causal LM, 256 tokens", "headstart", "pretrain", "small", 256, CAUSAL, is_compiled=False),
    Setting("causal LM, 512 tokens", "Llama", "pretrain", "small", 512, CAUSAL, gib=34),
    Setting("masked LM, 512 tokens", "ModernBERT", "pretrain", "small", 512, MASKED, gib=30),
    Setting("causal LM, 256 tokens", "GPT-2", "pretrain", "small", 256, CAUSAL, gib=34),
    Setting("classification", "BERT", "finetune", "small", 512, gib=10),
    Setting("translation", "Marian", "finetune", "vaswani-base", 128, gib=30),
]
REHEARSED = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64},
    "tokenizer": {"vocab_size": 500},
    "training": {"tokens_per_batch": 512, "batch_size": 8, "device": "cpu"},
}


def settled(setting: Setting, rehearsed: bool) -> Any:
    """The run's settings; in bfloat16, with a budget that nothing here reaches."""
    from headstart.config import resolve
    from headstart.objectives import make_objective

    training = {
        "max_steps": VASWANI_STEPS, "max_length": setting.length, "compile": setting.is_compiled,
        "precision": "float32" if rehearsed else "bfloat16", "save_minutes": None,
    }  # fmt: skip
    if setting.preset != "vaswani-base":
        training["max_steps"] = 1_000_000
    config = resolve(
        setting.job, setting.preset, setting.settings, REHEARSED if rehearsed else {}, {"training": training}
    )
    body = make_objective(config.objective).resolve_backbone(config.model)
    return config.with_({"body": body.model_dump()})


# --- data, the same for both sides ----------------------------------------------------------------------------------


def draw(chance: Any, size: int, count: int) -> Any:
    """Tokens as often as words are in text: the n-th most frequent about 1/n of the time."""
    import numpy as np

    ranks = np.arange(1, size - 2, dtype=np.float64)
    edges = np.cumsum(1 / ranks)
    found = np.searchsorted(edges, chance.random(count) * edges[-1])
    return (np.minimum(found, size - 4) + 3).astype(np.int32)


def make_stream(folder: Path, size: int, tokens: int) -> Any:
    """A corpus of made-up documents on disk, as `headstart tokenize` would leave it."""
    import numpy as np

    from headstart.data.token_cache import DOCUMENT, Shard, TokenStream

    chance, shards = np.random.default_rng(0), []
    for number in range(4):
        path = folder / f"train-{number}"
        found = draw(chance, size, tokens // 4)
        ends = np.cumsum(chance.integers(50, 1500, 10 + tokens // 2000))
        ends = np.append(ends[ends < len(found)], len(found))
        found[ends - 1] = 2  # the end of a document is a special token, which is never hidden
        documents = np.zeros(len(ends), DOCUMENT)
        documents["end"], documents["bytes"] = ends, 4
        np.save(f"{path}.documents.npy", documents)
        np.save(f"{path}.tokens.npy", found.astype(np.uint16 if size < 2**16 else np.int32))
        shards.append(Shard(path, len(found), len(documents), 4 * len(documents)))
    return TokenStream(shards)


def make_texts(objective: Any, size: int, length: int, count: int) -> list[Any]:
    """Texts with classes, or pairs, of lengths like those of reviews and of news sentences."""
    import numpy as np

    from headstart.batch import EncodedExample

    chance = np.random.default_rng(0)
    is_pair = objective.reads == "translations"
    middle, spread = (24.0, 0.6) if is_pair else (230.0, 0.7)
    long = np.clip(np.exp(chance.normal(np.log(middle), spread, count)), 4, length - 1).astype(int)
    other = np.clip(long * chance.uniform(0.8, 1.25, count), 4, length - 1).astype(int)

    def texts(lengths: Any) -> list[Any]:
        return np.split(draw(chance, size, int(lengths.sum())), np.cumsum(lengths)[:-1])

    if is_pair:
        both = zip(texts(long + 1), texts(other), strict=True)
        return [EncodedExample(target, source=source) for target, source in both]
    return [EncodedExample(text, number % 2) for number, text in enumerate(texts(long))]


def make_loader(config: Any, objective: Any, size: int, folder: Path) -> Any:
    """The product's own loader over made-up text."""
    from headstart.batch import TextLoader
    from headstart.data.corpus_loaders import BlockLoader

    training = config.training
    if objective.reads == "blocks":
        stream = make_stream(folder, size, 400 * training.batch_tokens)
        return BlockLoader(stream, training.length, training.batch_tokens, training.seed, objective.lookahead)
    mean = 55 if objective.reads == "translations" else 260
    rows = make_texts(objective, size, training.length, max(400, 150 * training.batch_tokens // mean))
    return TextLoader(rows, training.batch_tokens, training.batch_examples, training.seed)


def make_alphabet(size: int) -> Any:
    """What objectives must know of a tokenizer."""
    from headstart.workflows.plan import SyntheticData

    return SyntheticData(size, 1, 1, 0, special_ids=frozenset({0, 1, 2}))


# --- one child: a setting, ready and then measured -------------------------------------------------------------------


class Gate:
    """Says that this process is ready, and waits for its turn."""

    def __init__(self, window: float, is_profiled: bool = False):
        self.window, self.is_profiled, self.is_open = window, is_profiled, False

    def wait(self) -> None:
        """Give the GPU's memory back, and wait."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        print("READY", flush=True)
        if sys.stdin.readline().strip() != "GO":
            os._exit(0)
        self.is_open = True
        faulthandler.dump_traceback_later(STUCK)  # what it does if it gives no answer
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    @staticmethod
    def now() -> float:
        """The time when all work so far is done."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def peak_bytes() -> int:
    """The most memory of tensors on the GPU; of the process where there is none."""
    import torch

    from headstart.training.runtime import peak_memory

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak_memory()


def graphs() -> int:
    """How many graphs torch has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


class Profile:
    """The time that a GPU, or a CPU where there is none, spends in each kind of kernel."""

    def __init__(self) -> None:
        from torch import cuda
        from torch.profiler import ProfilerActivity, profile

        kind = ProfilerActivity.CUDA if cuda.is_available() else ProfilerActivity.CPU
        self.field = f"self_{'device' if cuda.is_available() else 'cpu'}_time_total"
        self.profile = profile(activities=[kind])
        self.profile.start()

    def stop(self, steps: int) -> dict[str, Any]:
        """Milliseconds a step by kind, the largest kernels by name, and how many are started."""
        self.profile.stop()
        found: dict[str, float] = {}
        events = [event for event in self.profile.key_averages() if getattr(event, self.field) > 0]
        for event in events:
            kinds = (kind for kind, pattern in KERNELS.items() if re.search(pattern, event.key, re.IGNORECASE))
            kind = next(kinds, "other small kernels")
            found[kind] = found.get(kind, 0.0) + getattr(event, self.field) / 1e3 / steps
        largest = sorted(events, key=lambda event: -getattr(event, self.field))[:30]
        return {
            "kernels": dict(sorted(found.items(), key=lambda pair: -pair[1])),
            "largest": {
                event.key: [getattr(event, self.field) / 1e3 / steps, event.count / steps] for event in largest
            },
            "started": sum(event.count for event in events) / steps,
        }


def measure_ours(setting: Setting, gate: Gate, rehearsed: bool, folder: Path) -> dict[str, Any]:
    """The product's own loop from its first step on; every tenth step reports its progress, which this reads."""
    from headstart.errors import Stopped
    from headstart.models.model import build_model, count_parameters
    from headstart.objectives import make_objective
    from headstart.planning.devices import find_device
    from headstart.planning.plan import make_plan
    from headstart.planning.workload import count_flops, make_workload
    from headstart.training.callbacks import Event, StepDone
    from headstart.training.runtime import StopSignal, seed_everything, start_runtime
    from headstart.training.trainer import Trainer

    config = settled(setting, rehearsed)
    objective, size = make_objective(config.objective), config.tokenizer.vocabulary
    runtime = start_runtime(config.training)
    seed_everything(0)
    model = build_model(config.body, size, objective.heads(config.body, size, 2))
    loader = make_loader(config, objective, size, folder)
    stop, seen = StopSignal(), {}

    class Watched(Trainer):
        waited = 0.0

        def _steps(self) -> Iterator[Any]:
            steps = super()._steps()
            try:
                while True:
                    began = time.perf_counter()
                    parts = next(steps, None)
                    self.waited += time.perf_counter() - began
                    if parts is None:
                        return
                    yield parts
            finally:
                steps.close()  # type: ignore[attr-defined]

    def listen(event: Event) -> None:
        if not isinstance(event, StepDone):
            return
        if "ready" not in seen:
            # texts are compiled for when a batch comes whose sizes all differ, which may be later than the tenth
            if event.step >= WARM_UP and (graphs() or not setting.is_compiled):
                gate.wait()
                seen["ready"] = event.step
        elif "start" not in seen:
            if event.step >= seen["ready"] + WARM_UP:
                seen.update(start=gate.now(), step=event.step, tokens=event.tokens, graphs=graphs())
                seen["waited"] = trainer.waited
        elif "end" not in seen:
            if gate.now() - seen["start"] >= gate.window:
                seen.update(end=gate.now(), steps=event.step - seen["step"], waited_at_end=trainer.waited)
                seen.update(read=event.tokens - seen["tokens"], loss=event.loss, padding=event.padding)
                seen.update(peak=peak_bytes(), graphs_at_end=graphs())
                if gate.is_profiled:  # only now: a profiler slows the host for as long as the process lives
                    seen.update(profile=Profile(), profiled_from=event.step)
                else:
                    stop.signal = signal.SIGTERM
        elif isinstance(seen["profile"], Profile):
            seen["profile"] = seen["profile"].stop(event.step - seen["profiled_from"])
            stop.signal = signal.SIGTERM

    trainer = Watched(model, objective, loader, make_alphabet(size), config, runtime, on_event=listen, stop=stop)
    with contextlib.suppress(Stopped):
        trainer.run()
    seconds = seen["end"] - seen["start"]
    precision = str(runtime.precision).removeprefix("torch.")
    load = make_workload(config, runtime.device.type, precision, size)
    if setting.is_compiled:  # compiled code computes every position
        load = replace(load, last_layer_fraction=1.0, is_compiled=True)
    if objective.reads == "blocks":
        mean = load.length
    else:
        mean = round(float(loader.lengths[:, 0].mean()))
        source_length = round(float(loader.lengths[:, -1].mean())) if load.source_length else 0
        load = replace(load, length=mean, source_length=source_length)
    flops = count_flops(load)
    tokens = seen["read"] / seconds
    plan = make_plan(config, find_device("H200"), length=mean)
    return {
        "tokens_per_second": tokens,
        "step_ms": 1e3 * seconds / seen["steps"],
        "steps": seen["steps"],
        "flops_per_token": flops.training,
        "flops_per_second": flops.training * tokens,
        "loader_share": (seen["waited_at_end"] - seen["waited"]) / seconds,
        "peak_gib": seen["peak"] / GIB,
        "parameters": count_parameters(model),
        "padding": seen["padding"],
        "loss": seen["loss"],
        "graphs": seen["graphs_at_end"],
        "recompiled": seen["graphs_at_end"] - seen["graphs"],
        "planned_tokens_per_second": plan.step_time.tokens_per_second,
        **({"profile": seen["profile"]} if isinstance(seen.get("profile"), dict) else {}),
    }


def make_peer(setting: Setting, config: Any, size: int) -> Any:
    """A model of transformers of the same width, depth and number of weights."""
    import transformers as peers

    body = config.body
    layers, width, heads = body.num_layers, body.hidden_size, body.num_heads
    wide = body.intermediate_size * 3 // 2  # two matrices with as many weights as our three
    dropout = body.dropout
    common = {"vocab_size": size, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    common |= {"max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if setting.system == "BERT":
        made = peers.BertConfig(
            **common, intermediate_size=wide, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0
        )
        kind = peers.BertForMaskedLM if setting.job == "pretrain" else peers.BertForSequenceClassification
    elif setting.system == "ModernBERT":
        made = peers.ModernBertConfig(
            **common, intermediate_size=body.intermediate_size, global_attn_every_n_layers=1, cls_token_id=1, sep_token_id=2,
        )  # fmt: skip
        kind = peers.ModernBertForMaskedLM
    elif setting.system == "Llama":
        made = peers.LlamaConfig(
            **common, intermediate_size=body.intermediate_size, tie_word_embeddings=True, use_cache=False
        )
        kind = peers.LlamaForCausalLM
    elif setting.system == "GPT-2":
        made = peers.GPT2Config(
            vocab_size=size, n_embd=width, n_layer=layers, n_head=heads, n_inner=wide, n_positions=512,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        )  # fmt: skip
        kind = peers.GPT2LMHeadModel
    else:
        made = peers.MarianConfig(
            vocab_size=size, d_model=width, encoder_layers=layers, decoder_layers=layers,
            encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=body.intermediate_size,
            decoder_ffn_dim=body.intermediate_size, dropout=dropout, activation_function="relu", max_position_embeddings=512,
            pad_token_id=0, eos_token_id=2, decoder_start_token_id=0, forced_eos_token_id=2, use_cache=False,
            scale_embedding=True,
        )  # fmt: skip
        kind = peers.MarianMTModel
    made._attn_implementation = "sdpa"
    return kind(made)


def make_collator(setting: Setting, objective: Any, size: int) -> Callable[[list[Any]], dict[str, Any]]:
    """Batches of the very content that headstart makes of the same rows, in the words of transformers."""
    import torch

    from headstart.batch import IGNORE

    vocabulary, rng = make_alphabet(size), torch.Generator()

    def collate(batches: list[list[Any]]) -> dict[str, Any]:
        batch = objective.collate(batches[0], vocabulary, rng)
        if objective.name == "classify":
            return {
                "input_ids": batch.tokens, "attention_mask": batch.attention_mask.long(), "labels": batch.labels["class"]
            }  # fmt: skip
        if objective.name == "translate":
            return {
                "input_ids": batch.source, "attention_mask": batch.source_attention_mask.long(),
                "decoder_input_ids": batch.tokens, "decoder_attention_mask": batch.attention_mask.long(),
                "labels": batch.labels["lm"],
            }  # fmt: skip
        if objective.name == "causal-lm":
            rows = torch.stack([torch.from_numpy(row.tokens).long() for row in batches[0]])[:, :-1]
            return {"input_ids": rows, "labels": rows}
        labels = torch.full((batch.tokens.numel(),), IGNORE)
        labels[batch.label_positions] = batch.labels["lm"]
        return {"input_ids": batch.tokens, "labels": labels.view_as(batch.tokens)}

    return collate


def measure_peer(setting: Setting, gate: Gate, rehearsed: bool, folder: Path) -> dict[str, Any]:
    """transformers' Trainer with the flags that make it fastest, on the batches that our loader cuts."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging

    from headstart.objectives import make_objective

    logging.set_verbosity_error()
    config = settled(setting, rehearsed)
    objective, size = make_objective(config.objective), config.tokenizer.vocabulary
    if objective.reads != "blocks":  # cuDNN plans again for every shape, so it is disabled, as in headstart
        torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(0)
    model = make_peer(setting, config, size)
    loader = make_loader(config, objective, size, folder)
    batches = loader.batches(0)

    class Batches(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 10**7

        def __getitem__(self, number: int) -> list[Any]:
            return loader.fetch(batches[number % len(batches)], 0)

    seen: dict[str, float] = {}
    real = torch.zeros((), dtype=torch.long, device="cuda" if torch.cuda.is_available() else "cpu")
    in_full = config.training.batch_tokens // setting.length * setting.length if objective.reads == "blocks" else 0

    class Measuring(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if "ready" not in seen:
                if state.global_step >= WARM_UP:
                    gate.wait()
                    seen["ready"] = state.global_step
            elif "start" not in seen:
                if state.global_step >= seen["ready"] + WARM_UP:
                    seen.update(start=gate.now(), step=state.global_step, graphs=graphs(), read=int(real))
            elif time.perf_counter() - seen["start"] >= gate.window:
                seen.update(end=gate.now(), steps=state.global_step - seen["step"])
                seen["read"] = int(real) - seen["read"]
                control.should_training_stop = True

    class Counting(Trainer):
        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **rest: Any) -> Any:
            if not in_full:  # texts of many lengths: only real tokens are counted
                for name in ("attention_mask", "decoder_attention_mask"):
                    if name in inputs:
                        real.add_(inputs[name].sum().to(real.device))
            return super().training_step(model, inputs, *args, **rest)

    arguments = TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=1, max_steps=10**6, bf16=not rehearsed,
        torch_compile=setting.is_compiled, optim="adamw_torch_fused", dataloader_num_workers=0 if rehearsed else 4,
        dataloader_persistent_workers=not rehearsed, logging_strategy="no", save_strategy="no", report_to="none",
        disable_tqdm=True, remove_unused_columns=False, logging_nan_inf_filter=False, use_cpu=rehearsed,
        accelerator_config={"non_blocking": True},
        label_smoothing_factor=0.1 if objective.name == "translate" else 0.0,
    )  # fmt: skip
    trainer = Counting(
        model=model, args=arguments, train_dataset=Batches(), callbacks=[Measuring()],
        data_collator=make_collator(setting, objective, size),
    )  # fmt: skip
    trainer._get_train_sampler = lambda *_, **__: torch.utils.data.SequentialSampler(trainer.train_dataset)  # type: ignore[method-assign]
    trainer.train()
    seconds = seen["end"] - seen["start"]
    read = seen["steps"] * in_full if in_full else seen["read"]
    return {
        "tokens_per_second": read / seconds,
        "step_ms": 1e3 * seconds / seen["steps"],
        "steps": seen["steps"],
        "peak_gib": peak_bytes() / GIB,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "graphs": graphs(),
        "recompiled": graphs() - seen["graphs"],
    }


def measure_ceiling(gate: Gate, rehearsed: bool) -> dict[str, Any]:
    """The machine's own limits: a large matrix product of random numbers, and a large copy."""
    import torch

    device = torch.device("cpu" if rehearsed else "cuda")
    size, kind = (512, torch.float32) if rehearsed else (8192, torch.bfloat16)
    one, other = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    source = torch.randn((1 if rehearsed else 512) * 2**20, device=device)
    target, out = torch.empty_like(source), torch.empty_like(one)
    gate.wait()

    def fastest(work: Callable[[], object]) -> float:
        for _ in range(5):
            work()
        taken = []
        for _ in range(5):
            began = gate.now()
            for _ in range(20):
                work()
            taken.append((gate.now() - began) / 20)
        return sorted(taken)[2]

    matrix = 2 * size**3 / fastest(lambda: torch.mm(one, other, out=out))
    copy = 2 * source.numel() * 4 / fastest(lambda: target.copy_(source))
    name = "cpu" if rehearsed else torch.cuda.get_device_name()
    return {"matrix_flops": matrix, "copy_bytes": copy, "device": name, "torch": torch.__version__}


def measure(setting: Setting | None, gate: Gate, rehearsed: bool, folder: Path) -> dict[str, Any]:
    """The machine, our own loop, or a peer's."""
    if setting is None:
        return measure_ceiling(gate, rehearsed)
    return (measure_ours if setting.system == "headstart" else measure_peer)(setting, gate, rehearsed, folder)


def child(setting: Setting | None, window: float, is_profiled: bool, rehearsed: bool) -> None:
    """Measure one setting, or the machine, when the turn comes; print it as JSON."""
    gate = Gate(window, is_profiled)
    began = time.perf_counter()
    try:
        import torch._functorch.config as functorch

        # both ways are compiled before the first runs: no activations are held while the way back is compiled
        functorch.force_non_lazy_backward_lowering = True
    except (ImportError, AttributeError) as error:
        print(f"no eager lowering: {error}", file=sys.stderr)
    from torch import OutOfMemoryError, cuda

    for attempt in range(4):  # others who start at the same time may have the memory for a moment
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(setting, gate, rehearsed, Path(folder))
            break
        except OutOfMemoryError as error:
            if attempt == 3 or gate.is_open:
                raise
            print(f"again: {error}", file=sys.stderr)
        gc.collect()
        cuda.empty_cache()
        time.sleep(4 * (attempt + 1))
    faulthandler.cancel_dump_traceback_later()
    found["process_seconds"] = time.perf_counter() - began
    print("FOUND " + json.dumps(found), flush=True)
    sys.stdout.flush()
    os._exit(0)  # loader processes and compile workers have nothing more to say


# --- the parent: who compiles, whose turn it is, what is written ------------------------------------------------------


class Child:
    """A setting in a process of its own."""

    def __init__(self, setting: Setting | None, options: argparse.Namespace, cache: Path, log: Path):
        rehearsed = options.rehearse
        self.setting, self.name = setting, "the machine" if setting is None else setting.name
        command = [sys.executable, __file__, "--child", json.dumps(setting and asdict(setting))]
        command += ["--window", str(options.window)]
        command += ["--rehearse"] * rehearsed + ["--profile"] * options.profile
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}
        reasons = {"TORCH_LOGS": "recompiles"}  # why one that gives no answer is compiled for again
        threads = {"OMP_NUM_THREADS": "1" if rehearsed else "4"}
        self.log = log
        self.began = time.monotonic()
        self.errors = log.open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            env={**os.environ, **caches, **quiet, **reasons, **threads}, start_new_session=True,
        )  # fmt: skip
        self.ready, self.done = threading.Event(), threading.Event()
        self.ready_after = 0.0
        self.found: dict[str, Any] | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "READY":
                self.ready_after = time.monotonic() - self.began
                self.ready.set()
            elif line.startswith("FOUND "):
                self.found = json.loads(line.removeprefix("FOUND "))
                break
        self.done.set()
        self.ready.set()

    def measure(self, longest: float) -> dict[str, Any]:
        """Its turn: what it found, or what went wrong."""
        if self.found is None and not self.done.is_set():
            assert self.process.stdin is not None
            try:
                self.process.stdin.write("GO\n")
                self.process.stdin.flush()
            except OSError:
                pass
            self.done.wait(longest)
        if self.found is not None:
            return {**self.found, "ready_after": self.ready_after}
        return {"failed": self.last_words()}

    def last_words(self) -> str:
        """The end of what it said about its trouble."""
        self.errors.flush()
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        reasons = [line.partition("[__recompiles]")[2].strip() for line in lines if "[__recompiles]" in line]
        stacks = [at for at, line in enumerate(lines) if "(most recent call" in line]
        # an error ends the log with its reason; one that is stuck printed its innermost calls first
        is_stuck = bool(stacks) and "first" in lines[stacks[-1]]
        last = lines[stacks[-1] :][:6] if is_stuck else lines[-3:]
        return " | ".join([*reasons[-3:], *last])[:1200] or "no answer in time"

    def end(self) -> None:
        """Stop it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All settings in waves that fit the GPU's memory; results are written after each."""
    began = time.monotonic()
    left: Callable[[], float] = lambda: options.seconds - (time.monotonic() - began)  # noqa: E731
    settings = [setting for setting in SETTINGS if re.search(options.only, setting.name)]
    cache, logs = Path(tempfile.mkdtemp(prefix="inductor-")), Path(tempfile.mkdtemp(prefix="speed-gpu-"))
    found: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/speed_gpu.py", *sys.argv[1:]]),
        "commit": commit(), "python": platform.python_version(), "rows": [], "machine": {},
    }  # fmt: skip
    before = options.out / "speed-gpu.json"
    if options.add and before.exists():
        finished = [row for row in json.loads(before.read_text())["rows"] if "failed" not in row]
        found["rows"] = finished
        known = {(row["work"], row["system"], row["is_compiled"]) for row in finished}
        settings = [each for each in settings if (each.work, each.system, each.is_compiled) not in known]
    waiting: list[Setting | None] = [None, *settings]
    number = 0
    while waiting and left() > 25:
        wave: list[Child] = []
        for setting in choose(waiting, options, left()):
            waiting.remove(setting)
            log = logs / f"{number}.log"
            number += 1
            wave.append(Child(setting, options, cache, log))
        if not wave:
            break
        try:
            patience = min(options.compiling, left() - 8 * len(wave))
            until = time.monotonic() + max(15.0, patience)
            for each in wave:
                each.ready.wait(max(0.0, until - time.monotonic()))
            say(began, f"{sum(each.ready.is_set() for each in wave)} of {len(wave)} are ready")
            for each in [child for child in wave if not child.ready.is_set()]:
                note(found, each, {"failed": f"not compiled in time; {each.last_words()}"}, options)
                each.end()  # compiling takes the cores that start the others' kernels
                wave.remove(each)
            for each in wave:
                take_turn(each, found, options, began, left())
        finally:
            for each in wave:
                each.end()
    for setting in waiting:
        found["rows"].append({**(asdict(setting) if setting else {}), "failed": "no time was left"})
    found["seconds"] = time.monotonic() - began
    write(found, options.out)
    return found


def choose(waiting: list[Setting | None], options: argparse.Namespace, left: float) -> list[Setting | None]:
    """Who goes next: as many as memory and time allow, and none that must be compiled where time is short."""
    chosen: list[Setting | None] = []
    memory, has_time = 0.0, left >= options.compiling
    for setting in waiting:
        need = setting.gib if setting else 2.0
        compiles = any(each is not None and each.is_compiled for each in [*chosen, setting])
        seconds = (options.compiling if compiles else 20.0) + (options.window + 3) * (len(chosen) + 1)
        if setting is not None and setting.is_compiled and not has_time:
            continue
        if chosen and (memory + need > options.gib or len(chosen) >= options.at_once or seconds > left - 2):
            break
        memory += need
        chosen.append(setting)
    return chosen


def take_turn(each: Child, found: dict[str, Any], options: argparse.Namespace, began: float, left: float) -> None:
    """Measure one child and write down what it found."""
    if left < options.window:
        note(found, each, {"failed": "no time was left"}, options)
        return
    answer = each.measure(min(left, 3 * options.window + 15 + 30 * options.profile))
    say(began, f"{each.name}: {answer.get('failed') or brief(answer)}")
    note(found, each, answer, options)
    each.end()


def note(found: dict[str, Any], each: Child, answer: dict[str, Any], options: argparse.Namespace) -> None:
    if each.setting is None:
        found["machine"] = answer
    else:
        found["rows"].append({**asdict(each.setting), **answer})
    write(found, options.out)


def say(began: float, text: str) -> None:
    print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)


def brief(answer: dict[str, Any]) -> str:
    if "matrix_flops" in answer:
        return f"{answer['matrix_flops'] / 1e12:,.1f} TFLOP/s, {answer['copy_bytes'] / 1e9:,.0f} GB/s"
    share = f", loader {answer['loader_share']:.1%}" if "loader_share" in answer else ""
    return (
        f"{answer['tokens_per_second']:,.0f} tokens/s, {answer['step_ms']:.1f} ms a step{share}, "
        f"{answer['peak_gib']:.1f} GiB, ready after {answer['ready_after']:.0f} s"
    )


def commit() -> str:
    """The commit that is measured, where git knows it."""
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


# --- the page ---------------------------------------------------------------------------------------------------------


def page(found: dict[str, Any]) -> str:
    """What was found, as tables."""
    machine = found["machine"]
    lines = ["# Training speed on a GPU", "", "| | |", "|---|---|", f"| command | `{found['command']}` |"]
    lines += [f"| commit | {found['commit']} |"]
    if "matrix_flops" in machine:
        lines += [
            f"| machine | {machine['device']}, torch {machine['torch']}, Python {found['python']} |",
            f"| its own limit | {machine['matrix_flops'] / 1e12:,.0f} TFLOP/s (8192³ product of random bfloat16), "
            f"{machine['copy_bytes'] / 1e9:,.0f} GB/s (copy, read and written) |",
        ]
    lines += ["", *table(found), *vaswani(found), *kernels(found)]
    failed = [row for row in found["rows"] if "failed" in row]
    if failed:
        lines += ["", "Not measured:", ""]
        lines += [f"- {row.get('work')}, {row.get('system')}: {row['failed'][:300]}" for row in failed]
    return "\n".join(lines) + "\n"


def table(found: dict[str, Any]) -> list[str]:
    peak = found["machine"].get("matrix_flops")
    lines = [
        "| work | system | tokens a second | step, ms | share of the matrix peak | loader's share | peak GiB "
        "| weights | headstart is faster by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [row for row in found["rows"] if "failed" not in row]
    works = list(dict.fromkeys(row["work"] for row in rows))
    for work in works:
        same = [row for row in rows if row["work"] == work]
        ours = next((row for row in same if row["system"] == "headstart" and row["is_compiled"]), None)
        for row in same:
            share = f"{row['flops_per_second'] / peak:.1%}" if peak and "flops_per_second" in row else ""
            loader = f"{row['loader_share']:.2%}" if "loader_share" in row else ""
            is_peer = ours is not None and row is not ours
            ratio = f"{ours['tokens_per_second'] / row['tokens_per_second']:.2f} ×" if is_peer and ours else ""
            name = row["system"] + ("" if row["is_compiled"] else ", not compiled")
            lines.append(
                f"| {work} | {name} | {row['tokens_per_second']:,.0f} | {row['step_ms']:.1f} | {share} | {loader} "
                f"| {row['peak_gib']:.1f} | {row['parameters'] / 1e6:.1f} M | {ratio} |"
            )
    return lines


def kernels(found: dict[str, Any]) -> list[str]:
    """Where steps spend their time, with --profile."""
    rows = [row for row in found["rows"] if "profile" in row]
    if not rows:
        return []
    names = [f"{row['work']}{'' if row['is_compiled'] else ', not compiled'}" for row in rows]
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["profile"]["kernels"]))
    lines = [
        "",
        "Milliseconds a step by kind of kernel:",
        "",
        f"| kernels | {' | '.join(names)} |",
        "|---" * (len(rows) + 1) + "|",
    ]
    for kind in kinds:
        cells = [f"{row['profile']['kernels'].get(kind, 0.0):.1f}" for row in rows]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    sums = [f"{sum(row['profile']['kernels'].values()):.1f}" for row in rows]
    steps = [f"{row['step_ms']:.1f}" for row in rows]
    started = [f"{row['profile']['started']:,.0f}" for row in rows]
    return [
        *lines,
        f"| all | {' | '.join(sums)} |",
        f"| the step | {' | '.join(steps)} |",
        f"| started | {' | '.join(started)} |",
    ]


def vaswani(found: dict[str, Any]) -> list[str]:
    """The paper's "8 GPUs for 12 hours" on this machine."""
    row = next(
        (
            row for row in found["rows"]
            if row["preset"] == "vaswani-base" and row["system"] == "headstart" and "failed" not in row
        ),
        None,
    )  # fmt: skip
    if row is None:
        return []
    hours = VASWANI_STEPS * VASWANI_TOKENS / row["tokens_per_second"] / 3600
    planned = VASWANI_STEPS * VASWANI_TOKENS / row["planned_tokens_per_second"] / 3600
    return [
        "",
        f"The base model of \"Attention is all you need\": 100,000 steps of 25,000 + 25,000 tokens took its authors 8 P100 "
        f"GPUs 12 hours (96 GPU-hours). At the {row['tokens_per_second']:,.0f} real tokens a second read here it takes this "
        f"one GPU **{hours:.1f} hours**; `headstart plan` says {planned:.1f} hours.",
    ]  # fmt: skip


def write(found: dict[str, Any], folder: Path) -> None:
    """Both files, anew."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "speed-gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "speed-gpu.md").write_text(page(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=195.0, help="all of it")
    parser.add_argument("--window", type=float, default=3.5, help="seconds that each setting is measured")
    parser.add_argument("--compiling", type=float, default=80.0, help="seconds that a wave may compile")
    parser.add_argument("--gib", type=float, default=300.0, help="of the settings that compile together")
    parser.add_argument("--at-once", type=int, default=13, help="processes that compile together")
    parser.add_argument("--only", default="", help="settings whose name matches this")
    parser.add_argument("--add", action="store_true", help="to what OUT already holds, measuring the rest")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--profile", action="store_true", help="say which kernels our own steps spend their time in")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with very small models")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is None:
        has_gpu = shutil.which("nvidia-smi") or any(
            Path(device).exists() for device in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
        )
        if not (has_gpu or given.rehearse):
            print("there is no GPU here, so there is nothing to measure; --rehearse tries the script on a CPU")
            sys.exit(0)
        run(given)
    else:
        content = json.loads(given.child)
        child(Setting(**content) if content else None, given.window, given.profile, given.rehearse)
