"""Text piece by piece: whole characters and the right text."""

import json
import time

from headstart.inference.generate import generate
from headstart.serving import schema


def lines(answer):
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_stream_of_pieces_ends_with_the_whole(serve):
    client, _ = serve()
    query = {"prompt": "the film was", "tokens": 12, "seed": 4}
    *pieces, last = lines(client.post("/v1/generate", json=query))
    found = schema.GenerateResponse.model_validate(last)
    assert "".join(piece["text"] for piece in pieces) == found.text
    assert 0 < found.tokens <= 12
    assert client.post("/v1/generate", json={**query, "stream": False}).json() == last


def test_the_text_is_that_of_the_command(serve, runs):
    client, _ = serve()
    for how in ({"seed": 3}, {"temperature": 0.0}, {"top_k": 5, "temperature": 1.5}, {"top_p": 0.5, "seed": 8}):
        query = {"prompt": "the film was", "tokens": 12, **how}
        found = client.post("/v1/generate", json={**query, "stream": False}).json()
        [known] = generate(str(runs / "base"), "the film was", tokens=12, **how)
        assert (found["text"], found["tokens"]) == (known.text, known.tokens)
        assert found["reason"] == ("length" if known.is_cut else "end")


def test_sampling_depends_only_on_the_seed(serve):
    client, _ = serve()
    texts = [
        client.post("/v1/generate", json={"prompt": "a", "stream": False, "seed": seed}).json()["text"]
        for seed in (1, 2, 1)
    ]
    assert texts[0] == texts[2] != texts[1]
    cold = [
        client.post("/v1/generate", json={"prompt": "a", "stream": False, "temperature": 0, "seed": seed}).json()
        for seed in (1, 2)
    ]
    assert cold[0] == cold[1]


def test_a_long_prompt_loses_its_beginning(serve):
    client, _ = serve()
    found = client.post("/v1/generate", json={"prompt": "word " * 500, "tokens": 4, "stream": False}).json()
    assert found["cut"]
    assert found["tokens"] <= 4


def test_more_tokens_than_the_limit_are_refused(serve):
    client, _ = serve(max_new_tokens=5)
    answer = client.post("/v1/generate", json={"tokens": 6})
    assert answer.status_code == 422
    assert "5 new tokens" in answer.json()["error"]


def test_a_classifier_generates_no_text(serve):
    client, _ = serve()
    answer = client.post("/v1/generate", json={"model": "classifier"})
    assert answer.status_code == 409
    assert "writes no text" in answer.json()["error"]


def test_a_text_that_takes_too_long_ends_with_an_error(serve, monkeypatch):
    client, state = serve(request_timeout=0.5)

    def late(query, max_new_tokens):
        yield {"text": "a"}
        time.sleep(1)
        yield {"text": "b"}

    monkeypatch.setattr(state.runs["base"].model, "generate", late)
    first, last = lines(client.post("/v1/generate", json={}))
    assert first == {"text": "a"}
    assert set(last) == {"error", "hint"}
    assert "too long" in last["error"]


def test_an_error_in_a_stream_ends_it_and_is_logged(serve, monkeypatch):
    client, state = serve()

    def broken(query, max_new_tokens):
        yield {"text": "a"}
        raise MemoryError(query.prompt)

    monkeypatch.setattr(state.runs["base"].model, "generate", broken)
    assert lines(client.post("/v1/generate", json={"prompt": "my secret"})) == [{"text": "a"}]
    text = client.get("/metrics").text
    assert 'headstart_requests_total{endpoint="/v1/generate",status="500"} 1' in text
    assert state.in_flight == 0
    assert "MemoryError" in state.logger.handlers[0].stream.getvalue()
    assert "secret" not in state.logger.handlers[0].stream.getvalue()
    assert client.post("/v1/generate", json={"stream": False}).status_code == 500


def test_more_texts_at_once_than_the_limit_are_refused_with_a_time_to_try_again(serve):
    client, state = serve(max_streams=1)
    streams = state.runs["base"].model.streams
    streams.num_streams = 1
    answer = client.post("/v1/generate", json={"tokens": 2})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    streams.num_streams = 0
    assert client.post("/v1/generate", json={"tokens": 2}).status_code == 200
    assert streams.num_streams == 0
