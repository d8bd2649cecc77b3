"""What is counted between two tellings: losses, answers, tokens and padding."""

import math
from collections.abc import Mapping
from typing import Any

from headstart.batch import Batch


def nested(sums: Mapping[str, float]) -> dict[str, Any]:
    """Sums since the last telling, as they are kept in a checkpoint."""
    totals: dict[str, list[float]] = {}
    for name in sums:
        if name.startswith("total "):
            head = name.removeprefix("total ")
            totals[head] = [sums[name], round(sums[f"counted {head}"]), round(sums[f"correct {head}"])]
    return {"totals": totals, "tokens": round(sums["read"]), "computed": round(sums["computed"])}


class Tally:
    """Sums since the last telling, of this process."""

    def __init__(self) -> None:
        self.by_head: dict[str, float] = {}
        self.last_seconds = 0.0
        self._clear()

    def _clear(self) -> None:
        self.totals: dict[str, list[Any]] = {}
        self.tokens = self.computed = 0

    def add(self, losses: dict[str, Any], part: Batch) -> None:
        """Count what one batch gave."""
        for name, loss in losses.items():
            total, count, correct = self.totals.get(name, [0.0, 0, 0])
            self.totals[name] = [
                total + loss.total.detach().float(),
                count + loss.count,
                correct + loss.correct.detach(),
            ]
        self.tokens += part.count
        self.computed += part.size

    def sums(self) -> dict[str, float]:
        """All of them by name."""
        found: dict[str, float] = {"read": self.tokens, "computed": self.computed}
        for name, (total, count, right) in self.totals.items():
            found |= {f"total {name}": float(total), f"counted {name}": count, f"correct {name}": int(right)}
        return found

    def load(self, content: dict[str, Any], seconds: float) -> None:
        """Go on from what `nested` gave, also by way of a file, where a sum that is not finite is None."""
        self.last_seconds = seconds
        if content:
            self.totals = {
                name: [math.nan if value is None else value for value in sums]
                for name, sums in content["totals"].items()
            }
            self.tokens, self.computed = content["tokens"], content["computed"]

    def finish(self, seconds: float, sums: Mapping[str, float]) -> dict[str, float]:
        """Means of sums over all processes."""
        whole = nested(sums)
        totals = whole["totals"].items()
        self.by_head = {name: total / max(1, count) for name, (total, count, _) in totals if count}
        found = {
            "loss": sum(self.by_head.values()),
            "accuracy": sum(right for _, (_, _, right) in totals) / max(1, sum(row[1] for _, row in totals)),
            "tokens_per_second": whole["tokens"] / max(1e-9, seconds - self.last_seconds),
            "padding": 1 - whole["tokens"] / max(1, whole["computed"]),
        }
        self.last_seconds = seconds
        self._clear()
        return found
