"""A run leaves as an ONNX graph of any batch and length that answers the same."""

import pytest
import torch

from headstart.atomic_io import write_folder
from headstart.batch import Batch
from headstart.convert import onnx as exporter
from headstart.convert.onnx import GRAPH, OnnxClassifier, open_session, write_onnx
from headstart.errors import HeadstartError
from headstart.inference.classify import predict
from headstart.workflows.convert import export
from headstart.workflows.finetune import finetune
from tests.convert.hf_models import BERT_LIKE, MODERN, make_bundle
from tests.helpers.datasets import QUICK, write_labelled
from tests.helpers.tiny_models import SHAPES

VARIANTS = [
    {"objective": "causal-lm", "qk_norm": True, "num_kv_heads": 2},
    {"objective": "classify", "architecture": "causal"},
    {"objective": "classify", "settings": {"pooling": "mean+max"}, **SHAPES["lab"]},
    {"objective": "masked-lm+next-sentence", **BERT_LIKE},
    {"objective": "masked-lm", **MODERN},
    {"objective": "replaced-token", "position_embedding": "none", "norm": "layer"},
    {"objective": "classify", "architecture": "cnn"},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", VARIANTS, ids=lambda words: words["objective"] + "-" + words.get("architecture", "auto")
)
def test_the_graph_gives_the_same_answers_at_any_batch_and_length(words, tmp_path):
    bundle = make_bundle(**{"num_layers": 3 if "sliding_window" in words else 1, **words})
    written = write_onnx(bundle, tmp_path)
    assert written.difference < 1e-4
    session = open_session(tmp_path / GRAPH)
    for rows, length in ((1, 2), (3, 7), (5, 64)):
        tokens = torch.randint(5, 300, (rows, length), generator=torch.Generator().manual_seed(length))
        real = torch.arange(length)[None, :] < torch.linspace(2, length, rows).long()[:, None]
        segments = torch.zeros_like(tokens)
        given = {"input_ids": tokens, "attention_mask": real.long(), "token_type_ids": segments}
        found = session.run(None, {each.name: given[each.name].numpy() for each in session.get_inputs()})
        for name, said in zip(bundle.outputs(Batch(tokens, real)), found, strict=True):
            wanted = bundle.outputs(Batch(tokens, real, segments=segments))[name]
            gap = (wanted - torch.from_numpy(said)).abs()
            assert float((gap[real] if wanted.shape[:2] == real.shape else gap).max()) < 1e-4
    assert b"/convert/onnx.py" not in (tmp_path / GRAPH).read_bytes()  # nothing of the machine it was made on


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    table = write_labelled(folder / "table.tsv")
    settings = {**QUICK, "training": {**QUICK["training"], "max_steps": 30}, "optimizer": {"learning_rate": 3e-3}}
    finetune("scratch", str(table), folder / "run", settings=settings)
    texts = [line.split("\t")[0] for line in table.read_text("utf-8").splitlines()[1:]]
    texts += ["naïve café 日本 😀", "x", "[CLS] [PAD]", "long " * 200]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n", "utf-8")
    return folder


@pytest.mark.slow
def test_the_engine_onnx_predicts_what_torch_predicts(classifier):
    made = export(str(classifier / "run"), "onnx", classifier / "graph")
    assert made.difference < 1e-4
    torch_says = list(predict(str(classifier / "run"), str(classifier / "texts.txt")))
    onnx_says = list(predict(str(classifier / "graph"), str(classifier / "texts.txt"), engine="onnx"))
    assert len(torch_says) == 64
    assert [row[0] for row in torch_says] == [row[0] for row in onnx_says]
    assert [row[2] for row in torch_says] == [row[2] for row in onnx_says]
    assert max(abs(a[1] - b[1]) for a, b in zip(torch_says, onnx_says, strict=True)) < 1e-4
    with pytest.raises(HeadstartError, match="is an ONNX export"):
        predict(str(classifier / "graph"), str(classifier / "texts.txt"))
    with pytest.raises(HeadstartError, match="training"):
        predict(str(classifier / "graph"), "-", engine="onnx", settings={"training": {"max_length": 9}})
    (classifier / "graph" / GRAPH).write_bytes(b"torn")
    with pytest.raises(HeadstartError, match="cannot be read"):
        predict(str(classifier / "graph"), "-", engine="onnx")


@pytest.mark.slow
def test_eight_bits_are_smaller_and_their_agreement_is_reported(classifier):
    made = export(str(classifier / "run"), "onnx", classifier / "small", int8=True)
    assert made.details["int8"]
    assert made.details["int8_choices"] == made.texts
    assert made.details["int8_agreed"] >= made.texts - 2
    assert 0 < made.details["int8_difference"] < 1
    assert made.details["bytes"] == (classifier / "small" / GRAPH).stat().st_size
    torch_says = [row[0] for row in predict(str(classifier / "run"), str(classifier / "texts.txt"))]
    onnx_says = [row[0] for row in predict(str(classifier / "small"), str(classifier / "texts.txt"), engine="onnx")]
    assert sum(a == b for a, b in zip(torch_says, onnx_says, strict=True)) >= 60


@pytest.mark.slow
def test_a_graph_that_came_out_otherwise_is_not_left_behind(tmp_path, monkeypatch):
    bundle = make_bundle("classify", num_layers=1)
    real = exporter._write_graph

    def wrong(bundle, path, outputs):
        weight = bundle.model.heads["class"].classifier.bias
        with torch.no_grad():
            weight += 1
            real(bundle, path, outputs)
            weight -= 1

    monkeypatch.setattr(exporter, "_write_graph", wrong)
    with pytest.raises(HeadstartError, match="other outputs"):
        write_folder(tmp_path / "out", lambda beside: write_onnx(bundle, beside))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_exported_is_refused_with_the_way_to_export_it(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(HeadstartError) as caught:
        predict(str(tmp_path), "-", engine="onnx")
    assert "holds no model.onnx" in str(caught.value)
    assert "headstart export" in caught.value.hint


def test_an_unknown_engine_is_answered_with_the_nearest_one():
    with pytest.raises(HeadstartError) as caught:
        predict("anything", "-", engine="onxx")
    assert "onnx" in caught.value.hint


def test_a_bi_lstm_is_refused(tmp_path):
    with pytest.raises(HeadstartError, match="bi-lstm"):
        write_onnx(make_bundle("classify", architecture="bi-lstm"), tmp_path)


@pytest.mark.parametrize(
    "text", ["{}", "torn", '{"format": 2, "classes": [], "max_length": 9, "truncation_side": "start"}']
)
def test_a_folder_with_a_broken_description_is_refused(tmp_path, text):
    (tmp_path / GRAPH).write_bytes(b"")
    (tmp_path / "headstart.json").write_text(text)
    with pytest.raises(HeadstartError) as caught:
        OnnxClassifier.open(tmp_path)
    assert caught.value.hint
