"""One attention head against eight at equal parameters: two bases that differ in nothing else, over seeds.

    python benchmarks/attention_heads.py                 # 200 steps, 3 seeds each, a quarter of an hour on two cores
    python benchmarks/attention_heads.py --steps 2000    # a longer look

Writes benchmarks/results/attention-heads.md.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headstart.atomic_io import write_text
from headstart.config import TrainingConfig
from headstart.evaluation.statistics import interval
from headstart.results import Interval, Provenance
from headstart.training.runtime import start_runtime
from headstart.workflows.pretrain import Pretrained, pretrain
from headstart.workflows.run_dir import collect_provenance

CHOICES = (1, 8)  # attention heads; both divide tiny's width of 128, so the weights are the same in number
RESULTS = Path(__file__).parent / "results" / "attention-heads.md"


@dataclass(frozen=True)
class Trained:
    """One base and its mark on held-out text."""

    attention_heads: int
    seed: int
    loss: float
    parameters: int
    answers: int
    seconds: float


def train(corpus: str, attention_heads: int, seed: int, steps: int, folder: Path) -> Trained:
    """A tiny base with this many attention heads."""
    settings = {"model": {"num_heads": attention_heads}, "training": {"max_steps": steps, "seed": seed}}
    done: Pretrained = pretrain([corpus], folder / f"{attention_heads}-{seed}", settings=settings)
    assert done.score is not None, f"{corpus} holds too little text to set any aside"
    return Trained(attention_heads, seed, done.score.loss, done.parameters, done.score.count, done.seconds)


def verdict(difference: Interval) -> str:
    """What the interval allows to say."""
    one, many = CHOICES
    if difference.low > 0:
        return f"{many} attention heads predict held-out text better than {one} at the same number of weights."
    if difference.high < 0:
        return f"{one} attention head predicts held-out text better than {many} at the same number of weights."
    return f"No difference shown between {one} and {many} attention heads: the interval holds zero."


def report(runs: list[Trained], corpus: str, steps: int, provenance: Provenance) -> str:
    """The measurement as a page of Markdown."""
    one, many = CHOICES
    losses = {(run.attention_heads, run.seed): run.loss for run in runs}
    seeds = sorted({run.seed for run in runs})
    means = {heads: interval([losses[heads, seed] for seed in seeds]) for heads in CHOICES}
    difference = interval([losses[one, seed] - losses[many, seed] for seed in seeds])
    first = runs[0]
    rows = [f"| {seed} | {losses[one, seed]:.4f} | {losses[many, seed]:.4f} |" for seed in seeds]
    spread = " | ".join(f"{means[heads].mean:.4f} ± {means[heads].spread:.4f}" for heads in CHOICES)
    time = {heads: sum(run.seconds for run in runs if run.attention_heads == heads) / len(seeds) for heads in CHOICES}
    return "\n".join(
        [
            "# One attention head against eight at equal parameters",
            "",
            f"The preset `tiny` ({first.parameters:,} weights in both), {steps:,} steps on `{corpus}`; the loss is in "
            f"nats a hidden token, over {first.answers:,} of them in text that was held out.",
            "",
            f"| seed | {one} attention head | {many} attention heads |",
            "|---|---|---|",
            *rows,
            f"| mean ± standard deviation | {spread} |",
            f"| seconds | {time[one]:.0f} | {time[many]:.0f} |",
            "",
            f"{one} minus {many}, paired by seed: {difference.mean:+.4f} nats, 95 % interval "
            f"{difference.low:+.4f} to {difference.high:+.4f}. **{verdict(difference)}**",
            "",
            f"`{provenance.command}`, commit {provenance.commit or 'unknown'}, {provenance.machine}, {provenance.started}.",
            "",
        ]
    )


def main() -> None:
    """Train, compare, write the result and print it."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--corpus", default="imdb")
    words.add_argument("--steps", type=int, default=200)
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--out", type=Path, default=RESULTS)
    given = words.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            for heads in CHOICES:
                runs.append(train(given.corpus, heads, seed, given.steps, Path(folder)))
                print(f"attention_heads {heads}, seed {seed}: loss {runs[-1].loss:.4f}", flush=True)
    assert len({run.parameters for run in runs}) == 1, "the two do not have the same number of weights"
    seeds = list(range(given.seeds))
    text = report(runs, given.corpus, given.steps, collect_provenance(start_runtime(TrainingConfig()), seeds))
    write_text(given.out, text)
    print(text)


if __name__ == "__main__":
    main()
