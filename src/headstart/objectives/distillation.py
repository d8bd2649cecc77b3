"""Distillation: a student also learns to predict what its teachers predict (Hinton et al., 2015).

Teachers read the same batches as the student, so they must share its tokenizer.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart import fast
from headstart.batch import Batch
from headstart.constants import logits_per_chunk
from headstart.fast.linear_cross_entropy import Projection, chunked_loss
from headstart.models.heads import at_label_positions, language_head
from headstart.models.model import Model
from headstart.objectives.base import Loss, Objective
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.classification import Classification
from headstart.objectives.masked_lm import CausalAndMasked, MaskedLM


@dataclass(frozen=True)
class Distillation:
    """The teachers, and how much their predictions count."""

    teachers: tuple[Model, ...]
    share: float  # of the distance to the teachers in the loss; the rest is that of the true labels
    temperature: float  # above 1 softens the distributions of both sides

    def teacher_log_probs(self, logits: Sequence[Tensor]) -> Tensor:
        """The logarithm of the teachers' mean probability of each class (N, C), from their logits."""
        log_probs = [(own.float() / self.temperature).log_softmax(dim=-1) for own in logits]
        if len(log_probs) == 1:
            return log_probs[0]
        return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))

    def student_log_probs(self, logits: Tensor) -> Tensor:
        """The logarithm of the student's probability of each class (N, C), from its logits."""
        return (logits / self.temperature).log_softmax(dim=-1)

    def distance(self, student_log_probs: Tensor, teacher_log_probs: Tensor) -> Tensor:
        """The summed Kullback-Leibler divergence of the student's predictions (N, C) from the teachers'."""
        divergence = F.kl_div(student_log_probs, teacher_log_probs, reduction="sum", log_target=True)
        return self.temperature**2 * divergence

    def weighted(self, loss: Tensor, distance: Tensor) -> Tensor:
        """The loss of the true labels and the distance to the teachers as one loss."""
        return (1 - self.share) * loss + self.share * distance


NO_TEACHER = Distillation((), 0.0, 1.0)


def token_loss_and_grad(
    logits: Sequence[Tensor], labels: Tensor, distillation: Distillation, needs_grad: bool
) -> tuple[Tensor, ...]:
    """The weighted loss of the student's logits (n, V), the number of correct predictions, and on demand the gradient.

    The teachers' logits are those after the first; the gradient has the precision of the student's.
    """
    full, distillation_weight = logits[0].float(), distillation.share * distillation.temperature
    log_probs, teacher_log_probs = full.log_softmax(dim=-1), distillation.teacher_log_probs(logits[1:])
    student_log_probs = log_probs if distillation.temperature == 1 else distillation.student_log_probs(full)
    own = log_probs.gather(1, labels[:, None])  # (n, 1)
    total = distillation.weighted(-own.sum(), distillation.distance(student_log_probs, teacher_log_probs))
    correct = (full.argmax(dim=-1) == labels).sum()
    if not needs_grad:
        return total, correct
    grad = (1 - distillation.share) * log_probs.exp()
    grad = grad + distillation_weight * (student_log_probs.exp() - teacher_log_probs.exp())
    grad = grad.scatter_add(1, labels[:, None], torch.full_like(own, distillation.share - 1))
    return total, correct, grad.to(logits[0].dtype)


def _projection(model: Model, batch: Batch) -> Projection:
    """What the language-model head computes logits of, at the positions that have a label."""
    head = language_head(model.heads)
    hidden = at_label_positions(model.backbone(batch), batch).flatten(0, -2)
    return (head.transformed(hidden), *head.projection(model.backbone.table))


@dataclass(frozen=True, eq=False)
class _Distilled:
    """An objective with teachers."""

    distillation: Distillation = NO_TEACHER

    @property
    def teachers(self) -> tuple[Model, ...]:
        """The models that the student learns from."""
        return self.distillation.teachers


class _DistilledLanguageModel(_Distilled):
    """A language model with teachers."""

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The weighted loss at the positions that have a label."""
        with torch.no_grad():
            projections = [_projection(teacher, batch) for teacher in self.teachers]
        projections.insert(0, _projection(model, batch))
        labels, settings = batch.labels["lm"].flatten(), replace(self.distillation, teachers=())
        if fast.is_enabled():
            chunk = logits_per_chunk(labels.device.type) // (2 * len(projections))
            total, correct = chunked_loss(projections, labels, token_loss_and_grad, settings, chunk)
        else:
            total, correct = token_loss_and_grad([F.linear(*each) for each in projections], labels, settings, False)
        return {"lm": Loss(total, labels.numel(), correct)}


@dataclass(frozen=True, eq=False)
class DistilledMaskedLM(_DistilledLanguageModel, MaskedLM):
    """Masked language modelling with teachers."""


@dataclass(frozen=True, eq=False)
class DistilledCausalLM(_DistilledLanguageModel, CausalLM):
    """Causal language modelling with teachers."""


@dataclass(frozen=True, eq=False)
class DistilledClassification(_Distilled, Classification):
    """Classification with teachers."""

    def logits_and_loss(self, model: Model, batch: Batch) -> tuple[Tensor, Loss]:
        """The student's logits (B, C) of one pass, and the weighted loss."""
        logits, loss = super().logits_and_loss(model, batch)
        with torch.no_grad():
            teacher_logits = [teacher(batch)["class"] for teacher in self.teachers]
        student_log_probs = self.distillation.student_log_probs(logits)
        distance = self.distillation.distance(student_log_probs, self.distillation.teacher_log_probs(teacher_logits))
        return logits, replace(loss, total=self.distillation.weighted(loss.total, distance))


DISTILLED: dict[type[Objective], Any] = {
    MaskedLM: DistilledMaskedLM,
    CausalLM: DistilledCausalLM,
    Classification: DistilledClassification,
}


def can_teach(teacher: Objective, student: Objective) -> bool:
    """Whether a model of the one objective predicts what the other needs; a hybrid's model predicts masked tokens too."""
    return type(teacher) is type(student) or (type(student) is MaskedLM and type(teacher) is CausalAndMasked)


def distill(objective: Objective, distillation: Distillation) -> Objective:
    """The objective with teachers."""
    settings = {each.name: getattr(objective, each.name) for each in dataclasses.fields(objective)}
    found: Objective = DISTILLED[type(objective)](**settings, distillation=distillation)
    return found
