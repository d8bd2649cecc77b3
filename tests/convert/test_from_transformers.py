"""Models of transformers, made on the spot, give the same vectors once they came in."""

import json

import pytest
import torch

from headstart.batch import Batch
from headstart.convert.parity import SAMPLES
from headstart.inference.loaded_model import load_model
from headstart.workflows.convert import import_model
from tests.convert.hf_models import SIZE, TOKENIZERS, save_stock

pytestmark = pytest.mark.slow  # transformers alone takes seconds to load

LM = {"bert": "AutoModelForMaskedLM", "gpt2": "AutoModelForCausalLM", "llama": "AutoModelForCausalLM"}
POSITIONS = {"max_position_embeddings": 64}
VARIANTS = [
    ("bert", POSITIONS),
    ("bert", {**POSITIONS, "hidden_act": "relu", "layer_norm_eps": 1e-5}),
    ("bert", {**POSITIONS, "hidden_act": "gelu_new", "type_vocab_size": 1}),
    ("roberta", {"max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    ("roberta", {"max_position_embeddings": 66, "type_vocab_size": 2}),
    ("camembert", {"max_position_embeddings": 66, "type_vocab_size": 1}),
    ("xlm-roberta", {"max_position_embeddings": 66, "type_vocab_size": 1}),
    ("modernbert", {**POSITIONS, "local_attention": 6, "num_hidden_layers": 4}),
    ("modernbert", {**POSITIONS, "local_attention": 8, "global_attn_every_n_layers": 2, "decoder_bias": False}),
    ("modernbert", {**POSITIONS, "layer_types": ["full_attention"] * 3, "norm_eps": 1e-6}),
    ("modernbert", {**POSITIONS, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}),
    ("eurobert", POSITIONS),
    ("eurobert", {**POSITIONS, "tie_word_embeddings": True, "num_key_value_heads": 2}),
    ("eurobert", {**POSITIONS, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-6}),
    ("gpt2", {}),
    ("gpt2", {"activation_function": "relu", "tie_word_embeddings": False, "n_inner": None}),
    ("llama", POSITIONS),
    ("llama", {**POSITIONS, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}),
    ("llama", {**POSITIONS, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    ("llama", {**POSITIONS, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
]


def batch(pad, size=SIZE, lengths=(2, 9, 30, 17)):
    """Random tokens with padding at the end of the shorter rows."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(6, size, (len(lengths), max(lengths)), generator=generator)
    real = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    return tokens.masked_fill(~real, pad), real


def hidden_of(model, tokens, real, **more):
    with torch.no_grad():
        return model.base_model(input_ids=tokens, attention_mask=real.long(), **more).last_hidden_state


def ours_of(trained, tokens, real, segments=None):
    with torch.no_grad():
        return trained.model().backbone(Batch(tokens, real, segments=segments))


@pytest.mark.parametrize(("kind", "settings"), VARIANTS)
def test_vectors_and_scores_are_the_same_with_padding(kind, settings, tmp_path):
    model, words = save_stock(tmp_path / "stock", kind, LM.get(kind, "AutoModelForMaskedLM"), **settings)
    found = import_model(tmp_path / "stock", tmp_path / "run")
    trained = load_model(str(tmp_path / "run"))
    tokens, real = batch(words.pad_token_id or trained.tokenizer.pad_id)
    wanted = hidden_of(model, tokens, real)
    assert float((wanted - ours_of(trained, tokens, real))[real].abs().max()) < 1e-4
    assert found.has_lm_head
    with torch.no_grad():
        scores = model(input_ids=tokens, attention_mask=real.long()).logits
        own = trained.model()(Batch(tokens, real))["lm"]
    assert float((scores - own)[real].abs().max()) < 1e-4
    assert found.parameters == sum(weight.numel() for weight in trained.model().parameters())


def test_segments_are_the_same(tmp_path):
    model, _ = save_stock(tmp_path / "stock", "bert", "AutoModelForPreTraining", **POSITIONS)
    found = import_model(tmp_path / "stock", tmp_path / "run")
    trained = load_model(str(tmp_path / "run"))
    tokens, real = batch(0)
    segments = (torch.arange(30) > 4).long().expand(4, -1)
    wanted = hidden_of(model, tokens, real, token_type_ids=segments)
    assert float((wanted - ours_of(trained, tokens, real, segments))[real].abs().max()) < 1e-4
    assert trained.info.config.model.pooler
    assert sorted(found.dropped) == ["cls.seq_relationship.bias", "cls.seq_relationship.weight"]
    with torch.no_grad():
        pooled = model.bert(input_ids=tokens, attention_mask=real.long()).pooler_output
        body = trained.model().backbone
        assert torch.allclose(pooled, body.pooled(body(Batch(tokens, real))), atol=1e-5)


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_a_body_without_a_head_comes_in_as_one(kind, tmp_path):
    settings = {} if kind == "gpt2" else {"max_position_embeddings": 66}
    model, words = save_stock(tmp_path / "stock", kind, "AutoModel", **settings)
    found = import_model(tmp_path / "stock", tmp_path / "run")
    trained = load_model(str(tmp_path / "run"))
    assert not found.has_lm_head
    assert not found.dropped
    tokens, real = batch(words.pad_token_id or trained.tokenizer.pad_id)
    assert float((hidden_of(model, tokens, real) - ours_of(trained, tokens, real))[real].abs().max()) < 1e-4


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_the_head_of_another_task_stays_behind_and_is_named(kind, tmp_path):
    settings = {} if kind == "gpt2" else {"max_position_embeddings": 66}
    model, words = save_stock(tmp_path / "stock", kind, "AutoModelForSequenceClassification", **settings)
    found = import_model(tmp_path / "stock", tmp_path / "run")
    trained = load_model(str(tmp_path / "run"))
    assert found.dropped
    assert not found.has_lm_head
    tokens, real = batch(words.pad_token_id or trained.tokenizer.pad_id)
    assert float((hidden_of(model, tokens, real) - ours_of(trained, tokens, real))[real].abs().max()) < 1e-4


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_texts_become_the_same_tokens(kind, tmp_path):
    settings = {} if kind == "gpt2" else {"max_position_embeddings": 66}
    _, words = save_stock(tmp_path / "stock", kind, "AutoModel", **settings)
    import_model(tmp_path / "stock", tmp_path / "run")
    tokenizer = load_model(str(tmp_path / "run")).tokenizer
    texts = [text for text in SAMPLES if "[CLS]" not in text]
    theirs = words(texts, add_special_tokens=False)["input_ids"]
    assert [ids.tolist() for ids in tokenizer.encode(texts)] == theirs
    assert tokenizer.size == SIZE  # the model has room for more tokens than the tokenizer knows
    assert tokenizer.bos_id == (words.cls_token_id if words.cls_token else words.bos_token_id)
    assert tokenizer.eos_id == (words.sep_token_id if words.sep_token else words.eos_token_id)
    assert tokenizer.mask_id == words.mask_token_id
    assert len(words) in tokenizer.special_ids  # an id without a token is never sampled


def test_old_names_old_settings_and_several_files_are_understood(tmp_path):
    from safetensors.torch import load_file, save_file

    model, _ = save_stock(tmp_path / "stock", "bert", "AutoModelForMaskedLM", **POSITIONS)
    weights = load_file(tmp_path / "stock" / "model.safetensors")
    (tmp_path / "stock" / "model.safetensors").unlink()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): weight
        for name, weight in weights.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    half = len(old) // 2
    for number, names in enumerate((list(old)[:half], list(old)[half:])):
        save_file({name: old[name] for name in names}, tmp_path / "stock" / f"model-{number}.safetensors")
    index = {name: f"model-{0 if at < half else 1}.safetensors" for at, name in enumerate(old)}
    (tmp_path / "stock" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    found = import_model(tmp_path / "stock", tmp_path / "run")
    assert found.has_lm_head
    tokens, real = batch(0)
    trained = load_model(str(tmp_path / "run"))
    assert float((hidden_of(model, tokens, real) - ours_of(trained, tokens, real))[real].abs().max()) < 1e-4


def test_old_rotary_settings_are_understood(tmp_path):
    model, _ = save_stock(
        tmp_path / "stock",
        "llama",
        "AutoModelForCausalLM",
        **POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 700.0},
    )
    path = tmp_path / "stock" / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"], config["head_dim"]
    path.write_text(json.dumps({**config, "rope_theta": 700.0, "rope_scaling": None}))
    import_model(tmp_path / "stock", tmp_path / "run")
    tokens, real = batch(2)
    trained = load_model(str(tmp_path / "run"))
    assert trained.info.config.model.rope_theta == 700.0
    assert float((hidden_of(model, tokens, real) - ours_of(trained, tokens, real))[real].abs().max()) < 1e-4


@pytest.mark.parametrize("number", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_come_in_whole(number, tmp_path):
    from safetensors.torch import load_file

    model, _ = save_stock(tmp_path / "stock", "gpt2", "AutoModelForCausalLM")
    model.to(number).save_pretrained(tmp_path / "stock")
    import_model(tmp_path / "stock", tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert torch.equal(weights["backbone.embedding.token_embedding.weight"], model.transformer.wte.weight.float())


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_older_files_of_a_tokenizer_give_the_same_tokens(kind, tmp_path):
    from transformers import BertTokenizer, GPT2Tokenizer

    save_stock(tmp_path / "stock", kind, "AutoModel", **({} if kind == "gpt2" else POSITIONS))
    layout = json.loads((tmp_path / "stock" / "tokenizer.json").read_text())["model"]
    (tmp_path / "stock" / "tokenizer.json").unlink()
    if kind == "bert":
        (tmp_path / "stock" / "vocab.txt").write_text("\n".join(layout["vocab"]) + "\n")
        stock = BertTokenizer(vocab=layout["vocab"])
    else:
        (tmp_path / "stock" / "vocab.json").write_text(json.dumps(layout["vocab"]))
        merges = [" ".join(pair) for pair in layout["merges"]]
        (tmp_path / "stock" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
        stock = GPT2Tokenizer(vocab=layout["vocab"], merges=[tuple(pair) for pair in layout["merges"]])
    import_model(tmp_path / "stock", tmp_path / "run")
    tokenizer = load_model(str(tmp_path / "run")).tokenizer
    texts = [text for text in SAMPLES if "[CLS]" not in text]
    theirs = stock(texts, add_special_tokens=False)["input_ids"]
    assert [ids.tolist() for ids in tokenizer.encode(texts)] == theirs
