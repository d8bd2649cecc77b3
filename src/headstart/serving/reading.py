"""A request's body as JSON, strictly: what is not finite, nested too deeply or no text is refused."""

import json
import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headstart.errors import nearest
from headstart.serving.refusal import Refusal

DEEPEST = 8  # levels of lists and objects; what we ask for has two
LONGEST_PLACE = 60  # characters of a client's own key that a sentence repeats

Asked = TypeVar("Asked", bound=BaseModel)


def read_json(body: bytes) -> Any:
    """The JSON value that `body` holds."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite_float)
    except UnicodeDecodeError:
        raise Refusal(400, "the body is not UTF-8", hint="encode it as UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise Refusal(
            400, f"the body is no JSON: {error.msg} at character {error.pos}", hint="send one JSON object"
        ) from None
    except ValueError:  # a whole number of thousands of digits
        raise Refusal(
            400, "the body holds a number that is far too long", hint="send a smaller one"
        ) from None
    _check_depth(value)
    return value


def _no_constant(name: str) -> float:
    raise Refusal(400, f"the body holds {name}, which is no JSON number", hint="send finite numbers")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Refusal(400, "the body holds a number that is too large", hint="send finite numbers")
    return number


def _too_deep() -> Refusal:
    return Refusal(400, f"the body is nested more than {DEEPEST} deep", hint="send one flat JSON object")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise _too_deep()


def parse_request(schema: type[Asked], content: Any) -> Asked:
    """`content` checked against `schema`; the first fault becomes a sentence that repeats no text."""
    if not isinstance(content, dict):
        raise Refusal(422, "the body is no JSON object", hint='send {"…": …}')
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    shown = place if len(place) <= LONGEST_PLACE else f"{place[: LONGEST_PLACE - 1]}…"
    if fault["type"] == "extra_forbidden":
        raise Refusal(422, f"no field is called {shown!r}", hint=nearest(shown, schema.model_fields))
    if fault["type"] == "missing":
        raise Refusal(
            422, f"the field {shown!r} is missing", hint="GET /openapi.json describes every request"
        )
    problem = f"{shown}: {fault['msg'][:200]}" if shown else fault["msg"][:200]
    raise Refusal(422, problem, hint="GET /openapi.json describes every request")
