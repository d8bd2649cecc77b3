"""The plan of a run that a request describes; what was asked lately is remembered."""

from functools import lru_cache
from typing import Any

from headstart.errors import ConfigError, HeadstartError
from headstart.files import finite
from headstart.planning.devices import find_device
from headstart.serving.refusal import Refusal
from headstart.serving.schema import PlanRequest
from headstart.workflows.plan import plan

_SETTINGS = {  # where a field of the request stands among the settings
    "layers": ("body", "layers"),
    "width": ("body", "width"),
    "attention_heads": ("body", "attention_heads"),
    "feed_forward": ("body", "feed_forward"),
    "precision": ("training", "precision"),
    "optimizer": ("optimizer", "kind"),
    "objective": ("objective", "name"),
}


@lru_cache(maxsize=128)
def make_plan(asked: PlanRequest) -> dict[str, Any]:
    """The plan that a request asks for, as `headstart plan --json` prints it."""
    given = asked.model_dump(exclude_none=True)
    sections: dict[str, dict[str, Any]] = {}
    for name, (section, key) in _SETTINGS.items():
        if name in given:
            sections.setdefault(section, {})[key] = given.pop(name)
    if "classes" in given:
        sections.setdefault("objective", {"name": "classify"})
    if "gpu" in given:
        try:
            find_device(given["gpu"])
        except ConfigError as error:
            raise Refusal(404, str(error), hint=error.hint) from None
    try:
        return finite(plan(given.pop("preset"), settings=sections, **given).to_dict())
    except HeadstartError as error:  # each setting is fine by itself, so it is their company that is not
        raise Refusal(409, str(error), hint=error.hint) from None
