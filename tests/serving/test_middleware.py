"""Access: tokens, hosts, paths, sizes, and a server that stops."""

import pytest

from headstart.config import parse
from headstart.errors import ConfigError, RunError
from headstart.serving.app import PUBLIC_PATHS, SECURITY_HEADERS, App
from headstart.serving.routes import router
from headstart.serving.schema import ServerConfig
from headstart.serving.server import listen, read_token
from headstart.serving.server import serve as start_server

TOKEN = "correct-horse-battery-staple"


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


PROTECTED = [
    (method, route.path) for route in router.routes for method in route.methods if route.path not in PUBLIC_PATHS
]


@pytest.mark.parametrize(("method", "path"), PROTECTED, ids=[path for _, path in PROTECTED])
def test_nothing_is_sent_without_the_token(serve, method, path):
    client, _ = serve(token=TOKEN)
    path = path.format(name="base")
    for headers in ({}, bearer("wrong"), bearer(TOKEN[:-1]), bearer(TOKEN + "x"), bearer(""), {"Authorization": TOKEN}):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert set(answer.json()) == {"error", "hint"}
        assert TOKEN not in answer.text
    assert client.request(method, path, headers=bearer(TOKEN)).status_code in (200, 415)


def test_a_missing_path_needs_the_token_too(serve):
    client, _ = serve(token=TOKEN)
    assert client.get("/v1/nothing").status_code == 401
    assert client.get("/v1/nothing", headers=bearer(TOKEN)).status_code == 404


def test_the_page_and_the_health_of_the_server_need_no_token(serve):
    client, _ = serve(token=TOKEN)
    assert client.get("/healthz").json() == {"status": "ready"}
    assert client.get("/").status_code == 200


def test_a_report_is_opened_only_by_its_own_signature(serve):
    client, state = serve(token=TOKEN)
    runs = {run["name"]: run["report"] for run in client.get("/v1/runs", headers=bearer(TOKEN)).json()["runs"]}
    assert client.get(runs["comparison"]).status_code == 200
    signature = runs["comparison"].partition("?")[2]
    assert client.get(f"/v1/runs/base/report?{signature}").status_code == 401
    assert client.get(f"/v1/runs/comparison?{signature}").status_code == 401
    assert client.get("/v1/runs/comparison/report?signature=").status_code == 401
    old = state.sign_report("comparison", now=0.0)
    assert client.get(f"/v1/runs/comparison/report?signature={old}").status_code == 401
    assert state.is_signature("comparison", state.sign_report("comparison", now=7199.0), now=7201.0)


def test_another_host_is_refused_without_a_token(serve):
    client, _ = serve(hosts=frozenset(["127.0.0.1", "localhost", "::1"]))
    for host in ("127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "[::1"):
        expected = 200 if host == "[::1" else 403
        assert client.get("/healthz", headers={"Host": host}).status_code == expected


PATHS = [
    "/../etc/passwd",
    "/..%2f..%2fetc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/static/../../errors.py",
    "/index.html/../__init__.py",
    "//etc/passwd",
    "/v1/runs/..%2f..%2fetc",
    "/v1/runs/../../etc/report",
    "/v1/runs/%2e%2e/report",
    "/v1/runs/base%00/report",
    "/__init__.py",
    "/playground/index.html",
    "/healthz/",
    "/\\windows\\win.ini",
    "/%00",
    "/" + "a" * 5000,
]


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_no_path_of_a_client_is_opened(serve, path):
    client, _ = serve()
    answer = client.get(path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "hint"}


def test_every_response_has_the_security_headers(serve):
    client, _ = serve()
    for answer in (client.get("/"), client.get("/v1/models"), client.get("/nothing"), client.post("/v1/embed")):
        for name in SECURITY_HEADERS:
            assert name in answer.headers
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "server" not in answer.headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "GET"])
def test_another_method_is_refused(serve, method):
    client, _ = serve()
    answer = client.request(method, "/v1/classify")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json", "Content-Encoding": "gzip"}]
)
def test_a_body_that_is_not_declared_as_plain_json_is_refused(serve, headers):
    client, _ = serve()
    answer = client.post("/v1/classify", content=b'{"texts": ["a"]}', headers=headers)
    assert answer.status_code == 415


def test_a_body_over_the_limit_is_refused(serve):
    client, _ = serve(max_body_bytes=1024)
    answer = client.post("/v1/classify", json={"texts": ["a" * 2000]})
    assert answer.status_code == 413
    assert "1,024 bytes" in answer.json()["error"]
    assert client.post("/v1/classify", json={"texts": ["a" * 900]}).status_code == 200


def test_a_stopping_server_refuses_new_requests(serve):
    client, state = serve()
    state.is_stopping = True
    for answer in (client.post("/v1/classify", json={"texts": ["a"]}), client.get("/"), client.get("/healthz")):
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
    assert client.get("/metrics").status_code == 200


def test_more_requests_than_the_limit_are_refused_with_a_time_to_try_again(serve):
    client, state = serve(max_concurrent_requests=1)
    state.in_flight = 1
    answer = client.get("/v1/models")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert state.in_flight == 1


def test_an_error_of_the_server_shows_no_details_to_the_client(serve):
    client, state = serve()
    state.runs["classifier"].model.trained = None
    answer = client.post("/v1/classify", json={"texts": ["my secret"]})
    assert answer.status_code == 500
    assert set(answer.json()) == {"error", "hint"}
    assert "Traceback" not in answer.text
    said = state.logger.handlers[0].stream.getvalue()
    assert "AttributeError" in said
    assert "secret" not in said
    assert client.get("/healthz").status_code == 200


def test_a_port_in_use_is_reported(runs):
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigError) as caught:
        start_server([str(runs / "base")], port=taken.getsockname()[1])
    assert "--port" in caught.value.hint


def test_a_missing_run_is_reported_before_anything_is_loaded(tmp_path):
    with pytest.raises(RunError):
        start_server([str(tmp_path / "nothing")])


def test_an_open_host_needs_a_token(tmp_path):
    with pytest.raises(ConfigError) as caught:
        start_server([str(tmp_path)], host="0.0.0.0")
    assert "--token-file" in caught.value.hint


@pytest.mark.parametrize("content", ["", "short\n", "with space in it and long enough\n", "ä" * 20, "\n" + "a" * 20])
def test_a_short_or_unprintable_token_is_refused(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content, "utf-8")
    with pytest.raises(ConfigError):
        read_token(path)
    with pytest.raises(ConfigError):
        read_token(tmp_path / "nothing")


def test_the_first_line_of_the_file_is_the_token(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\nnot this\n", "utf-8")
    assert read_token(path) == TOKEN


def test_an_unknown_limit_is_answered_with_the_nearest_one():
    with pytest.raises(ConfigError) as caught:
        parse(ServerConfig, {"limits": {"max_text": 3}})
    assert "max_texts" in caught.value.hint
    with pytest.raises(ConfigError):
        parse(ServerConfig, {"training": {"max_steps": 3}})
    assert parse(ServerConfig, {"limits": {"max_texts": 3}}).limits.max_texts == 3


def test_an_app_can_be_made_twice(serve):
    _, state = serve()
    assert App(state) is not App(state)
