import pytest
import torch

from headstart.batch import Batch
from headstart.config import resolve
from headstart.models import BACKBONES
from headstart.models.model import HeadSpec, build_model, count_parameters, transfer
from headstart.objectives import OBJECTIVES
from tests.helpers.tiny_models import VOCABULARY, generator, random_rows, tiny_config

CLASS = {"class": HeadSpec("class", 2, {"pooling": "last", "projection": "linear"})}


@pytest.mark.parametrize(("heads", "expected"), [({"lm": HeadSpec("lm", 50_001)}, 21_018_401), (CLASS, 10_968_602)])
def test_the_lab_preset_counts_to_the_course_numbers(heads, expected):
    with torch.device("meta"):
        model = build_model(resolve("finetune", "lab").model, 50_001, heads)
    assert count_parameters(model) == expected


def test_the_small_preset_stays_within_24_million():
    config = resolve("pretrain", "small")
    body = config.model.model_copy(update={"architecture": "bidirectional"})
    with torch.device("meta"):
        model = build_model(body, config.tokenizer.vocab_size, {"lm": HeadSpec("lm", config.tokenizer.vocab_size)})
    assert count_parameters(model) <= 24_000_000


def test_transfer_accounts_for_every_weight_and_no_head_crosses_unasked():
    body = tiny_config("causal", "lab")
    base = build_model(body, VOCABULARY.size, {"lm": HeadSpec("lm", VOCABULARY.size)})
    model = build_model(body, VOCABULARY.size, {**CLASS, "lm": HeadSpec("lm", VOCABULARY.size)})
    account = transfer(base.state_dict(), model)
    assert sum(account.reused.values()) + sum(account.initialized.values()) == count_parameters(model)
    assert sum(account.reused.values()) + sum(account.dropped.values()) == count_parameters(base)
    assert all(name.startswith("backbone.") for name in account.reused)
    assert "heads.lm.weight" in account.dropped
    assert "heads.lm.weight" in account.initialized
    for name in account.reused:
        assert torch.equal(model.state_dict()[name], base.state_dict()[name])
    with_heads = transfer(base.state_dict(), model, with_base_heads=True)
    assert "heads.lm.weight" in with_heads.reused


@pytest.mark.parametrize("kind", BACKBONES)
@pytest.mark.parametrize("reset", [1, 2])
def test_the_top_layers_can_start_fresh_and_the_account_says_so(kind, reset):
    body = tiny_config(kind, num_layers=3)
    base = build_model(body, VOCABULARY.size, {})
    model = build_model(body, VOCABULARY.size, CLASS)
    fresh = {name: weight.clone() for name, weight in model.state_dict().items()}
    account = transfer(base.state_dict(), model, reset_layers=reset)
    assert sum(account.reused.values()) + sum(account.initialized.values()) == count_parameters(model)
    assert sum(account.reused.values()) + sum(account.dropped.values()) == count_parameters(base)
    for name, weight in model.state_dict().items():
        if name.startswith("backbone."):
            is_kept = model.backbone.layer_of(name.removeprefix("backbone.")) <= model.backbone.depth - reset
            assert (name in account.reused) == is_kept
            assert (name in account.initialized) == (name in account.dropped) == (not is_kept)
            assert torch.equal(weight, base.state_dict()[name] if is_kept else fresh[name])
    depths = {
        model.backbone.layer_of(name.removeprefix("backbone.")) for name in account.initialized if "backbone." in name
    }
    assert {depth for depth in depths if depth <= model.backbone.depth} == set(
        range(model.backbone.depth - reset + 1, model.backbone.depth + 1)
    )


def test_a_table_of_another_size_stays_behind():
    base = build_model(tiny_config("causal"), 50, {})
    model = build_model(tiny_config("causal"), VOCABULARY.size, {})
    account = transfer(base.state_dict(), model)
    assert "backbone.embedding.token_embedding.weight" in account.initialized
    assert "backbone.embedding.token_embedding.weight" in account.dropped


@pytest.mark.parametrize(("name", "kind"), [("causal-lm", "causal"), ("masked-lm", "bidirectional")])
def test_a_loss_is_taken_of_what_the_head_with_its_transform_says(name, kind):
    torch.manual_seed(0)
    objective, body = OBJECTIVES[name](), tiny_config(kind, "transform")
    model = build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 0)).eval()
    torch.nn.init.normal_(model.heads["lm"].bias)
    batch = objective.collate(random_rows([9, 5]), VOCABULARY, generator())
    scores, labels = model(batch)["lm"].flatten(0, -2), batch.labels["lm"].flatten()
    wanted = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
    assert torch.allclose(objective.losses(model, batch)["lm"].total, wanted, atol=1e-4)


def test_shared_keys_and_values_are_the_same_as_their_copies():
    torch.manual_seed(0)
    shared = build_model(tiny_config("causal", num_heads=4, num_kv_heads=2), 40, {}).eval()
    whole = build_model(tiny_config("causal", num_heads=4), 40, {}).eval()
    weights = shared.state_dict()
    for name, weight in weights.items():
        if name.endswith("qkv_proj.weight"):
            query, key, value = weight.split((16, 8, 8))
            twice = [part.view(2, 1, 4, 16).expand(2, 2, 4, 16).reshape(16, 16) for part in (key, value)]
            weights[name] = torch.cat((query, *twice))
    whole.load_state_dict(weights)
    batch = Batch(torch.arange(5, 13)[None], torch.ones(1, 8, dtype=torch.bool))
    with torch.no_grad():
        assert torch.allclose(shared.backbone(batch), whole.backbone(batch), atol=1e-6)


def test_a_layer_with_a_window_reads_no_further():
    torch.manual_seed(0)
    body = build_model(tiny_config("bidirectional", "windows"), 40, {}).eval().backbone
    batch = Batch(torch.arange(5, 17)[None], torch.ones(1, 12, dtype=torch.bool))
    with torch.no_grad():
        weights = body(batch, output_attentions=True).attentions
    distance = (torch.arange(12)[:, None] - torch.arange(12)[None, :]).abs()
    for layer, seen in enumerate(weights):
        assert bool((seen[0][:, distance > 2] == 0).all()) == body.config.is_local(layer)
        assert bool((seen[0][:, distance <= 2] > 0).all())
    assert [body.config.is_local(layer) for layer in range(3)] == [False, True, False]
