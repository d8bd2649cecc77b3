"""Labelled texts as a run reads them: the splits that the settings ask for, then their tokens."""

from collections.abc import Callable
from dataclasses import dataclass

from headstart.atomic_io import content_hash
from headstart.batch import Row
from headstart.config import RunConfig
from headstart.data.dataset import Dataset
from headstart.data.datasets import load_dataset
from headstart.data.decontamination import without_apart
from headstart.data.splits import balanced_subset
from headstart.data.tokenizer import Tokenizer
from headstart.inference.classify import encode_rows
from headstart.training.callbacks import Event, Note, Stage


@dataclass(frozen=True)
class Task:
    """Labelled texts as tokens, split by split."""

    dataset: Dataset
    tokenizer: Tokenizer
    rows: dict[str, list[Row]]

    @property
    def classes(self) -> list[str]:
        """The labels in the order of their indices."""
        return self.dataset.classes


def load_labelled(
    data: str,
    config: RunConfig,
    *,
    with_test: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Dataset:
    """The labelled splits, with the subset that `data.train_size` asks for, and what was skipped told."""
    dataset = load_dataset(data, config.data, with_test=with_test)
    if dataset.skips:
        first = dataset.skips[0]
        on_event(Note(f"{len(dataset.skips)} rows skipped; the first is {first.origin}: {first.reason}"))
    if config.data.exclude_eval_texts_of:
        dataset = without_apart(dataset, config.data.exclude_eval_texts_of)
    if config.data.train_size is not None:
        dataset = balanced_subset(dataset, config.data.train_size, config.training.seed)
    for note in dataset.notes:
        on_event(Note(note))
    return dataset


def data_fingerprint(dataset: Dataset) -> str:
    """A hash of every text and label that a run learns from or is marked on."""
    return content_hash(
        {name: [[row.text, row.label] for row in rows] for name, rows in dataset.splits.items()}
    )


def make_task(
    dataset: Dataset,
    tokenizer: Tokenizer,
    config: RunConfig,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Task:
    """Every split as tokens."""
    on_event(Stage("tokenising the labelled texts"))
    rows = {
        name: encode_rows(
            tokenizer, examples, dataset.classes, config.training.max_length, config.data.truncation_side
        )
        for name, examples in dataset.splits.items()
    }
    return Task(dataset, tokenizer, rows)
