"""How much a base has learnt by heart: its loss on reviews that it has read beside reviews that it has not.

    python benchmarks/by_heart.py DATA/imdb-unlabelled.txt.xz RUN [RUN …]

Runs are language models of one tokenizer that fill gaps and have read the file's lines. The unread reviews are the
first of the built-in imdb's validation part, the read ones lines of the file, evenly spread. 30 % of the tokens are
hidden, the same for every run. The two kinds are of different files, so it is differences between runs that count. The
last row is what the mean of all runs' probabilities has.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from headstart.batch import EncodedExample
from headstart.config import DataConfig
from headstart.data.datasets import load_dataset
from headstart.data.text_io import hashes, is_contaminated, read_lines
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.models.model import Model
from headstart.objectives.masked_lm import MaskedLM

BATCH = 8


def blocks(texts: list[str], trained: LoadedModel, length: int) -> np.ndarray:
    """The texts one after the other, in blocks of `length` tokens."""
    tokens = np.concatenate([np.asarray(ids) for ids in trained.tokenizer.encode(texts)])
    count = len(tokens) // length
    return tokens[: count * length].reshape(count, length)


@torch.no_grad()
def losses(models: list[Model], rows: np.ndarray, trained: LoadedModel) -> list[float]:
    """The mean loss of each model at the hidden tokens, then of all together."""
    objective, rng = MaskedLM(mask_rate=0.3), torch.Generator().manual_seed(0)
    sums, count = np.zeros(len(models) + 1), 0
    for at in range(0, len(rows), BATCH):
        batch = objective.collate([EncodedExample(row) for row in rows[at : at + BATCH]], trained.tokenizer, rng)
        wanted = batch.labels["lm"]
        shares = [
            model.heads["lm"](model.backbone(batch), batch, model.backbone).float().log_softmax(-1) for model in models
        ]
        shares.append(torch.stack(shares).logsumexp(0) - math.log(len(models)))
        sums += [F.nll_loss(share, wanted, reduction="sum").item() for share in shares]
        count += len(wanted)
    return list(sums / count)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("read", type=Path, help="texts that the runs have read, one a line")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--texts", type=int, default=160, help="of each kind")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512])
    options = parser.parse_args()
    trained = [load_model(run) for run in options.runs]
    models = [each.model().eval() for each in trained]
    lines = list(read_lines(options.read))
    for each in trained[1:]:
        if each.tokenizer.fingerprint != trained[0].tokenizer.fingerprint:
            sys.exit(f"error: {each.name} splits texts by another tokenizer than {trained[0].name}")
    by_all = np.all([is_contaminated(hashes(lines), each.train_fingerprints) for each in trained], axis=0)
    read = [line for line, is_read in zip(lines, by_all, strict=True) if is_read]
    known = read[:: max(1, len(read) // options.texts)][: options.texts]
    unknown = [row.text for row in load_dataset("imdb", DataConfig()).valid[: options.texts]]
    for length in options.lengths:
        found = [losses(models, blocks(texts, trained[0], length), trained[0]) for texts in (known, unknown)]
        for name, own, other in zip([*options.runs, "all together"], *found, strict=True):
            print(
                f"{length} tokens | {name} | read {own:.3f} | unread {other:.3f} | apart {other - own:+.3f}", flush=True
            )


if __name__ == "__main__":
    main()
