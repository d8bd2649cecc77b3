"""A translator leaves as Marian, and for CTranslate2, and translates there as here."""

import json

import numpy as np
import pytest
import torch

from headstart.config import TokenizerConfig
from headstart.convert.ctranslate2 import write_ctranslate2
from headstart.convert.families import MARIAN, MARIAN_MODULES, reorder
from headstart.convert.onnx import write_onnx
from headstart.convert.parity import ExportBundle
from headstart.convert.to_transformers import write_transformers
from headstart.convert.weight_map import weight_rules
from headstart.data.tokenizer_training import train_tokenizer
from headstart.errors import RunError
from headstart.generation.beam_search import Beam, beam_search
from headstart.generation.generate import ModelDecoder, Rules, source_batch
from headstart.models.model import build_model
from headstart.models.transformer import sinusoids
from headstart.objectives.seq2seq import Seq2Seq
from tests.convert.hf_models import SIZE, TEXTS, make_bundle, stir

pytestmark = pytest.mark.slow  # transformers alone takes seconds to load

VASWANI = {
    "architecture": "encoder-decoder", "position_embedding": "sinusoidal", "norm": "layer", "norm_first": False, "activation": "relu",
    "bias": True, "scale_embedding": True, "num_layers": 2,
}  # fmt: skip
SHAPES = {
    "vaswani": {},
    "untied": {"tie_embeddings": False},
    "deep-encoder": {"num_layers": 3, "num_decoder_layers": 1},
    "gelu": {"activation": "gelu"},
    "gelu-tanh-unscaled": {"activation": "gelu-tanh", "scale_embedding": False},
}
BEYOND_MARIAN = {"norm-first": {"norm_first": True}, "learned": {"position_embedding": "learned"}}
LINES = ["the quick brown fox", "naïve café 日本", "a", "jumps over the lazy dog, again and again"]


def make_translator(tokenizer="bpe", own_sources=False, **body):
    """A random translator; with `own_sources` each side has its vocabulary."""
    bundle = make_bundle("translate", tokenizer, length=64, **{**VASWANI, **body})
    if not own_sources:
        return bundle
    words = train_tokenizer(TEXTS, TokenizerConfig(type="bpe", vocab_size=SIZE - 20))
    shape = bundle.config.model_copy(update={"source_vocab_size": words.size})
    specs = Seq2Seq().heads(shape, bundle.tokenizer.size, 0)
    model = stir(build_model(shape, bundle.tokenizer.size, specs)).eval()
    return ExportBundle(model, specs, bundle.tokenizer, [], 64, "start", words)


def our_translations(bundle, width):
    """What headstart writes for the lines, as tokens."""
    words, special = bundle.tokenizer, bundle.tokenizer.special_ids
    rows = [bundle.sources.add_special_tokens(ids, 64) for ids in bundle.sources.encode(LINES)]
    batch = source_batch(rows, words.pad_id, words.bos_id)
    forbidden = Rules(words.eos_id, 12, banned=tuple(sorted(special - {words.eos_id})))
    found = beam_search(ModelDecoder(bundle.model), batch, forbidden, Beam(width, 1, 0.0))
    return [best[0].tokens for best in found]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("own_sources", [False, True], ids=["one-vocabulary", "two"])
def test_a_translator_leaves_as_marian_and_translates_there_as_here(tmp_path, shape, own_sources):
    import transformers

    bundle = make_translator(own_sources=own_sources, **SHAPES[shape])
    written = write_transformers(bundle, tmp_path)
    assert written.kind == MARIAN.name
    assert written.difference < 1e-4
    model = transformers.MarianMTModel.from_pretrained(tmp_path).eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    target = transformers.AutoTokenizer.from_pretrained(tmp_path / "target") if own_sources else words
    given = words(LINES, padding=True, return_tensors="pt")
    found = model.generate(**given, max_new_tokens=12, num_beams=1, do_sample=False)
    ours = our_translations(bundle, 1)
    for row, tokens in zip(found.tolist(), ours, strict=True):
        last = bundle.tokenizer.eos_id
        inner = row[1 : row.index(last, 1)] if last in row[1:] else row[1:13]
        assert inner == tokens
        assert target.decode(row, skip_special_tokens=True) == bundle.tokenizer.decode(tokens)


@pytest.mark.parametrize("shape", [*SHAPES, *BEYOND_MARIAN])
@pytest.mark.parametrize("own_sources", [False, True], ids=["one-vocabulary", "two"])
def test_a_translator_leaves_for_ctranslate2_and_translates_there_as_here(tmp_path, shape, own_sources):
    import ctranslate2

    bundle = make_translator(own_sources=own_sources, **{**SHAPES, **BEYOND_MARIAN}[shape])
    written = write_ctranslate2(bundle, tmp_path)
    assert written.answers > 300
    assert written.difference < 1e-4
    engine = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    names = ("source", "target") if own_sources else ("shared", "shared")
    read, spelt = (json.loads((tmp_path / f"{name}_vocabulary.json").read_text("utf-8")) for name in names)
    texts = [
        [read[token] for token in bundle.sources.add_special_tokens(ids, 64)] for ids in bundle.sources.encode(LINES)
    ]
    banned = sorted(bundle.tokenizer.special_ids - {bundle.tokenizer.eos_id})
    for width in (1, 4):
        found = engine.translate_batch(
            texts, beam_size=width, max_decoding_length=12, length_penalty=0,
            suppress_sequences=[[spelt[number]] for number in banned],
        )  # fmt: skip
        theirs = [[spelt.index(name) for name in each.hypotheses[0]] for each in found]
        ours = our_translations(bundle, width)
        if width == 1:
            assert theirs == ours
        else:  # the two keep other candidates beside the best, so that few may differ
            assert np.mean([one == other for one, other in zip(theirs, ours, strict=True)]) >= 0.5


def test_a_width_in_marians_order_is_the_same_waves():
    order = torch.cat((torch.arange(0, 10, 2), torch.arange(1, 10, 2)))
    waves = reorder("model.encoder.embed_positions.weight", sinusoids(7, 10), order)
    rate = 10000.0 ** (-torch.arange(0, 10, 2) / 10)
    angle = torch.arange(7)[:, None] * rate
    assert torch.allclose(waves, torch.cat((angle.sin(), angle.cos()), dim=1), atol=1e-6)


def test_every_weight_of_a_block_has_its_place():
    bundle = make_translator()
    ours = {name for name in bundle.model.state_dict() if ".blocks." in name}
    assert {rule.ours for rule in weight_rules(MARIAN_MODULES, bundle.model.state_dict(), bundle.config)} == ours


@pytest.mark.parametrize(
    "setting", [{"norm_first": True}, {"position_embedding": "learned"}, {"bias": False}, {"norm_eps": 1e-6}]
)
def test_what_marian_has_not_is_named(tmp_path, setting):
    name, value = next(iter(setting.items()))
    word = str(value).lower() if isinstance(value, bool) else value
    with pytest.raises(RunError, match=f"MarianMTModel has no model.{name}={word}") as caught:
        write_transformers(make_translator(**setting), tmp_path)
    assert "translate-tiny" in caught.value.hint


def test_what_does_not_fit_elsewhere_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"CTranslate2 has no model\.position_embedding=rotary"):
        write_ctranslate2(make_translator(position_embedding="rotary"), tmp_path)
    with pytest.raises(RunError, match="only translators can be exported"):
        write_ctranslate2(make_bundle("causal-lm"), tmp_path)
    with pytest.raises(RunError, match="reads two texts"):
        write_onnx(make_translator(), tmp_path)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "characters"])
def test_every_kind_of_tokenizer_leaves_with_a_translator(tmp_path, kind):
    (tmp_path / "marian").mkdir()
    (tmp_path / "ct2").mkdir()
    bundle = make_translator(kind)
    assert write_transformers(bundle, tmp_path / "marian").texts == write_ctranslate2(bundle, tmp_path / "ct2").texts
