"""Export as an ONNX graph for batches of any size and length, and the classifier that onnxruntime runs from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from headstart.atomic_io import write_json
from headstart.batch import Batch, EncodedExample, TextLoader, pad
from headstart.convert.parity import (
    SAMPLES,
    ExportBundle,
    ParityReport,
    check_tokens,
    largest_difference,
    quiet,
    require_package,
    without_padding,
)
from headstart.convert.tokenizers import save_tokenizer
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError

GRAPH, DESCRIPTION = "model.onnx", "headstart.json"
MAX_BYTES = 1_900_000_000  # of weights inside one file; a protocol buffer holds 2 GiB
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Description(BaseModel):
    """What a folder says about its graph."""

    format: Literal[2] = 2
    classes: list[str]
    max_length: int
    truncation_side: str
    outputs: dict[str, str] = {}  # our heads by their names in the graph
    int8: bool = False


class _Graph(nn.Module):
    """The model as a function of tensors."""

    def __init__(self, bundle: ExportBundle):
        super().__init__()
        self.backbone = bundle.model.backbone
        self.heads = nn.ModuleList(bundle.model.heads[name] for name in bundle.heads)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        batch = Batch(input_ids, attention_mask.bool(), segments=token_type_ids)
        hidden = self.backbone(batch)
        return tuple(head(hidden, batch, self.backbone) for head in self.heads) or (hidden,)


def write_onnx(bundle: ExportBundle, folder: Path, int8: bool = False) -> ParityReport:
    """Fill `folder` with graph, tokenizer and labels, run it, and compare."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        require_package(package, "onnx", "an export to onnx")
    if bundle.config.architecture == "bi-lstm":
        problem = "an ONNX graph of any length cannot skip padding as a bi-lstm does"
        raise RunError(problem, hint="export a Transformer or a cnn")
    if bundle.is_translator:
        problem = "a translator reads two texts, and an ONNX graph here reads one"
        raise RunError(problem, hint="use --to transformers, or --to ctranslate2")
    names = list(bundle.heads)
    outputs = {names[0]: "logits"} if len(names) == 1 else {name: f"{name}_logits" for name in names}
    outputs = outputs or {"hidden": "last_hidden_state"}
    _write_graph(bundle, folder / GRAPH, list(outputs.values()))
    bundle.tokenizer.save(folder)
    if bundle.tokenizer.kind != "lab":  # as transformers has it, with the special tokens that it adds
        save_tokenizer(bundle, bundle.tokenizer, folder)
    description = Description(
        classes=bundle.classes,
        max_length=bundle.max_length,
        truncation_side=bundle.truncation_side,
        outputs=outputs,
        int8=int8,
    )
    write_json(folder / DESCRIPTION, description.model_dump())
    report = _compare(bundle, folder, list(outputs))
    if int8:
        _quantize(folder / GRAPH)
        report.details = _compare_int8(bundle, folder, list(outputs))
    num_bytes = sum(file.stat().st_size for file in folder.glob(f"{GRAPH}*"))
    report.details |= {"bytes": num_bytes, "int8": int8}
    return report


def _write_graph(bundle: ExportBundle, path: Path, outputs: list[str]) -> None:
    from torch.export import Dim

    example = torch.full((2, 3), bundle.tokenizer.unk_id)
    token_types = (torch.zeros_like(example),) if bundle.config.token_type_embeddings else ()
    inputs = (example, torch.ones_like(example), *token_types)
    sizes = {0: Dim("batch"), 1: Dim("length", min=2, max=bundle.config.max_position_embeddings)}
    num_bytes = sum(each.numel() * each.element_size() for each in bundle.model.parameters())
    with quiet():
        program = torch.onnx.export(
            _Graph(bundle).eval(),
            inputs,
            dynamo=True,
            verbose=False,
            input_names=list(INPUTS[: len(inputs)]),
            output_names=outputs,
            dynamic_shapes=tuple(dict(sizes) for _ in inputs),
        )
        assert program is not None
        for node in program.model.graph.all_nodes():  # the paths of our source files
            node.metadata_props.clear()
        program.save(str(path), external_data=num_bytes > MAX_BYTES)


def _quantize(path: Path) -> None:
    """Replace the graph by one with weights of 8 bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(path)
    del graph.graph.value_info[:]  # shapes that would contradict the new ones
    files = list(path.parent.glob(f"{path.name}*"))
    for file in files:
        file.unlink()
    with quiet():
        quantize_dynamic(
            graph, path, weight_type=QuantType.QInt8, per_channel=True, use_external_data_format=len(files) > 1
        )


def open_session(path: Path) -> Any:
    """A graph, ready to run on the CPU."""
    runtime = require_package("onnxruntime", "onnx", "--engine onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads burn no cores
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common parent
        raise RunError(f"{path} cannot be read: {error}", hint="export the run again") from None


def _run_session(session: Any, batch: Batch) -> list[Tensor]:
    segments = torch.zeros_like(batch.tokens) if batch.segments is None else batch.segments
    values = dict(zip(INPUTS, (batch.tokens, batch.attention_mask.long(), segments), strict=True))
    inputs = {each.name: values[each.name].numpy() for each in session.get_inputs()}
    return [torch.from_numpy(output) for output in session.run(None, inputs)]


def _compare(bundle: ExportBundle, folder: Path, heads: list[str]) -> ParityReport:
    """Compare the tokens of every sample and the outputs of the graph with those of the run."""
    rows = [
        [tokenizer.add_special_tokens(ids, bundle.max_length).tolist() for ids in tokenizer.encode(SAMPLES)]
        for tokenizer in (bundle.tokenizer, Tokenizer.load(folder))
    ]
    for text, ours, theirs in zip(SAMPLES, *rows, strict=True):
        check_tokens(text, ours, theirs)
    report, session = ParityReport("ONNX graph", len(SAMPLES)), open_session(folder / GRAPH)
    for batch in bundle.batches():
        outputs = bundle.outputs(batch)
        for head, output in zip(heads, _run_session(session, batch), strict=True):
            report.compare(outputs[head], output, batch.attention_mask)
    return report


def _compare_int8(bundle: ExportBundle, folder: Path, heads: list[str]) -> dict[str, Any]:
    """How often the graph of 8 bits predicts what the run predicts for the samples, and the largest difference."""
    session, batch = open_session(folder / GRAPH), bundle.batches()[0]
    outputs = bundle.outputs(batch)
    num_equal = num_choices = 0
    difference = 0.0
    for head, theirs in zip(heads, _run_session(session, batch), strict=True):
        ours, theirs = without_padding(outputs[head], theirs, batch.attention_mask)
        difference = max(difference, largest_difference(ours, theirs))
        equal = (ours > 0) == (theirs > 0) if ours.ndim < 2 else ours.argmax(-1) == theirs.argmax(-1)
        num_equal, num_choices = num_equal + int(equal.sum()), num_choices + equal.numel()
    return {"int8_difference": difference, "int8_agreed": num_equal, "int8_choices": num_choices}


@dataclass(frozen=True)
class OnnxClassifier:
    """An exported classifier in memory."""

    session: Any
    tokenizer: Tokenizer
    classes: list[str]
    max_length: int
    truncation_side: str

    @classmethod
    def open(cls, folder: Path) -> "OnnxClassifier":
        """The classifier in a folder that `headstart export --to onnx` wrote."""
        if not (folder / GRAPH).is_file() or not (folder / DESCRIPTION).is_file():
            is_run = (folder / "run.json").is_file()
            hint = f"`headstart export {folder} --to onnx --out DIR` first, and give DIR"
            problem = f"{folder} holds no {GRAPH} with its {DESCRIPTION}"
            raise RunError(problem, hint=hint if is_run else "check the path")
        try:
            found = Description.model_validate_json((folder / DESCRIPTION).read_bytes())
        except (OSError, ValueError):
            problem = f"{folder / DESCRIPTION} cannot be read by this version"
            raise RunError(problem, hint="export the run again") from None
        if not found.classes:
            raise RunError(f"{folder} is a language model and names no classes", hint="export a classifier")
        session, tokenizer = open_session(folder / GRAPH), Tokenizer.load(folder)
        return cls(session, tokenizer, found.classes, found.max_length, found.truncation_side)

    def probabilities(self, rows: Sequence[EncodedExample], batch_tokens: int) -> np.ndarray:
        """The probability of every class (N, C) for each text, in the order given."""
        found = np.zeros((len(rows), len(self.classes)))
        for numbers in TextLoader(rows, batch_tokens, shuffled=False).batches(0):
            batch = Batch(*pad([rows[number].tokens for number in numbers], self.tokenizer.pad_id))
            found[numbers] = _run_session(self.session, batch)[0].softmax(dim=-1).numpy()
        return found
