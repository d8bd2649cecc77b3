"""A tokenizer as the files of `transformers`: written so that it frames texts as we do, and read with its numbers."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from headstart.atomic_io import write_json, write_text
from headstart.convert.hf_config import Reader
from headstart.data.tokenizer import FILE, NAMES, Tokenizer, tokenizer_of
from headstart.errors import HeadstartError, RunError

CONFIG = "tokenizer_config.json"
# Which of their special tokens plays which part here, the first that is named.
PARTS = {
    "padding": ("pad_token",),
    "unknown": ("unk_token",),
    "first": ("cls_token", "bos_token"),
    "last": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
}
NUMBERS = {"padding": "pad_token_id", "first": "bos_token_id", "last": "eos_token_id"}  # in config.json
SIDES = {"start": "right", "end": "left"}  # where a text is cut, by which part of it is kept


def leave(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    length: int,
    keep: str,
    closes: bool,
    has_segments: bool,
    reads_specials: bool,
    own_padding: bool,
) -> int:
    """Write the tokenizer and give the number of its padding token.

    `closes`: a text ends in the last token; a prompt that a model goes on with does not. `reads_specials`: "[MASK]" in
    a text is the mask. `own_padding`: padding must be a token that ends no text, and is added if it does.
    """
    if tokenizer.kind == "lab":
        raise RunError(
            "the course lab's tokenizer is a SentencePiece model with a dictionary, which transformers cannot read",
            hint="pretrain with --tokenizer bpe, or use --to onnx",
        )
    rust = Rust.from_str(tokenizer.engine.files()[FILE].decode("utf-8"))
    rust.no_truncation()
    rust.no_padding()
    padding: int = tokenizer.padding
    if own_padding and padding == tokenizer.last:
        rust.add_special_tokens(["[PAD]"])
        padding = int(rust.token_to_id("[PAD]") or 0)
    first, last = rust.id_to_token(tokenizer.first), rust.id_to_token(tokenizer.last)
    end = [f"{last}:0"] if closes else []
    rust.post_processor = processors.TemplateProcessing(
        single=[f"{first}:0", "$A:0", *end],
        pair=[f"{first}:0", "$A:0", f"{last}:0", "$B:1", f"{last}:1"],
        special_tokens=list({first: tokenizer.first, last: tokenizer.last}.items()),
    )
    write_text(folder / FILE, rust.to_str(pretty=True) + "\n")
    named = {"pad_token": padding, "unk_token": tokenizer.unknown, "mask_token": tokenizer.mask}
    named |= {name: tokenizer.first for name in PARTS["first"]}
    named |= {name: tokenizer.last for name in PARTS["last"]}
    write_json(
        folder / CONFIG,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": length,
            "padding_side": "right",
            "truncation_side": SIDES.get(keep, "right"),
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": not reads_specials,
            "model_input_names": [
                "input_ids",
                *(["token_type_ids"] if has_segments else []),
                "attention_mask",
            ],
            **{name: rust.id_to_token(number) for name, number in named.items() if number is not None},
        },
    )
    return padding


def arrive(folder: Path, config: Reader, vocabulary: int) -> Tokenizer:
    """The tokenizer of a folder, with the numbers its model was trained with."""
    told = _told(folder)
    content = _content(folder, told)
    try:
        rust = Rust.from_str(content)
    except Exception as error:  # the package raises plain Exceptions
        raise RunError(f"{folder / FILE} is no readable tokenizer: {error}", hint="copy it again") from None
    numbers = rust.get_vocab(with_added_tokens=True)
    size = max(numbers.values()) + 1
    if size > vocabulary:
        raise RunError(
            f"the tokenizer in {folder} has {size:,} tokens, and the model {vocabulary:,}",
            hint="the two do not belong together: copy the model's own tokenizer",
        )
    specials = _specials(told, config, numbers)
    by_name = {
        role: next((numbers[name] for name in names if name in numbers), None)
        for role, names in NAMES.items()
    }
    if specials == by_name and size == vocabulary:
        return tokenizer_of(content)
    return tokenizer_of(content, json.dumps({"size": vocabulary, "specials": specials}, indent=1) + "\n")


def _told(folder: Path) -> dict[str, Any]:
    """What the folder says of its tokenizer beside the vocabulary."""
    told: dict[str, Any] = {}
    for name in ("special_tokens_map.json", CONFIG):
        if (folder / name).is_file():
            told |= {
                key: value for key, value in Reader.open(folder / name).content.items() if value is not None
            }
    return told


def _specials(told: dict[str, Any], config: Reader, numbers: dict[str, int]) -> dict[str, int | None]:
    """The number of each special token, as the tokenizer names it, as we would, or as config.json numbers it."""
    found: dict[str, int | None] = {}
    for role, keys in PARTS.items():
        named = [
            value["content"] if isinstance(value, dict) else value for value in map(told.get, keys) if value
        ]
        known = [numbers[name] for name in (*named, *NAMES[role]) if name in numbers]
        number = config.get(NUMBERS.get(role, ""))
        number = number[0] if isinstance(number, list) and number else number
        found[role] = known[0] if known else number if isinstance(number, int) and number >= 0 else None
    if found["first"] is None and found["last"] is None:
        raise RunError(
            "the tokenizer names no token that begins or ends a text",
            hint=f"add bos_token and eos_token to {CONFIG}",
        )
    end = found["last"] if found["last"] is not None else found["first"]
    # GPT-2 has one token for all parts; padding is told from text by its place, never by its number
    return {role: number if number is not None or role == "mask" else end for role, number in found.items()}


def _content(folder: Path, told: dict[str, Any]) -> str:
    """The text of `tokenizer.json`, or of what the older files of BERT and GPT-2 amount to."""
    if (folder / FILE).is_file():
        return (folder / FILE).read_text("utf-8")
    try:
        if (folder / "vocab.txt").is_file():
            return _wordpiece(folder / "vocab.txt", told)
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return _byte_pairs(folder, told)
    except HeadstartError:
        raise
    except Exception as error:  # the package raises plain Exceptions
        raise RunError(f"the tokenizer in {folder} cannot be read: {error}", hint="copy it again") from None
    pieces = sorted(path.name for path in folder.glob("*.model"))
    found = f"only {pieces[0]}, which is SentencePiece's" if pieces else "none"
    raise RunError(
        f"{folder} holds no {FILE}: {found}",
        hint=f"`AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})` of transformers writes it",
    )


def _wordpiece(path: Path, told: dict[str, Any]) -> str:
    """BERT's tokenizer from its list of pieces."""
    pieces = path.read_text("utf-8").splitlines()
    unknown = str(told.get("unk_token", "[UNK]"))
    rust = Rust(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token=unknown))
    rust.normalizer = normalizers.BertNormalizer(
        lowercase=bool(told.get("do_lower_case", True)),
        strip_accents=told.get("strip_accents"),
        handle_chinese_chars=bool(told.get("tokenize_chinese_chars", True)),
    )
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    rust.add_special_tokens(
        [name for name in ("[PAD]", unknown, "[CLS]", "[SEP]", "[MASK]") if name in pieces]
    )
    return rust.to_str()


def _byte_pairs(folder: Path, told: dict[str, Any]) -> str:
    """GPT-2's and RoBERTa's tokenizer from its pieces and merges."""
    rust = Rust(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(told.get("add_prefix_space", False)))
    rust.decoder = decoders.ByteLevel()
    known = rust.get_vocab()
    named = ("<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    rust.add_special_tokens([name for name in named if name in known])
    return rust.to_str()
