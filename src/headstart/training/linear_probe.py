"""Linear probing before fine-tuning: a new head is trained on the frozen backbone's vectors (Kumar et al., 2022).

Every text is read once and its pooled vector is cached, so the stage costs a third of an epoch. Fine-tuning then starts
from a head that knows the classes, and its first gradients do not distort the backbone.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch, EncodedExample
from headstart.data.samplers import TextLoader
from headstart.models.heads import ClassHead
from headstart.models.model import Model
from headstart.objectives.base import Objective, Vocabulary
from headstart.training.distributed import ALONE
from headstart.training.evaluate import compute_rows
from headstart.training.runtime import Runtime

MAX_TEXTS = 4_000  # more texts hardly change a linear head
ITERATIONS = 100  # of L-BFGS
WEIGHT_PENALTY = 3.0  # on the sum of squared weights, beside the summed loss


def fit_head(
    model: Model,
    head: ClassHead,
    objective: Objective,
    rows: Sequence[EncodedExample],
    vocabulary: Vocabulary,
    runtime: Runtime,
) -> None:
    """Train the class head alone, on cached vectors of the training texts; the model keeps its device."""
    step = max(1, -(-len(rows) // MAX_TEXTS))
    sample = list(rows[::step])
    vectors = pooled_vectors(model, head, objective, sample, vocabulary, runtime)
    labels = torch.tensor([int(row.label or 0) for row in sample])
    weights, penalty = list(head.parameters()), WEIGHT_PENALTY / len(sample)
    device = weights[0].device
    head.cpu().eval()
    optimizer = torch.optim.LBFGS(weights, max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(head.classify(vectors), labels)
        loss = loss + penalty * sum((weight**2).sum() for weight in weights)
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.zero_grad(set_to_none=True)
    head.to(device)


def pooled_vectors(
    model: Model,
    head: ClassHead,
    objective: Objective,
    rows: Sequence[EncodedExample],
    vocabulary: Vocabulary,
    runtime: Runtime,
) -> Tensor:
    """The vector that the head reads of each text (N, D), on the CPU in float32; every process computes all."""
    model.to(runtime.device).eval()
    loader = TextLoader(rows, runtime.eval_batch_tokens, shuffled=False, padding=runtime.eval_max_padding)
    alone = replace(runtime, processes=ALONE, is_sharded=False)

    def pooled(batch: Batch) -> Tensor:
        hidden = model.backbone(batch, head.places(batch.attention_mask))
        return head.pooled(hidden, batch, model.backbone)

    return torch.from_numpy(compute_rows(pooled, objective, loader, len(rows), vocabulary, alone))
