"""What the server says while it runs: a line for each request, never a token, and texts only when asked for."""

import json
import sys
import time
from dataclasses import dataclass
from typing import Any, TextIO


@dataclass(frozen=True)
class Log:
    """Lines for people, or JSON for machines."""

    as_json: bool = False
    quiet: bool = False
    with_texts: bool = False
    out: TextIO | None = None  # standard error unless told

    def request(
        self, method: str, endpoint: str, status: int, seconds: float, texts: list[str] | None
    ) -> None:
        """One request was answered; `endpoint` is ours, never what the client wrote."""
        if self.quiet:
            return
        content: dict[str, Any] = {
            "method": method,
            "endpoint": endpoint,
            "status": status,
            "ms": round(1000 * seconds, 1),
        }
        if self.with_texts and texts:
            content["texts"] = texts
        shown = f" {json.dumps(texts, ensure_ascii=True)}" if "texts" in content else ""
        self._write(f"{method} {endpoint} {status} {content['ms']} ms{shown}", content)

    def say(self, words: str, **content: Any) -> None:
        """Something that happened to the server itself."""
        self._write(words, {"say": words, **content})

    def _write(self, words: str, content: dict[str, Any]) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        line = (
            json.dumps({"time": stamp, **content}, ensure_ascii=True) if self.as_json else f"{stamp} {words}"
        )
        out = self.out or sys.stderr
        try:
            out.write(line + "\n")
            out.flush()
        except (OSError, ValueError):  # nobody reads it any more; answers matter more
            pass
