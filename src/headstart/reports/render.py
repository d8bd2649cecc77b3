"""Jinja2 environment of all reports: templates, formatting functions as filters, static files.

Templates named *.html escape every value. CSS and JavaScript are inlined, so that each page is one file.
"""

import json
import math
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from rich.markup import escape

from headstart.reports import formatting


def render(template: str, **context: Any) -> str:
    """The template filled in with `context`."""
    return environment().get_template(template).render(context)


@cache
def environment() -> Environment:
    """The templates of this package, with every `format_*` function as a filter."""
    env = Environment(
        loader=PackageLoader("headstart.reports"),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {
        name.removeprefix("format_"): function
        for name, function in vars(formatting).items()
        if name.startswith("format_")
    }
    env.filters |= {"indented_json": indented_json, "markup": escape}
    env.filters["script_json"] = lambda value: Markup(script_json(value))
    env.globals["static"] = lambda name: Markup(static_file(name))
    return env


def static_file(name: str) -> str:
    """The text of a stylesheet or script of this package."""
    return resources.files("headstart.reports").joinpath("static", name).read_text("utf-8")


def script_json(value: object) -> str:
    """JSON inside a <script> element: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def indented_json(value: object) -> str:
    """JSON for readers, with null instead of NaN."""
    return json.dumps(_without_nan(value), ensure_ascii=False, indent=2, default=str)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
