"""A run as a folder that `transformers` loads as one of its own models, checked before it is shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headstart.checkpoint import save_weights
from headstart.convert.bert import BERT
from headstart.convert.gpt2 import GPT2
from headstart.convert.llama import EUROBERT, LLAMA
from headstart.convert.marian import write_marian
from headstart.convert.modernbert import MODERNBERT
from headstart.convert.parity import (
    SAMPLES,
    SPECIALS,
    Parcel,
    Written,
    largest_difference,
    need,
    readings,
    refuse_if_apart,
    refuse_other_tokens,
)
from headstart.convert.tokenizers import SIDES, leave
from headstart.convert.weight_map import Layout, Settings, Twin, find_home, scatter
from headstart.errors import RunError

HOMES = (LLAMA, EUROBERT, BERT, MODERNBERT, GPT2)


def write_transformers(parcel: Parcel, folder: Path) -> Written:
    """Fill `folder` with config, weights and tokenizer, load them as a stranger would, and compare."""
    need("transformers", "transformers", "an export to transformers")
    if parcel.body.kind == "encoder-decoder":
        with _quiet():
            return write_marian(parcel, folder)
    layout, twin = find_home(HOMES, parcel.body, parcel.heads)
    padding = leave(
        parcel.tokenizer,
        folder,
        length=parcel.length,
        keep=parcel.keep,
        closes=not _goes_on(twin),
        has_segments=parcel.body.segments,
        reads_specials="lm" in parcel.heads,
        own_padding=_pools_by_padding(parcel),
    )
    with _quiet():
        _write_model(parcel, layout, twin, padding, folder)
        return _checked(parcel, twin, folder)


def _goes_on(twin: Twin) -> bool:
    """Whether the model goes on with a text, which then must not be closed."""
    return twin.door == "AutoModelForCausalLM"


def _pools_by_padding(parcel: Parcel) -> bool:
    """Whether the stock class finds the last token of a text as the last one that is not padding."""
    return parcel.body.kind == "causal" and "class" in parcel.heads


def _write_model(parcel: Parcel, layout: Layout, twin: Twin, padding: int, folder: Path) -> None:
    from transformers import AutoConfig

    weights = parcel.model.state_dict()
    rules = [
        rule
        for rule in (*layout.rules(parcel.body), *twin.rules(parcel.body))
        if rule.ours not in twin.leaves
    ]
    unused = set(weights) - {rule.ours for rule in rules} - set(twin.leaves)
    assert not unused, f"{layout.name} has no place for {sorted(unused)}"
    theirs = {**scatter(rules, weights), **layout.extra(parcel.body)}
    table = next(rule.theirs[0] for rule in rules if rule.ours == "backbone.embedding.token_embedding.weight")
    rows = max(len(theirs[table]), padding + 1)
    if rows > len(theirs[table]):  # a padding token of its own
        theirs[table] = torch.nn.functional.pad(theirs[table], (0, 0, 0, rows - len(theirs[table])))
    settings = {
        **layout.config(parcel.body),
        **_settings(parcel, twin, padding),
        "vocab_size": rows,
        "architectures": [twin.name],
        "dtype": "float32",
    }
    AutoConfig.for_model(layout.model_type, **settings).save_pretrained(folder)
    save_weights(folder / "model.safetensors", theirs, {"format": "pt"})


def _settings(parcel: Parcel, twin: Twin, padding: int) -> Settings:
    """What config.json says of tokens and classes."""
    tokenizer = parcel.tokenizer
    settings: Settings = {
        "pad_token_id": padding,
        "bos_token_id": tokenizer.first,
        "eos_token_id": tokenizer.last,
    }
    if tokenizer.mask is not None:
        settings["mask_token_id"] = tokenizer.mask
    settings |= {"cls_token_id": tokenizer.first, "sep_token_id": tokenizer.last}
    spec = parcel.heads.get("class")
    if spec is None:
        return settings
    labels = {"id2label": dict(enumerate(parcel.classes)), "problem_type": "single_label_classification"}
    return {
        **settings,
        **labels,
        "label2id": {name: at for at, name in enumerate(parcel.classes)},
        **twin.config(spec),
    }


def _checked(parcel: Parcel, twin: Twin, folder: Path) -> Written:
    """Load the folder by its front door and compare tokens and answers."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts = _compare_tokens(parcel, tokenizer, closes=not _goes_on(twin))
    door = getattr(transformers, twin.door)
    model, report = door.from_pretrained(
        folder, local_files_only=True, output_loading_info=True, dtype=torch.float32
    )
    faults = [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]
    if faults or type(model).__name__ != twin.name:
        raise RunError(
            f"transformers read {type(model).__name__} and could not place {', '.join(map(str, faults)) or 'nothing'}",
            hint="this is a fault of headstart's: please tell its authors",
        )
    largest, numbers = _compare_answers(parcel, twin, model.eval(), tokenizer.pad_token_id)
    return Written(twin.name, texts, largest, numbers, _notes(parcel, twin), {"door": twin.door})


def _compare_tokens(parcel: Parcel, tokenizer: Any, closes: bool) -> int:
    """How many samples become the same tokens on both sides, which must be all."""
    reads_specials = "lm" in parcel.heads
    texts = [text for text in SAMPLES if not (reads_specials and text == SPECIALS)]
    keep = parcel.keep if parcel.keep in SIDES else "start"
    for text, ids in zip(texts, parcel.tokenizer.encode(texts), strict=True):
        open_ended = 0 if closes else 1
        wanted = parcel.tokenizer.frame(ids, parcel.length + open_ended, keep).tolist()
        refuse_other_tokens(
            text, wanted[: len(wanted) - open_ended], tokenizer(text, truncation=True)["input_ids"]
        )
    if "pair" in parcel.heads:
        first, second = SAMPLES[2], SAMPLES[3]
        one, two = (ids.tolist() for ids in parcel.tokenizer.encode([first, second]))
        start, end = parcel.tokenizer.first, parcel.tokenizer.last
        found = tokenizer(first, second)
        refuse_other_tokens(first, [start, *one, end, *two, end], found["input_ids"])
        refuse_other_tokens(first, [0] * (len(one) + 2) + [1] * (len(two) + 1), found["token_type_ids"])
    return len(texts)


@torch.inference_mode()
def _compare_answers(parcel: Parcel, twin: Twin, model: Any, padding: int) -> tuple[float, int]:
    """The largest difference of any answer, and how many numbers were compared."""
    largest, numbers = 0.0, 0
    for reading in readings(parcel):
        tokens = reading.tokens
        if _pools_by_padding(parcel):  # the stock class would take a padding token inside a text for its end
            tokens = tokens.masked_fill(tokens == padding, (padding + 1) % parcel.tokenizer.size)
        given = {
            "input_ids": tokens.masked_fill(~reading.real, padding),
            "attention_mask": reading.real.long(),
        }
        if reading.segments is not None:
            given["token_type_ids"] = reading.segments
        ours = parcel.answers(tokens, reading.real, reading.segments)
        theirs = model(**given)
        for name, said in ours.items():
            field = "last_hidden_state" if name == "hidden" else twin.answers[name]
            gap = largest_difference(said, theirs[field].float(), reading.real)
            refuse_if_apart(gap, said, twin.name)
            largest, numbers = max(largest, gap), numbers + said.numel()
    return largest, numbers


def _notes(parcel: Parcel, twin: Twin) -> list[str]:
    """What a user should know that is not in the folder's own words."""
    notes = []
    if parcel.keep not in SIDES:
        notes.append(
            f"transformers cuts long texts at one side: over {parcel.length} tokens, it keeps the start instead of both ends"
        )
    left = [name for name in parcel.model.state_dict() if name in twin.leaves]
    if left:
        notes.append(f"{twin.name} has no place for {', '.join(left)}")
    if "lm" in parcel.heads:
        notes.append("special tokens such as the mask are read as such inside a text")
    return notes


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no advice from transformers meanwhile."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
