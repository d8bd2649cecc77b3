"""Small random models and tokenizers of other libraries, made on the spot, and parcels of ours."""

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headstart.config import ModelConfig, ObjectiveConfig, TokenizerConfig
from headstart.convert.parity import SAMPLES, ExportBundle
from headstart.data.tokenizer_training import train_tokenizer
from headstart.models.model import build_model
from headstart.objectives import make_objective

TEXTS = ["the quick brown fox jumps over the lazy dog, naïve café 日本 again"] * 9 + list(SAMPLES[2:])
SIZE = 320
SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": SIZE,
}  # fmt: skip
BERT_LIKE = {
    "position_embedding": "learned", "norm": "layer", "norm_first": False, "activation": "gelu", "bias": True,
    "token_type_embeddings": True, "embedding_norm": True, "pooler": True, "mlm_head_transform": True, "norm_eps": 1e-12,
}  # fmt: skip
GPT2_LIKE = {
    "position_embedding": "learned", "norm": "layer", "activation": "gelu-tanh", "bias": True, "head_bias": False,
}  # fmt: skip
MODERN = {
    "norm": "layer", "activation": "geglu", "embedding_norm": True, "norm_first_layer": False, "sliding_window": 3,
    "global_attn_every_n_layers": 2, "rope_theta": 160000.0, "mlm_head_transform": True, "head_bias": True,
}  # fmt: skip


def make_bundle(objective, tokenizer="bpe", settings=None, classes=("bad", "good", "so so"), length=40, **body):
    """A model of ours with random weights, ready to leave."""
    torch.manual_seed(0)
    words = train_tokenizer(TEXTS, TokenizerConfig(type=tokenizer, vocab_size=SIZE))
    target = make_objective(ObjectiveConfig(name=objective, **(settings or {})))
    small = {"num_layers": 3, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64}
    shape = target.resolve_backbone(ModelConfig(**{**small, **body}))
    specs = target.heads(shape, words.size, len(classes))
    model = stir(build_model(shape, words.size, specs)).eval()
    return ExportBundle(model, specs, words, list(classes) if "class" in specs else [], length, "start")


def stir(model):
    """The model with every weight moved, so that no bias is 0 and no norm 1."""
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model


def byte_pairs(*specials):
    """A byte-level tokenizer with these special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def word_pieces():
    """BERT's kind of tokenizer."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!", "the", "fox"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxy"]
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(pieces[:5])
    return tokenizer


BERT_TOKENS = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip
ROBERTA_TOKENS = {
    "bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>",
    "cls_token": "<s>", "sep_token": "</s>",
}  # fmt: skip
GPT2_TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
LLAMA_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}

TOKENIZERS = {
    "bert": (word_pieces, BERT_TOKENS),
    "modernbert": (lambda: byte_pairs("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), BERT_TOKENS),
    "eurobert": (lambda: byte_pairs("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), BERT_TOKENS),
    "roberta": (lambda: byte_pairs("<s>", "<pad>", "</s>", "<unk>", "<mask>"), ROBERTA_TOKENS),
    "camembert": (lambda: byte_pairs("<s>", "<pad>", "</s>", "<unk>", "<mask>"), ROBERTA_TOKENS),
    "xlm-roberta": (lambda: byte_pairs("<s>", "<pad>", "</s>", "<unk>", "<mask>"), ROBERTA_TOKENS),
    "gpt2": (lambda: byte_pairs("<|endoftext|>"), GPT2_TOKENS),
    "llama": (lambda: byte_pairs("<unk>", "<s>", "</s>"), LLAMA_TOKENS),
}


def save_stock(folder, kind, auto_class, seed=0, **settings):
    """A random model of transformers with its tokenizer in `folder`, as `save_pretrained` writes them."""
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(seed)
    make_words, names = TOKENIZERS[kind]
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=make_words(), **names)
    sizes = SMALL
    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48, "vocab_size": SIZE, "n_positions": 64}
    special_ids = {
        name: getattr(words, name)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    }
    special_ids = {name: number for name, number in special_ids.items() if number is not None}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **special_ids, **settings})
    model = stir(getattr(transformers, auto_class).from_config(config)).eval()
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return model, words
