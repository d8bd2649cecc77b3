"""Small runs to serve, made once."""

import io
import json

import pytest
from starlette.testclient import TestClient

import headstart
from headstart.serving.app import App
from headstart.serving.registry import AppState
from headstart.serving.schema import Limits
from headstart.serving.server import make_logger
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain
from tests.helpers.datasets import QUICK, write_corpus, write_labelled
from tests.helpers.parallel_datasets import TASKS, write_aligned


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A causal base, a classifier and a translator of a few steps, a run that is still training, and a finished comparison."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_CACHE", str(folder / "cache"))
        corpus = str(write_corpus(folder / "corpus.txt"))
        settings = {**QUICK, "objective": {"name": "causal-lm"}}
        settings["training"] = {**QUICK["training"], "max_steps": 12}
        pretrain([corpus], folder / "base", settings=settings)
        short = {**QUICK, "model": {**QUICK["model"], "num_layers": 2}}
        short["training"] = {"max_steps": 4, "max_length": 32}
        data = str(write_labelled(folder / "labelled.tsv"))
        finetune("scratch", data, folder / "classifier", settings=short)
        write_aligned(folder / "pairs", TASKS["number-words"], count=60)
        translator = {
            "model": {**QUICK["model"], "max_position_embeddings": 40, "position_embedding": "sinusoidal"},
            "tokenizer": {"type": "bpe", "vocab_size": 300},
            "training": {"max_length": 40, "tokens_per_batch": 1024, "max_steps": 3},
            "lr_schedule": {"warmup_steps": 10},
        }
        headstart.finetune("scratch", str(folder / "pairs"), folder / "translator", pair="src-trg", settings=translator)
    unfinished = folder / "unfinished"
    unfinished.mkdir()
    about = json.loads((folder / "base" / "run.json").read_text("utf-8"))
    (unfinished / "run.json").write_text(json.dumps({**about, "status": "running"}), "utf-8")
    (unfinished / "log.jsonl").write_bytes((folder / "base" / "log.jsonl").read_bytes())
    comparison = folder / "comparison"
    comparison.mkdir()
    (comparison / "compare.json").write_text("{}", "utf-8")
    (comparison / "report.html").write_text("<!doctype html><title>what it bought</title>", "utf-8")
    return folder


@pytest.fixture
def serve(runs):
    """A function that returns a client of a server over the small runs, and the state of the server."""
    opened = []

    def open_client(*names, token=None, hosts=frozenset(), logger=None, log_texts=False, **limits):
        names = names or ("classifier", "base", "unfinished", "comparison")
        logger = logger or make_logger(stream=io.StringIO())
        words = [str(runs / name) for name in names]
        state = AppState(words, Limits(**limits), logger, token, hosts, log_texts)
        state.load_all()
        opened.append(state)
        return TestClient(App(state), raise_server_exceptions=True), state

    yield open_client
    for state in opened:
        state.close()
