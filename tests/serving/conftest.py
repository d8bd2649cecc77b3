"""Small runs to serve, made once."""

import io
import json

import pytest
from starlette.testclient import TestClient

from headstart.serving.app import make_app
from headstart.serving.bounds import Bounds
from headstart.serving.log import Log
from headstart.serving.service import make_service
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain
from tests.worlds_of_text import QUICK, write_corpus, write_labelled


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A causal base and a classifier of a few steps, a run that is still training, and a finished comparison."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_CACHE", str(folder / "cache"))
        corpus = str(write_corpus(folder / "corpus.txt"))
        settings = {**QUICK, "objective": {"name": "causal-lm"}}
        settings["training"] = {**QUICK["training"], "steps": 12}
        pretrain([corpus], folder / "base", settings=settings)
        short = {**QUICK, "body": {**QUICK["body"], "layers": 2}}
        short["training"] = {"steps": 4, "length": 32}
        data = str(write_labelled(folder / "labelled.tsv"))
        finetune("scratch", data, folder / "classifier", settings=short)
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
    """A function that gives a client of a server over the small runs, and its service."""
    opened = []

    def open_client(*names, token=None, hosts=frozenset(), log=None, **bounds):
        names = names or ("classifier", "base", "unfinished", "comparison")
        log = log or Log(out=io.StringIO())
        words = [str(runs / name) for name in names]
        service = make_service(words, Bounds(**bounds), log, token=token, hosts=hosts)
        service.library.load()
        opened.append(service)
        return TestClient(make_app(service), raise_server_exceptions=True), service

    yield open_client
    for service in opened:
        service.library.close()
