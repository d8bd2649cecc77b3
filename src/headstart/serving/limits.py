"""The limits of a server, and the HTTP error of a request that exceeds one."""

import math
from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException
from pydantic import Field

from headstart.config import Section, parse
from headstart.errors import ConfigError, HeadstartError, RunError


class Limits(Section):
    """The limits of one server."""

    max_body_bytes: int = Field(2**20, ge=1024, description="bytes in the body of a request")
    max_texts: int = Field(256, ge=1, description="texts in a request")
    max_chars: int = Field(50_000, ge=16, description="characters in a text")
    max_explained_tokens: int = Field(256, ge=4, description="tokens in a text that is explained")
    max_attention_values: int = Field(1_000_000, ge=16, description="attention weights in a response")
    max_new_tokens: int = Field(512, ge=1, description="tokens generated for a prompt")
    max_streams: int = Field(8, ge=1, description="texts that one model generates at the same time")
    max_queued_plans: int = Field(8, ge=1, description="plans that wait to be computed")
    max_batch_tokens: int = Field(8192, ge=1, description="tokens in a batch")
    max_queued_tokens: int = Field(262_144, ge=1024, description="tokens that wait for one model")
    max_concurrent_requests: int = Field(512, ge=1, description="requests in flight")
    max_connections: int = Field(768, ge=1, description="open connections")
    request_timeout: float = Field(30.0, gt=0, description="seconds until a request is answered or refused")
    client_timeout: float = Field(
        10.0, gt=0, description="seconds for a client to send its request, or to accept part of a response"
    )
    shutdown_timeout: float = Field(
        30.0, gt=0, description="seconds for requests in flight to finish when the server stops"
    )


def make_limits(settings: Mapping[str, Any]) -> Limits:
    """The default limits, changed by the section `limits` of the settings."""
    for section in settings:
        if section != "limits":
            raise ConfigError(f"a server has no setting {section!r}", hint="only limits.* apply here")
    return parse(Limits, settings.get("limits", {}), "limits")


def http_error(
    status: int, problem: str, *, hint: str = "", retry_after: float | None = None
) -> HTTPException:
    """An HTTP error whose body is `{"error": problem, "hint": hint}`."""
    headers = {}
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413, 415):  # the rest of the body is not worth waiting for
        headers["Connection"] = "close"
    return HTTPException(status, {"error": problem, "hint": hint}, headers)


def as_http_error(error: HeadstartError) -> HTTPException:
    """A problem with a run (409) or with a text or setting (422) as an HTTP error."""
    return http_error(409 if isinstance(error, RunError) else 422, str(error), hint=error.hint)
