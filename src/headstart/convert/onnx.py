"""A run as an ONNX graph of any batch and length, checked by onnxruntime; and the reader of such a folder."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headstart.atomic_io import write_json
from headstart.batch import Batch, Row, pad
from headstart.convert.parity import (
    SAMPLES,
    Parcel,
    Reading,
    Written,
    largest_difference,
    need,
    readings,
    refuse_if_apart,
    refuse_other_tokens,
)
from headstart.convert.tokenizers import leave
from headstart.data.samplers import TextLoader
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError

GRAPH, ABOUT, FORMAT = "model.onnx", "headstart.json", 1
LARGEST = 1_900_000_000  # bytes of weights inside one file; protocol buffers end at 2 GiB
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class _Graph(nn.Module):
    """The model as a function of tensors alone."""

    def __init__(self, parcel: Parcel):
        super().__init__()
        self.backbone = parcel.model.backbone
        self.heads = nn.ModuleList(parcel.model.heads[name] for name in parcel.heads)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        batch = Batch(input_ids, attention_mask.bool(), segments=token_type_ids)
        hidden = self.backbone(batch)
        return tuple(head(hidden, batch, self.backbone) for head in self.heads) or (hidden,)


def output_names(parcel: Parcel) -> dict[str, str]:
    """What each answer is called in the graph."""
    names = list(parcel.heads)
    if len(names) == 1:
        return {names[0]: "logits"}
    return {name: f"{name}_logits" for name in names} or {"hidden": "last_hidden_state"}


def write_onnx(parcel: Parcel, folder: Path, int8: bool = False) -> Written:
    """Fill `folder` with graph, tokenizer and labels, run it, and compare."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        need(package, "onnx", "an export to onnx")
    if parcel.body.kind == "bi-lstm":
        raise RunError(
            "a bi-lstm skips padding step by step, which an ONNX graph of any length cannot say",
            hint="export a Transformer or a cnn",
        )
    if parcel.body.kind == "encoder-decoder":
        raise RunError(
            "a translator reads two texts, and an ONNX graph here reads one",
            hint="use --to transformers, or --to ctranslate2",
        )
    names = output_names(parcel)
    _write_graph(parcel, folder / GRAPH, list(names.values()))
    _write_tokenizer(parcel, folder)
    about = {
        "format": FORMAT,
        "classes": parcel.classes,
        "length": parcel.length,
        "keep": parcel.keep,
        "outputs": names,
        "int8": int8,
    }
    write_json(folder / ABOUT, about)
    texts = _compare_tokens(parcel, folder)
    largest, numbers = _compare(parcel, folder, names)
    details: dict[str, Any] = {"bytes": _bytes(folder), "int8": int8}
    if int8:
        _quantize(folder / GRAPH)
        details |= _compare_int8(parcel, folder, names) | {"bytes": _bytes(folder)}
    return Written("ONNX graph", texts, largest, numbers, details=details)


def _write_tokenizer(parcel: Parcel, folder: Path) -> None:
    """The run's tokenizer, which also frames texts by itself where its format can say so."""
    parcel.tokenizer.save(folder)
    if parcel.tokenizer.kind != "lab":
        leave(
            parcel.tokenizer,
            folder,
            length=parcel.length,
            keep=parcel.keep,
            closes=not (parcel.body.kind == "causal" and "lm" in parcel.heads),
            has_segments=parcel.body.segments,
            reads_specials="lm" in parcel.heads,
            own_padding=False,
        )


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob(f"{GRAPH}*"))


def _write_graph(parcel: Parcel, path: Path, outputs: list[str]) -> None:
    from torch.export import Dim

    has_segments = parcel.body.segments
    example = torch.full((2, 3), parcel.tokenizer.unknown)
    given = (example, torch.ones_like(example), *((torch.zeros_like(example),) if has_segments else ()))
    sizes = {0: Dim("batch"), 1: Dim("length", min=2, max=parcel.body.max_length)}
    weight = sum(each.numel() * each.element_size() for each in parcel.model.parameters())
    with _quiet():
        program = torch.onnx.export(
            _Graph(parcel).eval(),
            given,
            dynamo=True,
            verbose=False,
            input_names=list(INPUTS[: len(given)]),
            output_names=outputs,
            dynamic_shapes=tuple(dict(sizes) for _ in given),
        )
        assert program is not None
        for node in program.model.graph.all_nodes():  # where in our code each one comes from, by path
            node.metadata_props.clear()
        program.save(str(path), external_data=weight > LARGEST)


def _quantize(path: Path) -> None:
    """Replace the graph by one with weights of 8 bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(path)
    del graph.graph.value_info[:]  # shapes of what is about to change, which would contradict the new ones
    files = list(path.parent.glob(f"{path.name}*"))
    is_large = len(files) > 1
    for file in files:
        file.unlink()
    with _quiet():
        quantize_dynamic(
            graph, path, weight_type=QuantType.QInt8, per_channel=True, use_external_data_format=is_large
        )


def open_session(path: Path) -> Any:
    """A graph, ready to run on the CPU."""
    runtime = need("onnxruntime", "onnx", "--engine onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # threads that wait must not burn cores
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common parent
        raise RunError(f"{path} cannot be read: {error}", hint="export the run again") from None


def _run(session: Any, reading: Reading) -> list[np.ndarray]:
    given = {
        "input_ids": reading.tokens.numpy(),
        "attention_mask": reading.real.long().numpy(),
        "token_type_ids": None if reading.segments is None else reading.segments.numpy(),
    }
    return session.run(None, {each.name: given[each.name] for each in session.get_inputs()})


def _compare_tokens(parcel: Parcel, folder: Path) -> int:
    """How many samples become the same tokens by the tokenizer beside the graph, which must be all."""
    beside = Tokenizer.load(folder)
    for text, ours, theirs in zip(
        SAMPLES, parcel.tokenizer.encode(SAMPLES), beside.encode(SAMPLES), strict=True
    ):
        frames = [
            each.frame(ids, parcel.length, parcel.keep)
            for each, ids in ((parcel.tokenizer, ours), (beside, theirs))
        ]
        refuse_other_tokens(text, frames[0].tolist(), frames[1].tolist())
    return len(SAMPLES)


def _compare(parcel: Parcel, folder: Path, names: dict[str, str]) -> tuple[float, int]:
    """The largest difference between the graph's answers and the run's, which must be the same."""
    session, largest, numbers = open_session(folder / GRAPH), 0.0, 0
    for reading in readings(parcel):
        ours = parcel.answers(reading.tokens, reading.real, reading.segments)
        for name, said in zip(names, _run(session, reading), strict=True):
            gap = largest_difference(ours[name], torch.from_numpy(said), reading.real)
            refuse_if_apart(gap, ours[name], "the ONNX graph")
            largest, numbers = max(largest, gap), numbers + said.size
    return largest, numbers


def _compare_int8(parcel: Parcel, folder: Path, names: dict[str, str]) -> dict[str, Any]:
    """How often the graph of 8 bits chooses as the run does on the samples, and the largest difference there."""
    session, reading = open_session(folder / GRAPH), readings(parcel)[0]
    ours = parcel.answers(reading.tokens, reading.real, reading.segments)
    agreed = chosen = 0
    largest = 0.0
    for name, said in zip(names, _run(session, reading), strict=True):
        wanted, found = ours[name], torch.from_numpy(said)
        largest = max(largest, largest_difference(wanted, found, reading.real))
        if wanted.shape[:2] == reading.real.shape and wanted.ndim > 2:
            wanted, found = wanted[reading.real], found[reading.real]
        same = (wanted > 0) == (found > 0) if wanted.ndim < 2 else wanted.argmax(-1) == found.argmax(-1)
        agreed, chosen = agreed + int(same.sum()), chosen + same.numel()
    return {"int8_difference": largest, "int8_agreed": agreed, "int8_choices": chosen}


@dataclass(frozen=True)
class OnnxClassifier:
    """An exported classifier in memory."""

    session: Any
    tokenizer: Tokenizer
    classes: list[str]
    length: int
    keep: str

    @staticmethod
    def open(folder: Path) -> "OnnxClassifier":
        """The classifier in a folder that `headstart export --to onnx` wrote."""
        if not (folder / GRAPH).is_file() or not (folder / ABOUT).is_file():
            is_run = (folder / "run.json").is_file()
            hint = (
                f"`headstart export {folder} --to onnx --out DIR` first, and give DIR"
                if is_run
                else "check the path"
            )
            raise RunError(f"{folder} holds no {GRAPH} with its {ABOUT}", hint=hint)
        try:
            about = json.loads((folder / ABOUT).read_text("utf-8"))
            if about["format"] > FORMAT:
                raise RunError(
                    f"{folder} was written by a newer headstart", hint="upgrade headstart to read it"
                )
            classes, length, keep = list(about["classes"]), int(about["length"]), str(about["keep"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{folder / ABOUT} cannot be read: {error!r}", hint="export the run again"
            ) from None
        if not classes:
            raise RunError(f"{folder} is a language model and names no classes", hint="export a classifier")
        return OnnxClassifier(open_session(folder / GRAPH), Tokenizer.load(folder), classes, length, keep)

    def probabilities(self, rows: Sequence[Row], batch_tokens: int) -> np.ndarray:
        """The probability of every class (N, C) for each text, in the order given."""
        found = np.zeros((len(rows), len(self.classes)))
        for numbers in TextLoader(rows, batch_tokens, shuffled=False).batches(0):
            tokens, real = pad(
                [torch.from_numpy(rows[number].tokens).long() for number in numbers], self.tokenizer.padding
            )
            (scores,) = _run(self.session, Reading(tokens, real, torch.zeros_like(tokens)))
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))  # (B, C)
            found[numbers] = powers / powers.sum(axis=-1, keepdims=True)
        return found


@contextmanager
def _quiet() -> Iterator[None]:
    """No advice from the exporters meanwhile."""
    import logging

    old = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(old)
