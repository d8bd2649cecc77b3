"""Tokenizers as files of transformers: written so that they add the same special tokens, and read with their ids."""

import json
from pathlib import Path
from typing import Any

from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, processors
from tokenizers import Tokenizer as HFTokenizer

from headstart.atomic_io import write_json, write_text
from headstart.convert.parity import BUG, SAMPLES, ExportBundle, check_tokens
from headstart.convert.weight_map import HFConfig
from headstart.data.tokenizer import FILE, NAMES, Tokenizer, make_tokenizer
from headstart.errors import RunError

CONFIG = "tokenizer_config.json"
TARGET = "target"  # the folder of a translator's target tokenizer, if it has two
# Our special token -> the keys of tokenizer_config.json that name it, best first.
SPECIAL_KEYS = {
    "padding": ("pad_token",),
    "unknown": ("unk_token",),
    "first": ("cls_token", "bos_token"),
    "last": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
}
ID_KEYS = {"padding": "pad_token_id", "first": "bos_token_id", "last": "eos_token_id"}  # in config.json
BPE_SPECIALS = ("<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>")  # of GPT-2 and RoBERTa
TRUNCATION_SIDES = {"start": "right", "end": "left"}  # by the part of a text that stays


# --- export


def save_tokenizer(bundle: ExportBundle, tokenizer: Tokenizer, folder: Path, *, own_padding: bool = False) -> int:
    """Write a tokenizer of the bundle, and return the id of its padding token.

    The last token is added to a text, but not to a prompt that a model continues. For a language model "[MASK]" in a
    text is the mask. `own_padding`: a padding token that differs from the last token, added if needed.
    """
    if tokenizer.kind == "lab":
        raise RunError(
            "the course lab's tokenizer is a SentencePiece model with a dictionary, which transformers cannot read",
            hint="pretrain with --tokenizer bpe, or use --to onnx",
        )
    engine = HFTokenizer.from_str(tokenizer.engine.files()[FILE].decode("utf-8"))
    engine.no_truncation()
    engine.no_padding()
    padding: int = tokenizer.pad_id
    if own_padding and padding == tokenizer.eos_id:
        engine.add_special_tokens(["[PAD]"])
        padding = int(engine.token_to_id("[PAD]") or 0)
    first, last = engine.id_to_token(tokenizer.bos_id), engine.id_to_token(tokenizer.eos_id)
    engine.post_processor = processors.TemplateProcessing(
        single=[f"{first}:0", "$A:0", *([] if bundle.reads_prompts else [f"{last}:0"])],
        pair=[f"{first}:0", "$A:0", f"{last}:0", "$B:1", f"{last}:1"],
        special_tokens=list({first: tokenizer.bos_id, last: tokenizer.eos_id}.items()),
    )
    write_text(folder / FILE, engine.to_str(pretty=True) + "\n")
    ids = (padding, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id)
    names = {
        key: engine.id_to_token(number)
        for keys, number in zip(SPECIAL_KEYS.values(), ids, strict=True)
        for key in keys
        if number is not None
    }
    inputs = ["input_ids", *(["token_type_ids"] if bundle.config.token_type_embeddings else []), "attention_mask"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": bundle.max_length,
        "padding_side": "right",
        "truncation_side": TRUNCATION_SIDES.get(bundle.truncation_side, "right"),
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": bundle.is_translator or "lm" not in bundle.heads,
        "model_input_names": inputs,
    }
    write_json(folder / CONFIG, settings | names)
    return padding


def translator_tokenizers(bundle: ExportBundle, folder: Path) -> dict[Path, Tokenizer]:
    """A translator's tokenizers by their folders: the source's, and the target's if it is another one."""
    target = {} if bundle.source_tokenizer is None else {folder / TARGET: bundle.tokenizer}
    return {folder: bundle.sources, **target}


def save_translator_tokenizers(bundle: ExportBundle, folder: Path) -> int:
    """Write the tokenizers of both sides, and return the number of samples compared.

    A sample that has other tokens in transformers, or another text again, is an error.
    """
    from transformers import AutoTokenizer

    for path, tokenizer in translator_tokenizers(bundle, folder).items():
        path.mkdir(exist_ok=True)
        save_tokenizer(bundle, tokenizer, path)
        exported = AutoTokenizer.from_pretrained(path, local_files_only=True)
        for text, ids in zip(SAMPLES, tokenizer.encode(SAMPLES), strict=True):
            tokens = tokenizer.add_special_tokens(ids, bundle.max_length).tolist()
            check_tokens(text, tokens, exported(text, truncation=True)["input_ids"])
            if tokenizer.decode(tokens) != exported.decode(tokens, skip_special_tokens=True):
                raise RunError(f"{text[:40]!r} is decoded to another text", hint=BUG)
    return len(SAMPLES)


# --- import


def load_tokenizer(folder: Path, config: HFConfig, vocab_size: int) -> Tokenizer:
    """The tokenizer of a folder, with the ids that its model was trained with."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", CONFIG):
        if (folder / name).is_file():
            found = HFConfig.load(folder / name).content
            settings |= {key: value for key, value in found.items() if value is not None}
    content = _tokenizer_json(folder, settings)
    try:
        ids = HFTokenizer.from_str(content).get_vocab(with_added_tokens=True)
    except Exception as error:  # the package raises plain Exceptions
        raise RunError(f"{folder / FILE} is no readable tokenizer: {error}", hint="copy it again") from None
    size = max(ids.values()) + 1
    if size > vocab_size:
        problem = f"the tokenizer in {folder} has {size:,} tokens, and the model {vocab_size:,}"
        raise RunError(problem, hint="the two do not belong together: copy the model's own tokenizer")
    specials = _special_ids(settings, config, ids)
    default = {role: next((ids[name] for name in names if name in ids), None) for role, names in NAMES.items()}
    if specials == default and size == vocab_size:
        return make_tokenizer(content)
    return make_tokenizer(content, json.dumps({"size": vocab_size, "specials": specials}, indent=1) + "\n")


def _special_ids(settings: dict[str, Any], config: HFConfig, ids: dict[str, int]) -> dict[str, int | None]:
    """The id of each special token: as the tokenizer names it, under a usual name, or as config.json has it."""
    found: dict[str, int | None] = {}
    for role, keys in SPECIAL_KEYS.items():
        values = [settings[key] for key in keys if settings.get(key)]
        names = [value["content"] if isinstance(value, dict) else value for value in values]
        known = [ids[name] for name in (*names, *NAMES[role]) if name in ids]
        number = config.get(ID_KEYS.get(role, ""))
        number = number[0] if isinstance(number, list) and number else number
        found[role] = known[0] if known else number if isinstance(number, int) and number >= 0 else None
    end = found["last"] if found["last"] is not None else found["first"]
    if end is None:
        problem = "the tokenizer names no token that begins or ends a text"
        raise RunError(problem, hint=f"add bos_token and eos_token to {CONFIG}")
    # GPT-2 has one special token; the attention mask tells padding from text, the id does not have to
    return {role: number if number is not None or role == "mask" else end for role, number in found.items()}


def _tokenizer_json(folder: Path, settings: dict[str, Any]) -> str:
    """The text of `tokenizer.json`, also from the older files of BERT and GPT-2."""
    if (folder / FILE).is_file():
        return (folder / FILE).read_text("utf-8")
    vocabulary, table, merges = (folder / name for name in ("vocab.txt", "vocab.json", "merges.txt"))
    try:
        if vocabulary.is_file():
            text: str = BertWordPieceTokenizer.from_file(
                str(vocabulary),
                unk_token=str(settings.get("unk_token", "[UNK]")),
                lowercase=bool(settings.get("do_lower_case", True)),
                strip_accents=settings.get("strip_accents"),
                handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
            ).to_str()
            return text
        if table.is_file() and merges.is_file():
            prefix = bool(settings.get("add_prefix_space", False))
            engine = ByteLevelBPETokenizer.from_file(str(table), str(merges), add_prefix_space=prefix)
            engine.add_special_tokens([name for name in BPE_SPECIALS if engine.token_to_id(name) is not None])
            text = engine.to_str()
            return text
    except Exception as error:  # the package raises plain Exceptions
        raise RunError(f"the tokenizer in {folder} cannot be read: {error}", hint="copy it again") from None
    pieces = sorted(path.name for path in folder.glob("*.model"))
    found = f"only {pieces[0]}, a SentencePiece model" if pieces else "none"
    raise RunError(
        f"{folder} holds no {FILE}: {found}",
        hint=f"`AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})` of transformers writes it",
    )
