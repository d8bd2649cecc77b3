"""Export as a model of transformers, which is loaded and compared before it is shown."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headstart.atomic_io import write_json
from headstart.batch import Batch
from headstart.checkpoint import save_weights
from headstart.convert import families
from headstart.convert.parity import (
    BUG,
    SAMPLES,
    SPECIALS,
    ExportBundle,
    ParityReport,
    check_tokens,
    quiet,
    require_package,
)
from headstart.convert.tokenizers import TARGET, TRUNCATION_SIDES, save_tokenizer, save_translator_tokenizers
from headstart.convert.weight_map import (
    HFClass,
    ModelFamily,
    Settings,
    Supported,
    export_weights,
    find_class,
    unsupported,
    weight_rules,
)
from headstart.errors import RunError

EMBEDDING = "backbone.embedding.token_embedding.weight"


def write_transformers(bundle: ExportBundle, folder: Path) -> ParityReport:
    """Fill `folder` with config, weights and tokenizer, load them with transformers, and compare."""
    require_package("transformers", "transformers", "an export to transformers")
    from transformers.utils import logging

    with quiet(), ExitStack() as stack:
        if logging.is_progress_bar_enabled():
            logging.disable_progress_bar()
            stack.callback(logging.enable_progress_bar)
        if bundle.is_translator:
            check_translator(bundle, families.MARIAN_SUPPORTED, families.MARIAN.name)
            return _write_translator(bundle, folder)
        return _write_family(bundle, *find_class(list(families.FAMILIES.values()), bundle.config, bundle.heads), folder)


def check_translator(bundle: ExportBundle, supported: Supported, name: str) -> None:
    """Refuse settings that are not supported."""
    if differing := unsupported(supported, partial(getattr, bundle.config)):
        raise RunError(
            f"{name} has no {', '.join(actual for actual, _ in differing)}",
            hint="the presets translate-tiny, translate-small and vaswani-base train translators that can be exported",
        )


def _write_translator(bundle: ExportBundle, folder: Path) -> ParityReport:
    texts = save_translator_tokenizers(bundle, folder)
    weights, is_shared = families.marian_weights(bundle)
    settings = families.marian_config(bundle, is_shared) | families.special_token_ids(bundle)
    _save_model(folder, "marian", families.MARIAN, settings, weights)
    write_json(folder / "generation_config.json", families.generation_config(bundle))
    report = _compare(bundle, families.MARIAN, folder, texts, bundle.tokenizer.pad_id)
    report.notes.append(
        "beam search in transformers divides by length ** length_penalty, a length penalty that headstart does not have"
    )
    if bundle.source_tokenizer is not None:
        report.notes.append(f"the tokenizer is the source's; the target's tokenizer is in {TARGET}/")
    return report


def _write_family(bundle: ExportBundle, family: ModelFamily, target: HFClass, folder: Path) -> ParityReport:
    tokenizer = bundle.tokenizer
    padding = save_tokenizer(bundle, tokenizer, folder, own_padding=_pools_last_token(bundle))
    ours = bundle.model.state_dict()
    rules = [
        rule
        for rule in weight_rules({**family.modules, **target.modules}, ours, bundle.config, family.transpose)
        if rule.ours not in target.unused
    ]
    dropped = [name for name in ours if name in target.unused]
    unknown = set(ours) - {rule.ours for rule in rules} - set(dropped)
    assert not unknown, f"{family.name} has no place for {sorted(unknown)}"
    weights = export_weights(rules, ours) | family.extra_weights(bundle.config)
    embedding = next(rule.theirs[0] for rule in rules if rule.ours == EMBEDDING)
    missing = max(0, padding + 1 - tokenizer.size)  # a padding token of its own
    weights[embedding] = torch.nn.functional.pad(weights[embedding], (0, 0, 0, missing))
    settings: Settings = {
        **family.write_settings(bundle.config),
        "vocab_size": tokenizer.size + missing,
        "dtype": "float32",
        "pad_token_id": padding,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), tokenizer.bos_id),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), tokenizer.eos_id),
        **({} if tokenizer.mask_id is None else {"mask_token_id": tokenizer.mask_id}),
    }
    if "class" in bundle.heads:
        settings |= {
            "id2label": dict(enumerate(bundle.classes)),
            "label2id": {name: index for index, name in enumerate(bundle.classes)},
            "problem_type": bundle.problem_type or "single_label_classification",
            **target.config(bundle.heads["class"]),
        }
    _save_model(folder, family.model_type, target, settings, weights)
    report = _compare(bundle, target, folder, _compare_tokens(bundle, folder), padding)
    if bundle.truncation_side not in TRUNCATION_SIDES:
        report.notes.append(
            f"transformers truncates at one side: of texts over {bundle.max_length} tokens, it reads the start "
            "instead of both ends"
        )
    if dropped:
        report.notes.append(f"{target.name} has no place for {', '.join(dropped)}")
    if "lm" in bundle.heads:
        report.notes.append("a special token such as the mask is read as that token inside a text")
    return report


def _pools_last_token(bundle: ExportBundle) -> bool:
    """Whether the class pools the last token that is not padding, by its id."""
    return bundle.config.architecture == "causal" and "class" in bundle.heads


def _save_model(folder: Path, model_type: str, target: HFClass, settings: Settings, weights: Any) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type, **settings, architectures=[target.name])
    config.save_pretrained(folder)
    save_weights(folder / "model.safetensors", weights, {"format": "pt"})


def _compare_tokens(bundle: ExportBundle, folder: Path) -> int:
    """The number of samples with the same tokens in both libraries; any other tokens are an error."""
    from transformers import AutoTokenizer

    exported = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts = [text for text in SAMPLES if not ("lm" in bundle.heads and text == SPECIALS)]
    keep = bundle.truncation_side if bundle.truncation_side in TRUNCATION_SIDES else "start"
    num_open = int(bundle.reads_prompts)  # a prompt has no last token
    for text, ids in zip(texts, bundle.tokenizer.encode(texts), strict=True):
        tokens = bundle.tokenizer.add_special_tokens(ids, bundle.max_length + num_open, keep).tolist()
        check_tokens(text, tokens[: len(tokens) - num_open], exported(text, truncation=True)["input_ids"])
    if "pair" in bundle.heads:
        first, second = SAMPLES[2], SAMPLES[3]
        one, two = (ids.tolist() for ids in bundle.tokenizer.encode([first, second]))
        start, end = bundle.tokenizer.bos_id, bundle.tokenizer.eos_id
        found = exported(first, second)
        check_tokens(first, [start, *one, end, *two, end], found["input_ids"])
        check_tokens(first, [0] * (len(one) + 2) + [1] * (len(two) + 1), found["token_type_ids"])
    return len(texts)


@torch.inference_mode()
def _compare(bundle: ExportBundle, target: HFClass, folder: Path, texts: int, padding: int) -> ParityReport:
    """Load the folder as any user of transformers does, and compare the outputs."""
    import transformers

    model, loading = getattr(transformers, target.auto_class).from_pretrained(
        folder, local_files_only=True, output_loading_info=True, dtype=torch.float32
    )
    faults = [*loading["missing_keys"], *loading["unexpected_keys"], *loading["mismatched_keys"]]
    if faults or type(model).__name__ != target.name:
        raise RunError(
            f"transformers loaded {type(model).__name__} and could not place "
            f"{', '.join(map(str, faults)) or 'nothing'}",
            hint=BUG,
        )
    report = ParityReport(target.name, texts, details={"auto_class": target.auto_class})
    for each in bundle.batches():
        batch = each
        if _pools_last_token(bundle):  # the class would take a padding token inside a text for its end
            batch = replace(
                each, tokens=each.tokens.masked_fill(each.tokens == padding, (padding + 1) % bundle.tokenizer.size)
            )
        theirs = model.eval()(**_inputs(batch, padding))
        for name, logits in bundle.outputs(batch).items():
            output = "last_hidden_state" if name == "hidden" else target.outputs.get(name, "logits")
            report.compare(logits, theirs[output].float(), batch.attention_mask)
    return report


def _inputs(batch: Batch, padding: int) -> dict[str, torch.Tensor]:
    if batch.source is not None and batch.source_attention_mask is not None:
        return {
            "input_ids": batch.source,
            "attention_mask": batch.source_attention_mask.long(),
            "decoder_input_ids": batch.tokens,
        }
    token_types = {} if batch.segments is None else {"token_type_ids": batch.segments}
    tokens = batch.tokens.masked_fill(~batch.attention_mask, padding)
    return {"input_ids": tokens, "attention_mask": batch.attention_mask.long(), **token_types}
