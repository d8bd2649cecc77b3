"""`headstart serve --precision`: half-wide products, and nearly the same answers."""

import io

import numpy as np
import pytest
from starlette.testclient import TestClient

from headstart.errors import ConfigError
from headstart.serving.app import App
from headstart.serving.registry import AppState
from headstart.serving.schema import Limits
from headstart.serving.server import make_logger, serve
from headstart.training import runtime
from headstart.workflows.finetune import finetune
from tests.helpers.datasets import BAD, GOOD, PLAIN, QUICK, write_labelled
from tests.serving.clients import running

NEAR = 0.01  # how far a probability may be from float32, as docs/serve.md says
ALIKE = 0.005  # and from the same text read among others


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A classifier that has learnt its task."""
    folder = tmp_path_factory.mktemp("learnt")
    data = str(write_labelled(folder / "labelled.tsv", count=200))
    settings = {**QUICK, "model": {**QUICK["model"], "num_layers": 2}, "optimizer": {"learning_rate": 1e-2}}
    settings["training"] = {**QUICK["training"], "max_steps": 60}
    finetune("scratch", data, folder / "learnt", settings=settings)
    return folder / "learnt"


@pytest.fixture
def open_client(trained, monkeypatch):
    """A function that gives a client of a server in a precision, on a processor with bfloat16 or without."""
    opened = []

    def make(precision, has_half=True):
        monkeypatch.setattr(runtime, "has_bfloat16", lambda device: has_half)
        logger = make_logger(quiet=True, stream=io.StringIO())
        state = AppState([str(trained)], Limits(), logger, precision=precision)
        state.load_all()
        opened.append(state)
        return TestClient(App(state))

    yield make
    for state in opened:
        state.close()


def texts():
    """Reviews of many lengths, most of them clear."""
    return [
        " ".join(PLAIN[(number + at) % len(PLAIN)] if at % 3 else words[at % len(words)] for at in range(number))
        for number in range(1, 33)
        for words in (GOOD, BAD)
    ]


def classify(client, sent):
    return client.post("/v1/classify", json={"texts": sent}).json()["labels"]


def chances(labels):
    return np.array([label["probabilities"]["good"] for label in labels])


def test_bf16_predicts_nearly_the_probabilities_of_float32(open_client):
    plain, fast = (classify(open_client(precision), texts()) for precision in ("float32", "bf16"))
    exact, near = chances(plain), chances(fast)
    assert 0 < np.abs(exact - near).max() < NEAR
    clear = np.abs(exact - 0.5) > NEAR
    assert clear.sum() > 40  # a run that knows nothing would show nothing
    for one, other in zip(np.array(plain)[clear], np.array(fast)[clear], strict=True):
        assert one["label"] == other["label"]


def test_a_bf16_prediction_hardly_depends_on_its_batch(open_client):
    client = open_client("bf16")
    together = chances(classify(client, texts()))
    alone = np.concatenate([chances(classify(client, [text])) for text in texts()])
    assert np.abs(together - alone).max() < ALIKE


def test_bf16_vectors_are_similar_to_those_of_float32(open_client):
    plain, fast = (
        np.array(open_client(precision).post("/v1/embed", json={"texts": texts()}).json()["vectors"])
        for precision in ("float32", "bf16")
    )
    cosines = (plain * fast).sum(1) / np.linalg.norm(plain, axis=1) / np.linalg.norm(fast, axis=1)
    assert cosines.min() > 0.999


@pytest.mark.parametrize(
    ("precision", "has_half", "expected"),
    [(None, True, "float32"), ("auto", True, "float32"), ("bf16", True, "bfloat16"), ("bf16", False, "float32")],
)
def test_a_model_reports_its_precision(open_client, precision, has_half, expected):
    found = open_client(precision, has_half).get("/v1/models").json()["models"]
    assert [model["precision"] for model in found] == [expected]


def test_an_unknown_precision_is_refused_before_loading():
    with pytest.raises(ConfigError, match="fats"):
        serve(["nowhere"], precision="fats")


@pytest.mark.slow
def test_a_processor_without_bfloat16_is_reported(trained):
    has_half = runtime.has_bfloat16(runtime.torch.device("cpu"))
    with running(trained, options=("--precision", "bf16")) as (process, _):
        assert ("has no bfloat16 arithmetic" in process.read_log()) is not has_half
