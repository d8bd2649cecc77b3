"""Which tokenizer a fine-tuned model reads with."""

from collections.abc import Callable
from pathlib import Path

from headstart.config import RunConfig
from headstart.data.dataset import Dataset
from headstart.data.tokenizer import Tokenizer, open_tokenizer, resolve_tokenizer
from headstart.errors import RunError
from headstart.inference.loaded_model import LoadedModel
from headstart.training.callbacks import Event, Stage


def choose_tokenizer(
    config: RunConfig, dataset: Dataset, trained: LoadedModel | None, on_event: Callable[[Event], None]
) -> Tokenizer:
    """The base's tokenizer; from scratch the one the settings name, learnt from the training texts."""
    if trained is not None:
        return trained.tokenizer
    on_event(Stage(f"tokenizer: {config.tokenizer.type}"))
    unlabelled = [example.text for example in dataset.unlabelled]
    return resolve_tokenizer(config.tokenizer, lambda: [*dataset.texts("train"), *unlabelled])


def check_tokenizer(trained: LoadedModel, name: str) -> None:
    """Refuse a tokenizer other than the base's."""
    is_same = name == trained.info.config.tokenizer.type
    if not is_same and Path(name).exists():
        is_same = open_tokenizer(name).fingerprint == trained.tokenizer.fingerprint
    if not is_same:
        raise RunError(
            f"{trained.name} was trained with another tokenizer than {name}",
            hint="leave --tokenizer out: a base brings its own",
        )
