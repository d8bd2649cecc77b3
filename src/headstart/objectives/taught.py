"""Objectives with teachers beside them: a student is also marked on how near its answers come to theirs.

Teachers answer the very batch that the student reads, so they must share its tokenizer (Hinton et al., 2015).
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headstart.batch import IGNORE, Batch
from headstart.models.heads import asked, language_head
from headstart.models.model import Model
from headstart.objectives.base import Loss, Objective
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.classify import Classify
from headstart.objectives.hybrid import CausalAndMasked
from headstart.objectives.masked_lm import MaskedLM
from headstart.objectives.tiles import OTHER, PIECE


@dataclass(frozen=True)
class Lesson:
    """Who teaches, and how much it counts."""

    teachers: tuple[Model, ...]
    share: float  # of the teachers' answers in the loss; the rest is for the true ones
    temperature: float  # above 1 softens the answers on both sides

    def opinions(self, scores: Sequence[Tensor]) -> Tensor:
        """The logarithm of the teachers' mean probability of each answer (N, C), from their scores."""
        found = [(own.float() / self.temperature).log_softmax(dim=-1) for own in scores]
        if len(found) == 1:
            return found[0]
        return torch.stack(found).logsumexp(dim=0) - math.log(len(found))

    def distance(self, scores: Tensor, opinions: Tensor) -> Tensor:
        """How far a student's scores (N, C) are from the teachers' opinions, summed: zero when they agree."""
        own = (scores / self.temperature).log_softmax(dim=-1)
        return self.temperature**2 * F.kl_div(own, opinions, reduction="sum", log_target=True)

    def mixed(self, true: Tensor, distance: Tensor) -> Tensor:
        """Both losses as one."""
        return (1 - self.share) * true + self.share * distance


Spot = tuple[
    Tensor, Tensor, Tensor | None
]  # vectors (N, D), and the matrix and bias that make scores of them


def _token_loss(lesson: Lesson, student: Spot, teachers: Sequence[Spot], labels: Tensor) -> Loss:
    """The mixed loss over a large vocabulary; scores live one piece at a time, computed anew on the way back."""
    hidden, weight, bias = student
    room = PIECE.get(hidden.device.type, OTHER) // (2 * (1 + len(teachers)))
    rows = max(1, room // weight.shape[0])

    def piece(own: Tensor, wanted: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.linear(own, weight, bias).float()  # (n, V)
        with torch.no_grad():
            known = [F.linear(h, w, b) for h, (_, w, b) in zip(others, teachers, strict=True)]
            opinions = lesson.opinions(known)
        true = F.cross_entropy(scores, wanted, reduction="sum")
        right = (scores.detach().argmax(dim=-1) == wanted).sum()
        return lesson.mixed(true, lesson.distance(scores, opinions)), right

    totals, rights = [], []
    for at in range(0, max(1, hidden.shape[0]), rows):
        span = slice(at, at + rows)
        given = (hidden[span], labels[span], *(spot[0][span] for spot in teachers))
        if hidden.shape[0] > rows:
            total, right = checkpoint(piece, *given, use_reentrant=False)
        else:
            total, right = piece(*given)
        totals.append(total)
        rights.append(right)
    return Loss(torch.stack(totals).sum(), labels.numel(), torch.stack(rights).sum())


def _masked_spot(model: Model, batch: Batch) -> Spot:
    head = language_head(model.heads)
    return (head.transformed(asked(model.body(batch), batch)), *head.projection(model.body.table))


def _causal_spot(model: Model, batch: Batch) -> Spot:
    head = language_head(model.heads)
    places = (batch.labels["lm"].flatten() != IGNORE).nonzero()[:, 0]
    hidden = head.transformed(model.body(batch).flatten(0, 1)[places])
    return (hidden, *head.projection(model.body.table))


NOBODY = Lesson((), 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class TaughtMaskedLM(MaskedLM):
    """Hidden tokens, and what the teachers would put there."""

    lesson: Lesson = field(default=NOBODY)

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The mixed loss at the asked positions."""
        with torch.no_grad():
            teachers = [_masked_spot(teacher, batch) for teacher in self.lesson.teachers]
        return {"lm": _token_loss(self.lesson, _masked_spot(model, batch), teachers, batch.labels["lm"])}


@dataclass(frozen=True, eq=False)
class TaughtCausalLM(CausalLM):
    """The next token, and what the teachers would expect there."""

    lesson: Lesson = field(default=NOBODY)

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The mixed loss at every marked position."""
        with torch.no_grad():
            teachers = [_causal_spot(teacher, batch) for teacher in self.lesson.teachers]
        labels = batch.labels["lm"].flatten()
        labels = labels[labels != IGNORE]
        return {"lm": _token_loss(self.lesson, _causal_spot(model, batch), teachers, labels)}


@dataclass(frozen=True, eq=False)
class TaughtClassify(Classify):
    """The class of a text, and how likely the teachers hold each."""

    lesson: Lesson = field(default=NOBODY)

    def _answer(self, model: Model, batch: Batch) -> tuple[Tensor, Loss]:
        """One pass of the student: its scores (B, C), and the mixed loss."""
        scores, loss = super()._answer(model, batch)
        with torch.no_grad():
            opinions = self.lesson.opinions([teacher(batch)["class"] for teacher in self.lesson.teachers])
        total = self.lesson.mixed(loss.total, self.lesson.distance(scores, opinions))
        return scores, replace(loss, total=total)


TAUGHT: dict[type[Objective], Any] = {
    MaskedLM: TaughtMaskedLM,
    CausalLM: TaughtCausalLM,
    Classify: TaughtClassify,
}


def can_teach(teacher: Objective, student: Objective) -> bool:
    """Whether a model of the one can answer what the other asks: a hybrid's fills gaps too."""
    return type(teacher) is type(student) or (type(student) is MaskedLM and type(teacher) is CausalAndMasked)


def taught(objective: Objective, lesson: Lesson) -> Objective:
    """The objective with teachers beside it."""
    settings = {each.name: getattr(objective, each.name) for each in dataclasses.fields(objective)}
    return TAUGHT[type(objective)](**settings, lesson=lesson)
