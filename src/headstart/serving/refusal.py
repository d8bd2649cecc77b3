"""A request that is not answered: the status, why, and what to do."""

import math
from typing import Any

from headstart.errors import ConfigError, DataError, HeadstartError, RunError


class Refusal(HeadstartError):
    """A request that is refused with an HTTP status; `retry_after` seconds later it may be welcome."""

    def __init__(self, status: int, problem: str, *, hint: str = "", retry_after: float | None = None):
        super().__init__(problem, hint=hint)
        self.status = status
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))

    @property
    def headers(self) -> dict[str, str]:
        """What the answer says besides its body."""
        found = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {**found, "WWW-Authenticate": "Bearer"} if self.status == 401 else found

    def to_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": str(self), "hint": self.hint}


def refusal_of(error: HeadstartError) -> Refusal:
    """Any of our problems as a refusal: a text or setting that cannot be used, or a run that cannot do it."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RunError):
        return Refusal(409, str(error), hint=error.hint)
    assert isinstance(error, ConfigError | DataError), error
    return Refusal(422, str(error), hint=error.hint)
