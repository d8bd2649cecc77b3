"""Objectives with teachers beside them: a student is also marked on how near its answers come to theirs.

Teachers answer the very batch that the student reads, so they must share its tokenizer (Hinton et al., 2015).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import IGNORE, Batch
from headstart.constants import DEFAULT_LOGITS_PER_CHUNK, LOGITS_PER_CHUNK
from headstart.models.heads import asked, language_head
from headstart.models.model import Model
from headstart.objectives.base import Loss, Objective
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.classification import Classification
from headstart.objectives.fused import is_fused
from headstart.objectives.kept import Spot, in_autocast, kept_loss
from headstart.objectives.masked_lm import CausalAndMasked, MaskedLM


@dataclass(frozen=True)
class Distillation:
    """Who teaches, and how much it counts."""

    teachers: tuple[Model, ...]
    share: float  # of the teachers' answers in the loss; the rest is for the true ones
    temperature: float  # above 1 softens the answers on both sides

    def teacher_log_probs(self, scores: Sequence[Tensor]) -> Tensor:
        """The logarithm of the teachers' mean probability of each answer (N, C), from their scores."""
        found = [(own.float() / self.temperature).log_softmax(dim=-1) for own in scores]
        if len(found) == 1:
            return found[0]
        return torch.stack(found).logsumexp(dim=0) - math.log(len(found))

    def softened(self, scores: Tensor) -> Tensor:
        """The logarithm of a student's probability of each answer (N, C), from its scores."""
        return (scores / self.temperature).log_softmax(dim=-1)

    def distance(self, softened: Tensor, teacher_log_probs: Tensor) -> Tensor:
        """How far a student's softened answers (N, C) are from the teachers' opinions, summed: zero when they agree."""
        return self.temperature**2 * F.kl_div(softened, teacher_log_probs, reduction="sum", log_target=True)

    def mixed(self, true: Tensor, distance: Tensor) -> Tensor:
        """Both losses as one."""
        return (1 - self.share) * true + self.share * distance


def _token_loss(distillation: Distillation, student: Spot, teachers: Sequence[Spot], labels: Tensor) -> Loss:
    """The mixed loss over a large vocabulary; the scores of all live one piece at a time."""
    hidden, weight, bias = in_autocast(*student)
    others = [in_autocast(*spot) for spot in teachers]
    look, terms = _looking() if is_fused(hidden) else compared, replace(distillation, teachers=())

    def mark(scores: Tensor, span: slice, wants: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        known = [F.linear(vectors[span], matrix, shift) for vectors, matrix, shift in others]
        wanted = labels[span]
        if look is not compared:
            for rowed in (scores, wanted, *known):
                torch._dynamo.maybe_mark_dynamic(rowed, 0)
        total, right, *slope = look(scores, wanted, known, terms, wants)
        return total, right, slope[0] if wants else None

    room = LOGITS_PER_CHUNK.get(hidden.device.type, DEFAULT_LOGITS_PER_CHUNK) // (2 * (1 + len(teachers)))
    total, right = kept_loss(hidden, weight, bias, mark, room)
    return Loss(total, labels.numel(), right)


@cache
def _looking() -> Callable[..., Any]:
    """`compared`, compiled once for any number of rows."""
    return torch.compile(compared)


def compared(
    scores: Tensor, wanted: Tensor, known: Sequence[Tensor], distillation: Distillation, wants: bool = True
) -> tuple[Tensor, ...]:
    """The mixed loss of scores (n, V), how many are right, and if wanted its slope at every score, in their precision."""
    full = scores.float()
    shares, teacher_log_probs = full.log_softmax(dim=-1), distillation.teacher_log_probs(known)
    softened = shares if distillation.temperature == 1 else distillation.softened(full)
    own = shares.gather(1, wanted[:, None])  # (n, 1)
    total = distillation.mixed(-own.sum(), distillation.distance(softened, teacher_log_probs))
    right = (full.argmax(dim=-1) == wanted).sum()
    if not wants:
        return total, right
    slope = (1 - distillation.share) * shares.exp() + distillation.share * distillation.temperature * (
        softened.exp() - teacher_log_probs.exp()
    )
    slope = slope.scatter_add(1, wanted[:, None], torch.full_like(own, distillation.share - 1))
    return total, right, slope.to(scores.dtype)


def _masked_spot(model: Model, batch: Batch) -> Spot:
    head = language_head(model.heads)
    return (head.transformed(asked(model.backbone(batch), batch)), *head.projection(model.backbone.table))


def _causal_spot(model: Model, batch: Batch) -> Spot:
    head = language_head(model.heads)
    places = (batch.labels["lm"].flatten() != IGNORE).nonzero()[:, 0]
    hidden = head.transformed(model.backbone(batch).flatten(0, 1)[places])
    return (hidden, *head.projection(model.backbone.table))


NO_TEACHER = Distillation((), 0.0, 1.0)


class _Taught:
    """An objective with a lesson."""

    distillation: Distillation

    @property
    def teachers(self) -> tuple[Model, ...]:
        """Those of the lesson."""
        return self.distillation.teachers


@dataclass(frozen=True, eq=False)
class TaughtMaskedLM(_Taught, MaskedLM):
    """Hidden tokens, and what the teachers would put there."""

    distillation: Distillation = field(default=NO_TEACHER)

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The mixed loss at the asked positions."""
        with torch.no_grad():
            teachers = [_masked_spot(teacher, batch) for teacher in self.distillation.teachers]
        return {
            "lm": _token_loss(self.distillation, _masked_spot(model, batch), teachers, batch.labels["lm"])
        }


@dataclass(frozen=True, eq=False)
class TaughtCausalLM(_Taught, CausalLM):
    """The next token, and what the teachers would expect there."""

    distillation: Distillation = field(default=NO_TEACHER)

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The mixed loss at every marked position."""
        with torch.no_grad():
            teachers = [_causal_spot(teacher, batch) for teacher in self.distillation.teachers]
        labels = batch.labels["lm"].flatten()
        labels = labels[labels != IGNORE]
        return {"lm": _token_loss(self.distillation, _causal_spot(model, batch), teachers, labels)}


@dataclass(frozen=True, eq=False)
class TaughtClassify(_Taught, Classification):
    """The class of a text, and how likely the teachers hold each."""

    distillation: Distillation = field(default=NO_TEACHER)

    def _answer(self, model: Model, batch: Batch) -> tuple[Tensor, Loss]:
        """One pass of the student: its scores (B, C), and the mixed loss."""
        scores, loss = super()._answer(model, batch)
        with torch.no_grad():
            teacher_log_probs = self.distillation.teacher_log_probs(
                [teacher(batch)["class"] for teacher in self.distillation.teachers]
            )
        total = self.distillation.mixed(
            loss.total, self.distillation.distance(self.distillation.softened(scores), teacher_log_probs)
        )
        return scores, replace(loss, total=total)


DISTILLED: dict[type[Objective], Any] = {
    MaskedLM: TaughtMaskedLM,
    CausalLM: TaughtCausalLM,
    Classification: TaughtClassify,
}


def can_teach(teacher: Objective, student: Objective) -> bool:
    """Whether a model of the one can answer what the other asks: a hybrid's fills gaps too."""
    return type(teacher) is type(student) or (type(student) is MaskedLM and type(teacher) is CausalAndMasked)


def distill(objective: Objective, distillation: Distillation) -> Objective:
    """The objective with teachers beside it."""
    settings = {each.name: getattr(objective, each.name) for each in dataclasses.fields(objective)}
    return DISTILLED[type(objective)](**settings, distillation=distillation)
