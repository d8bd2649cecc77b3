"""What cannot come in or leave gets one clear sentence and a hint, and nothing is half-written."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from headstart.convert.families import LLAMA
from headstart.convert.weight_map import export_weights, weight_rules
from headstart.errors import HeadstartError
from headstart.inference.loaded_model import load_model
from headstart.models.model import HeadSpec, build_model
from headstart.workflows.convert import export, import_model
from tests.convert.hf_models import LLAMA_TOKENS, byte_pairs
from tests.helpers.tiny_models import tiny_config


@pytest.fixture
def folder(tmp_path):
    """A small Llama, written by hand."""
    path, body = tmp_path / "stock", tiny_config("causal")
    path.mkdir()
    tokenizer = byte_pairs("<unk>", "<s>", "</s>")
    tokenizer.save(str(path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    model = build_model(body, size, {"lm": HeadSpec("lm", size)})
    rules = weight_rules(LLAMA.modules, model.state_dict(), body)
    save_file(export_weights(rules, model.state_dict()), path / "model.safetensors")
    more = {"model_type": "llama", "vocab_size": size, "architectures": ["LlamaForCausalLM"]}
    (path / "config.json").write_text(json.dumps({**LLAMA.write_settings(body), **more}))
    (path / "tokenizer_config.json").write_text(json.dumps(LLAMA_TOKENS))
    return path


def change(path, **settings):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in {**content, **settings}.items() if value is not ...}))


def refused(folder, tmp_path):
    """What is said of a folder that cannot come in; nothing may be left behind."""
    with pytest.raises(HeadstartError) as caught:
        import_model(folder, tmp_path / "run")
    assert caught.value.hint
    assert not [path for path in tmp_path.iterdir() if "run" in path.name]
    return str(caught.value), caught.value.hint


def test_a_folder_written_by_hand_comes_in(folder, tmp_path):
    found = import_model(folder, tmp_path / "run")
    assert found.has_lm_head
    assert load_model(str(tmp_path / "run")).model().heads


def test_a_missing_folder_is_named_and_the_nearest_offered(folder, tmp_path):
    said, hint = refused(tmp_path / "stoc", tmp_path)
    assert "no folder" in said
    assert "stock" in hint


def test_a_run_of_ours_needs_no_import(folder, tmp_path):
    import_model(folder, tmp_path / "base")
    assert "a run of headstart already" in refused(tmp_path / "base", tmp_path)[0]


def test_quantised_weights_are_refused(folder, tmp_path):
    change(folder / "config.json", quantization_config={"bits": 4})
    assert "quantised" in refused(folder, tmp_path)[0]


def test_a_folder_without_config_is_no_model(folder, tmp_path):
    (folder / "config.json").unlink()
    assert "no config.json" in refused(folder, tmp_path)[0]


@pytest.mark.parametrize("text", ["{", "[1, 2]", '"llama"', "\xff\xfe"])
def test_a_config_that_is_no_json_object_is_named(folder, tmp_path, text):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in refused(folder, tmp_path)[0]


@pytest.mark.parametrize(
    ("kind", "near"), [("lama", "llama"), ("roberta-prelayernorm", "roberta"), ("t5", "choose from")]
)
def test_an_unknown_layout_is_answered_with_the_nearest_one(folder, tmp_path, kind, near):
    change(folder / "config.json", model_type=kind)
    said, hint = refused(folder, tmp_path)
    assert kind in said
    assert near in hint


def test_a_config_without_a_model_type_is_refused(folder, tmp_path):
    change(folder / "config.json", model_type=...)
    assert "names no model_type" in refused(folder, tmp_path)[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_size": 24, "head_dim": 12}, "config.json asks for"),
        ({"hidden_size": ...}, "has no hidden_size"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 15, "head_dim": 7}, "not a multiple"),
        ({"num_hidden_layers": 3}, "the weights hold no model.layers.2"),
        ({"num_hidden_layers": 1}, "a layer more than"),
        ({"intermediate_size": 25}, "config.json asks for"),
        ({"vocab_size": 9}, "config.json asks for"),
        ({"num_key_value_heads": 1}, "config.json asks for"),
        ({"head_dim": 32}, "head_dim=32"),
        ({"hidden_act": "tanh"}, "hidden_act='tanh'"),
        ({"attention_bias": True}, "attention_bias=True, mlp_bias=False"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}}, "'llama3'"),
        ({"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"tie_word_embeddings": False}, None),
        ({"max_position_embeddings": -4}, "max_position_embeddings"),
    ],
)
def test_settings_that_do_not_fit_are_named(folder, tmp_path, settings, words):
    change(folder / "config.json", **settings)
    if words is None:  # without its own scores it is a body alone
        assert not import_model(folder, tmp_path / "run").has_lm_head
    else:
        assert words in refused(folder, tmp_path)[0]


def test_pickles_are_never_opened(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    said, hint = refused(folder, tmp_path)
    assert "pytorch_model.bin, a pickle" in said
    assert "save_pretrained" in hint


def test_a_folder_without_weights_is_refused(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors" in refused(folder, tmp_path)[0]


@pytest.mark.parametrize("num_bytes", [0, 7, 60, -100])
def test_torn_weights_are_named(folder, tmp_path, num_bytes):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    assert "cannot be read" in refused(folder, tmp_path)[0]


def test_scores_that_are_tied_and_yet_differ_are_refused(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + 1
    save_file(weights, folder / "model.safetensors")
    assert "ties the language-model head" in refused(folder, tmp_path)[0]


def test_a_tokenizer_of_sentencepiece_alone_is_refused_with_the_way_out(folder, tmp_path):
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    said, hint = refused(folder, tmp_path)
    assert "tokenizer.model" in said
    assert "AutoTokenizer" in hint


def test_a_broken_tokenizer_is_named(folder, tmp_path):
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    assert "no readable tokenizer" in refused(folder, tmp_path)[0]


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder, tmp_path):
    layout = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    layout["added_tokens"].append({**layout["added_tokens"][0], "id": 5000, "content": "<new>"})
    (folder / "tokenizer.json").write_text(json.dumps(layout), "utf-8")
    assert "do not belong together" in refused(folder, tmp_path)[1]


def test_a_tokenizer_without_an_end_token_is_refused(folder, tmp_path):
    byte_pairs("<a>", "<b>", "<c>").save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").unlink()
    assert "no token that begins or ends" in refused(folder, tmp_path)[0]


def test_nothing_is_written_over(folder, tmp_path):
    place = tmp_path / "there"
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    for act in (lambda: import_model(folder, place), lambda: export("anything", "onnx", place)):
        with pytest.raises(HeadstartError, match="exists already"):
            act()
    assert [path.name for path in place.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("to", "package"), [("transformers", "transformers"), ("onnx", "onnx"), ("onnx", "onnxruntime")]
)
def test_a_missing_extra_is_named(folder, tmp_path, monkeypatch, to, package):
    import_model(folder, tmp_path / "base")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HeadstartError) as caught:
        export(str(tmp_path / "base"), to, tmp_path / "out")
    assert f"needs the package {package}" in str(caught.value)
    assert caught.value.hint == f"pip install 'headstart[{to}]'"
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


@pytest.mark.parametrize(
    ("to", "words", "said"), [("transfomers", {}, "transfomers"), ("transformers", {"int8": True}, "--int8")]
)
def test_a_wrong_word_is_answered(folder, tmp_path, to, words, said):
    with pytest.raises(HeadstartError) as caught:
        export("nowhere", to, tmp_path / "out", **words)
    assert said in str(caught.value)
    assert caught.value.hint
