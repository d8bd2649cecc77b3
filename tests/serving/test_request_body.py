"""Bodies that are no JSON of ours are refused with a sentence."""

import json

import pytest
from fastapi import HTTPException
from pydantic import ValidationError

from headstart.serving import schema
from headstart.serving.routes import parse_json, validate

BAD = {
    "no JSON": b"{",
    "nothing": b"",
    "not UTF-8": b'{"texts": ["\xff"]}',
    "UTF-16": '{"texts": []}'.encode("utf-16"),
    "NaN": b'{"texts": [NaN]}',
    "Infinity": b'{"temperature": Infinity}',
    "minus Infinity": b'{"temperature": -Infinity}',
    "too large a float": b'{"temperature": 1e999}',
    "a number of ten thousand digits": b'{"tokens": ' + b"9" * 10_000 + b"}",
    "nine levels": b"[" * 10 + b"]" * 10,
    "a hundred thousand levels": b"[" * 100_000 + b"]" * 100_000,
    "a hundred thousand objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "an open bomb": b"[" * 1_000_000,
    "two values": b"{} {}",
    "a byte order mark": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("name", BAD)
def test_a_body_that_is_no_plain_json_is_refused(name):
    with pytest.raises(HTTPException) as caught:
        parse_json(BAD[name])
    assert caught.value.status_code == 400
    assert caught.value.detail["hint"]
    assert len(caught.value.detail["error"]) < 200


def test_a_key_that_stands_twice_counts_once():
    assert parse_json(b'{"texts": ["a"], "texts": ["b"]}') == {"texts": ["b"]}


def test_a_few_levels_are_fine():
    value = json.loads("[" * 8 + "]" * 8)
    assert parse_json(json.dumps(value).encode()) == value


WRONG = {
    "a list": [],
    "a text": "x",
    "no texts": {},
    "texts that are one text": {"texts": "abc"},
    "numbers": {"texts": [1]},
    "none at all": {"texts": []},
    "a key too many": {"texts": ["a"], "extra": 1},
    "a key of many letters": {"texts": ["a"], "x" * 10_000: 1},
    "half a character": {"texts": ["\ud800"]},
    "half a name": {"texts": ["a"], "model": "\udfff"},
    "a truth for a text": {"texts": [True]},
    "one for a truth": {"texts": ["a"], "explain": 1},
    "null": {"texts": None},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_request_that_does_not_fit_is_told_why_in_few_words(name):
    with pytest.raises(HTTPException) as caught:
        validate(schema.ClassifyRequest, WRONG[name])
    assert caught.value.status_code == 422
    assert caught.value.detail["hint"]
    assert len(caught.value.detail["error"]) < 300
    caught.value.detail["error"].encode("utf-8")


def test_a_slip_in_a_name_is_answered_with_the_nearest_one():
    with pytest.raises(HTTPException) as caught:
        validate(schema.ClassifyRequest, {"texts": ["a"], "explian": True})
    assert "explain" in caught.value.detail["hint"]


def test_a_text_is_never_repeated_in_the_refusal():
    with pytest.raises(HTTPException) as caught:
        validate(schema.EmbedRequest, {"texts": ["a"], "pool": "my secret"})
    assert "secret" not in caught.value.detail["error"]


def test_a_whole_number_may_be_written_with_a_point():
    assert validate(schema.PlanRequest, {"layers": 3.0}).layers == 3
    with pytest.raises(HTTPException):
        validate(schema.PlanRequest, {"layers": 3.5})


def test_every_request_has_a_default_that_it_would_itself_accept():
    for kind in (schema.GenerateRequest, schema.PlanRequest):
        kind.model_validate(kind().model_dump())
    with pytest.raises(ValidationError):
        schema.ClassifyRequest()
