"""A look at labelled data before anything is trained on it."""

from collections.abc import Callable, Mapping
from typing import Any

from headstart.config import DataConfig, TokenizerConfig, parse
from headstart.data.audit import Audit, audit
from headstart.data.sources import load_dataset
from headstart.data.splits import take_labels
from headstart.data.tokenizer import Tokenizer, resolve_tokenizer
from headstart.errors import ConfigError


def inspect_data(
    data: str,
    *,
    tokenizer: str | None = None,
    length: int = 256,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    on_stage: Callable[[str], None] = lambda name: None,
) -> Audit:
    """The audit of every split, lengths in tokens of `tokenizer` (a kind or a path; bpe learnt from train unless told)."""
    sections = settings or {}
    config: DataConfig = parse(DataConfig, sections.get("data", {}))
    wanted = {**dict(sections.get("tokenizer", {})), **({"kind": tokenizer} if tokenizer else {})}
    words: TokenizerConfig = parse(TokenizerConfig, wanted, "tokenizer")
    for name in sections:
        if name not in ("data", "tokenizer"):
            raise ConfigError(
                f"an audit has no setting {name!r}", hint="only data.* and tokenizer.* count here"
            )
    dataset = load_dataset(data, config, with_test=True)
    if config.labels is not None:
        dataset = take_labels(dataset, config.labels, seed)
    on_stage(f"tokenizer: {words.kind}")
    found: Tokenizer = resolve_tokenizer(words, lambda: dataset.texts("train"))
    on_stage("tokenising")
    lengths, unknown = {}, {}
    for split in dataset.splits:
        lengths[split], unknown[split] = token_counts(found, dataset.texts(split))
    return audit(dataset, lengths, unknown, length)


def token_counts(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[int], float]:
    """Each text's length in tokens with both ends marked, and the share of unknown tokens among all."""
    encoded = tokenizer.encode(texts)
    total = sum(len(ids) for ids in encoded)
    strange = sum(int((ids == tokenizer.unknown).sum()) for ids in encoded)
    return [len(ids) + 2 for ids in encoded], strange / max(1, total)
