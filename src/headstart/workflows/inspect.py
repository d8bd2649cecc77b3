"""A look at labelled or parallel data before anything is trained on it."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from headstart.config import DataConfig, TokenizerConfig, parse
from headstart.data.audit import Audit, audit
from headstart.data.parallel import load_parallel, parse_pair
from headstart.data.parallel_audit import ParallelAudit, audit_parallel
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
    config, words = _settings(settings or {}, tokenizer)
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


def inspect_parallel(
    data: str,
    pair: str | tuple[str, str],
    *,
    tokenizer: str | None = None,
    length: int = 256,
    settings: Mapping[str, Any] | None = None,
    on_stage: Callable[[str], None] = lambda name: None,
) -> ParallelAudit:
    """The audit of every split of parallel text, with lengths in tokens where a `tokenizer` is given (a kind or a path)."""
    config, words = _settings(settings or {}, tokenizer)
    languages = parse_pair(pair) if isinstance(pair, str) else pair
    texts = load_parallel(data, languages, config, with_test=True)
    if tokenizer is None and not (settings or {}).get("tokenizer"):
        return audit_parallel(texts)
    on_stage(f"tokenizer: {words.kind}")
    found = resolve_tokenizer(words, lambda: chain(texts.sources("train"), texts.targets("train")))
    on_stage("tokenising")
    lengths: dict[str, dict[str, list[int]]] = {language: {} for language in languages}
    unknown: dict[str, dict[str, float]] = {language: {} for language in languages}
    for split in texts.splits:
        for language, side in zip(languages, (texts.sources(split), texts.targets(split)), strict=True):
            lengths[language][split], unknown[language][split] = token_counts(found, side)
    return audit_parallel(texts, lengths, unknown, length)


def _settings(sections: Mapping[str, Any], tokenizer: str | None) -> tuple[DataConfig, TokenizerConfig]:
    """The settings that count for an audit; any other is an error."""
    config = parse(DataConfig, sections.get("data", {}), "data")
    wanted = {**dict(sections.get("tokenizer", {})), **({"kind": tokenizer} if tokenizer else {})}
    words = parse(TokenizerConfig, wanted, "tokenizer")
    for name in sections:
        if name not in ("data", "tokenizer"):
            raise ConfigError(
                f"an audit has no setting {name!r}", hint="only data.* and tokenizer.* count here"
            )
    return config, words


def token_counts(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[int], float]:
    """Each text's length in tokens with both ends marked, and the share of unknown tokens among all."""
    encoded = tokenizer.encode(texts)
    total = sum(len(ids) for ids in encoded)
    strange = sum(int((ids == tokenizer.unknown).sum()) for ids in encoded)
    return [len(ids) + 2 for ids in encoded], strange / max(1, total)
