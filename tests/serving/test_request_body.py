"""Bodies that are no JSON, or do not fit the request, are refused with a short sentence."""

import json

import pytest
from fastapi import HTTPException
from pydantic import ValidationError

from headstart.serving import schema
from headstart.serving.routes import parse_body

NO_JSON = {
    "no JSON": b"{",
    "nothing": b"",
    "not UTF-8": b'{"texts": ["\xff"]}',
    "UTF-16": '{"texts": []}'.encode("utf-16"),
    "half a character": b'{"texts": ["\\ud800"]}',
    "half a name": b'{"texts": ["a"], "model": "\\udfff"}',
    "a number of ten thousand digits": b'{"tokens": ' + b"9" * 10_000 + b"}",
    "three hundred levels": b'{"texts": ' + b"[" * 300 + b"]" * 300 + b"}",
    "a hundred thousand levels": b"[" * 100_000 + b"]" * 100_000,
    "a hundred thousand objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "an open bomb": b"[" * 1_000_000,
    "two values": b"{} {}",
    "a byte order mark": b"\xef\xbb\xbf{}",
}


def refusal(model, body):
    with pytest.raises(HTTPException) as caught:
        parse_body(model, body)
    error = caught.value.detail["error"]
    error.encode("utf-8")
    assert len(error) < 300
    assert caught.value.detail["hint"]
    return caught.value


@pytest.mark.parametrize("name", NO_JSON)
def test_a_body_that_is_not_json_is_refused(name):
    assert refusal(schema.ClassifyRequest, NO_JSON[name]).status_code == 400


WRONG = {
    "a list": [],
    "ten levels": [[[[[[[[[[]]]]]]]]]],
    "a text": "x",
    "no texts": {},
    "texts that are one text": {"texts": "abc"},
    "numbers": {"texts": [1]},
    "none at all": {"texts": []},
    "a key too many": {"texts": ["a"], "extra": 1},
    "a key of many letters": {"texts": ["a"], "x" * 10_000: 1},
    "a truth for a text": {"texts": [True]},
    "one for a truth": {"texts": ["a"], "explain": 1},
    "null": {"texts": None},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_request_that_does_not_match_is_refused_briefly(name):
    assert refusal(schema.ClassifyRequest, json.dumps(WRONG[name]).encode()).status_code == 422


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
@pytest.mark.parametrize("field", [b"temperature", b"top_p"])
def test_a_number_that_is_not_finite_is_refused(number, field):
    assert refusal(schema.GenerateRequest, b'{"%s": %s}' % (field, number)).status_code == 422
    assert refusal(schema.ClassifyRequest, b'{"texts": [%s]}' % number).status_code == 422


def test_a_key_that_occurs_twice_counts_once():
    body = b'{"texts": ["a"], "texts": ["b"]}'
    assert parse_body(schema.ClassifyRequest, body).texts == ["b"]


def test_a_misspelled_field_is_answered_with_the_nearest_one():
    error = refusal(schema.ClassifyRequest, b'{"texts": ["a"], "explian": true}')
    assert "explain" in error.detail["hint"]


def test_an_error_never_repeats_a_text():
    error = refusal(schema.EmbedRequest, b'{"texts": ["a"], "pool": "my secret"}')
    assert "secret" not in error.detail["error"]


def test_an_integer_may_be_written_with_a_point():
    assert parse_body(schema.PlanRequest, b'{"layers": 3.0}').layers == 3
    assert refusal(schema.PlanRequest, b'{"layers": 3.5}').status_code == 422


def test_every_request_has_a_default_that_it_would_itself_accept():
    for kind in (schema.GenerateRequest, schema.PlanRequest):
        kind.model_validate(kind().model_dump())
    with pytest.raises(ValidationError):
        schema.ClassifyRequest()
