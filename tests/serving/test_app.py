"""Every endpoint answers as the command line does, and as its schema says."""

import io
import json

import numpy as np
import pytest
from starlette.testclient import TestClient

from headstart.errors import RunError
from headstart.inference.classify import predict
from headstart.inference.embed import text_vectors
from headstart.planning.summary import plan_to_dict
from headstart.serving import schema
from headstart.serving.app import App
from headstart.serving.registry import AppState
from headstart.serving.routes import router
from headstart.serving.schema import Limits
from headstart.serving.server import make_logger
from headstart.workflows.plan import plan
from headstart.workflows.plot import plot_attention

TEXTS = ["a wonderful film", "the plot was dreadful", "", "  ", "日本語 🎬", "word " * 400, "a\x00b"]


def test_labels_are_those_of_predict_whatever_else_is_in_the_batch(serve, runs, tmp_path):
    client, _ = serve()
    plain = [text for text in TEXTS if text.strip() and "\x00" not in text]
    (tmp_path / "texts.txt").write_text("".join(text + "\n" for text in plain), "utf-8")
    known = list(predict(str(runs / "classifier"), str(tmp_path / "texts.txt")))
    answer = client.post("/v1/classify", json={"texts": plain})
    assert answer.status_code == 200
    found = schema.ClassifyResponse.model_validate(answer.json())
    assert found.model == "classifier"
    for (label, probability, _), given in zip(known, found.labels, strict=True):
        assert given.label == label
        assert given.probability == pytest.approx(probability, abs=1e-5)
        assert sum(given.probabilities.values()) == pytest.approx(1, abs=1e-5)
    assert [each.cut for each in found.labels] == [False, False, False, True]
    for text, together in zip(plain, found.labels, strict=True):
        alone = client.post("/v1/classify", json={"texts": [text]}).json()["labels"][0]
        assert alone["probability"] == pytest.approx(together.probability, abs=1e-5)


def test_unusual_texts_are_accepted(serve):
    client, _ = serve()
    for path in ("/v1/classify", "/v1/embed"):
        answer = client.post(path, json={"texts": TEXTS})
        assert answer.status_code == 200, answer.text


HUGE = {
    "letters": "a" * 50_000,
    "families": "\U0001f468\u200d" * 25_000,
    "accents": ("e" + "\u0301" * 99) * 500,
    "right to left": "\u202e\u0645\u0631" * 16_000,
    "nothing visible": "\u200b" * 50_000,
    "zeros": "\x00" * 50_000,
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_texts_of_any_script_are_truncated(serve, name):
    client, _ = serve()
    body = json.dumps({"texts": [HUGE[name]]}, ensure_ascii=False).encode("utf-8")
    answer = client.post("/v1/classify", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text[:300]
    assert answer.json()["labels"][0]["tokens"] <= 32


def test_each_token_has_an_attribution(serve):
    client, _ = serve()
    answer = client.post("/v1/classify", json={"texts": ["a wonderful <b>film</b>", ""], "explain": True})
    found = schema.ClassifyResponse.model_validate(answer.json()).labels
    assert "".join(found[0].explanation.pieces).replace("▁", " ").strip() == "a wonderful <b>film</b>"
    assert len(found[0].explanation.parts) == len(found[0].explanation.pieces) == found[0].tokens - 2
    assert found[1].explanation.parts == []
    assert found[1].explanation.whole == 0
    assert "explanation" not in client.post("/v1/classify", json={"texts": ["a"]}).json()["labels"][0]


def test_a_text_with_too_many_tokens_is_not_explained(serve):
    client, _ = serve(max_explained_tokens=8)
    answer = client.post("/v1/classify", json={"texts": ["word " * 20], "explain": True})
    assert answer.status_code == 422
    assert "8 are the most" in answer.json()["error"]


@pytest.mark.parametrize(("run", "pool"), [("classifier", "mean"), ("classifier", "cls"), ("base", "last")])
def test_vectors_are_those_of_embed(serve, runs, run, pool):
    client, _ = serve()
    texts = TEXTS[:5]
    answer = client.post("/v1/embed", json={"model": run, "texts": texts, "pool": pool})
    found = schema.EmbedResponse.model_validate(answer.json())
    np.testing.assert_allclose(found.vectors, text_vectors(str(runs / run), texts, pool=pool), atol=1e-5)
    assert found.width == 16


def test_the_first_token_of_a_causal_run_is_refused_as_a_vector(serve):
    client, _ = serve()
    answer = client.post("/v1/embed", json={"model": "base", "texts": ["a"], "pool": "cls"})
    assert answer.status_code == 409
    assert "mean" in answer.json()["hint"]


def test_attention_is_that_of_the_picture(serve, runs):
    client, _ = serve()
    answer = client.post("/v1/attention", json={"text": "a wonderful film"})
    found = schema.AttentionResponse.model_validate(answer.json())
    known, _ = plot_attention(str(runs / "classifier"), "a wonderful film", None)
    assert found.queries == found.keys == known.queries
    assert len(found.maps) == known.layers * known.attention_heads
    for each in found.maps:
        weights = known.weights[each.layer - 1, each.attention_head - 1]
        np.testing.assert_allclose(each.weights, weights, atol=1e-5)
    one = client.post("/v1/attention", json={"text": "a film", "layer": 2, "attention_head": 1}).json()
    assert [(each["layer"], each["attention_head"]) for each in one["maps"]] == [(2, 1)]


def test_missing_or_too_many_attention_maps_are_refused(serve):
    client, _ = serve(max_attention_values=100)
    gone = client.post("/v1/attention", json={"text": "a film", "layer": 3})
    assert (gone.status_code, gone.json()["hint"]) == (404, "it has 2")
    many = client.post("/v1/attention", json={"text": "a wonderful film indeed"})
    assert many.status_code == 422
    assert "layer" in many.json()["hint"]


def test_a_plan_is_that_of_the_command(serve):
    client, _ = serve()
    query = {"preset": "small", "gpu": "RTX 3060", "tokens": 1_000_000, "layers": 3, "optimizer": "muon"}
    answer = client.post("/v1/plan", json=query)
    schema.PlanResponse.model_validate(answer.json())
    settings = {"model": {"num_layers": 3}, "optimizer": {"name": "muon"}}
    known = plan_to_dict(plan("small", gpu="RTX 3060", tokens=1_000_000, settings=settings))
    assert answer.json() == json.loads(json.dumps(known))


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"gpu": "Abacus 9000"}, 404),
        ({"width": 10, "attention_heads": 3}, 409),
        ({"preset": "../../etc/passwd"}, 409),
        ({"preset": "tiny", "layers": 0}, 422),
    ],
)
def test_an_impossible_plan_is_refused_with_a_reason(serve, query, status):
    client, _ = serve()
    answer = client.post("/v1/plan", json=query)
    assert answer.status_code == status
    schema.ErrorResponse.model_validate(answer.json())


def test_models_and_runs_are_listed_in_the_order_given(serve):
    client, _ = serve()
    models = schema.ModelsResponse.model_validate(client.get("/v1/models").json()).models
    assert [model.name for model in models] == ["classifier", "base"]
    assert "classify" in models[0].can
    assert "classify" not in models[1].can
    runs = schema.RunsResponse.model_validate(client.get("/v1/runs").json()).runs
    assert [(run.name, run.kind, run.status) for run in runs] == [
        ("classifier", "finetune", "finished"),
        ("base", "pretrain", "finished"),
        ("unfinished", "pretrain", "running"),
        ("comparison", "compare", "finished"),
    ]
    assert [run.report is not None for run in runs] == [True, True, False, True]


def test_a_run_that_is_still_training_shows_its_curves_and_answers_nothing(serve):
    client, _ = serve()
    found = schema.RunResponse.model_validate(client.get("/v1/runs/unfinished").json())
    assert found.steps
    assert 0 < found.progress <= 1
    assert client.get("/v1/runs/unfinished?after=1000000").json()["steps"] == []
    answer = client.post("/v1/embed", json={"model": "unfinished", "texts": ["a"]})
    assert answer.status_code == 409
    assert "still training" in answer.json()["error"]


def test_a_run_answers_as_soon_as_it_has_finished(serve, runs, tmp_path):
    late = tmp_path / "late"
    late.mkdir()
    for file in (runs / "base").iterdir():
        if file.is_file() and file.name != "run.json":
            (late / file.name).write_bytes(file.read_bytes())
    about = (runs / "base" / "run.json").read_text("utf-8")
    (late / "run.json").write_text(json.dumps({**json.loads(about), "status": "running"}), "utf-8")
    state = AppState([str(late)], Limits(), make_logger(quiet=True))
    state.load_all()
    client = TestClient(App(state))
    assert client.post("/v1/embed", json={"texts": ["a"]}).status_code == 409
    (late / "run.json").write_text(about, "utf-8")
    assert client.post("/v1/embed", json={"texts": ["a"]}).status_code == 200
    state.close()


def test_a_comparison_shows_its_report_in_a_sandbox_and_answers_nothing(serve):
    client, _ = serve()
    answer = client.get("/v1/runs/comparison/report")
    assert answer.text.startswith("<!doctype html>")
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "script-src" not in answer.headers["content-security-policy"]
    assert client.get("/v1/runs/unfinished/report").status_code == 404
    assert client.post("/v1/embed", json={"model": "comparison", "texts": ["a"]}).status_code == 409


@pytest.mark.parametrize("path", ["/v1/classify", "/v1/embed"])
def test_an_unknown_name_is_answered_with_the_nearest_one(serve, path):
    client, _ = serve()
    answer = client.post(path, json={"model": "classifer", "texts": ["a"]})
    assert answer.status_code == 404
    assert "classifier" in answer.json()["hint"]
    assert client.get("/v1/runs/clasifier").status_code == 404


def test_a_run_without_the_ability_differs_from_one_that_is_not_served(serve):
    client, _ = serve()
    answer = client.post("/v1/classify", json={"model": "base", "texts": ["a"]})
    assert answer.status_code == 409
    assert "language model" in answer.json()["error"]
    none, _ = serve("comparison")
    assert none.post("/v1/classify", json={"texts": ["a"]}).status_code == 409


@pytest.mark.parametrize(
    ("limits", "query"), [({"max_texts": 2}, {"texts": ["a"] * 3}), ({"max_chars": 20}, {"texts": ["a" * 21]})]
)
def test_more_than_the_limits_allow_is_refused(serve, limits, query):
    client, _ = serve(**limits)
    answer = client.post("/v1/classify", json=query)
    assert answer.status_code == 422
    assert "are the most" in answer.json()["error"]


def test_two_runs_of_one_name_need_another_name(runs):
    with pytest.raises(RunError) as caught:
        AppState([str(runs / "base"), str(runs / "base")], Limits(), make_logger())
    assert "=" in caught.value.hint
    state = AppState([str(runs / "base"), f"other={runs / 'base'}"], Limits(), make_logger())
    assert list(state.runs) == ["base", "other"]
    for word in (str(runs / "nothing"), f"a/b={runs / 'base'}", str(runs)):
        with pytest.raises(RunError):
            AppState([word], Limits(), make_logger())


def test_requests_are_counted(serve):
    client, _ = serve()
    client.post("/v1/classify", json={"texts": ["a", "b"]})
    client.post("/v1/classify", json={"texts": []})
    client.get("/nowhere/<script>")
    text = client.get("/metrics").text
    assert 'headstart_requests_total{endpoint="/v1/classify",status="200"} 1' in text
    assert 'headstart_requests_total{endpoint="/v1/classify",status="422"} 1' in text
    assert 'headstart_requests_total{endpoint="other",status="404"} 1' in text
    assert 'headstart_texts_total{run="classifier"} 2' in text
    assert "headstart_memory_bytes" in text
    assert "script" not in text


def test_texts_are_logged_only_with_log_texts(serve):
    for with_texts in (False, True):
        out = io.StringIO()
        client, _ = serve(logger=make_logger(stream=out), log_texts=with_texts)
        client.post("/v1/classify", json={"texts": ["my\nsecret"]}, headers={"Authorization": "Bearer abc"})
        client.get("/my secret path")
        assert ("my\\nsecret" in out.getvalue()) == with_texts
        assert "abc" not in out.getvalue()
        assert "path" not in out.getvalue()
        assert out.getvalue().count("\n") == 2


def test_a_log_for_machines_is_json_line_by_line(serve):
    out = io.StringIO()
    client, state = serve(logger=make_logger(as_json=True, stream=out))
    client.get("/healthz")
    state.logger.error("hello")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0]["endpoint"] == "/healthz"
    assert lines[0]["status"] == 200
    assert lines[1]["message"] == "hello"


def test_the_description_names_every_endpoint_and_this_servers_own_limits(serve):
    client, _ = serve(max_texts=7, max_chars=99)
    found = client.get("/openapi.json").json()
    for route in router.routes:
        for method in route.methods:
            assert method.lower() in found["paths"][route.path]
    query = found["components"]["schemas"]["ClassifyRequest"]["properties"]
    assert query["texts"]["maxItems"] == 7
    assert query["texts"]["items"]["maxLength"] == 99
    assert query["model"]["anyOf"][0]["enum"] == ["classifier"]
    operations = [op["operationId"] for path in found["paths"].values() for op in path.values()]
    assert len(operations) == len(set(operations))
