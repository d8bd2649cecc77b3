"""The loss of a translator: all tokens at once give the same as one after the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headstart.batch import IGNORE
from headstart.errors import ConfigError
from headstart.models.model import build_model
from headstart.objectives.seq2seq import Seq2Seq
from tests.helpers.tiny_models import SHAPES, VOCABULARY, generator, random_rows, tiny_config

LENGTHS = [9, 4, 12, 2]


def make_model(shape="lab", **changes):
    torch.manual_seed(0)
    body, objective = tiny_config("encoder-decoder", shape, **changes), Seq2Seq()
    return build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 0)).eval()


def make_batch(lengths=LENGTHS):
    rows = random_rows(lengths, sources=True)
    return rows, Seq2Seq().collate(rows, VOCABULARY, generator())


def test_a_decoder_reads_a_translation_without_its_end_and_predicts_it_without_its_start():
    rows, batch = make_batch()
    labels = torch.full(batch.tokens.shape, IGNORE).flatten()
    labels = labels.index_put((batch.label_positions,), batch.labels["lm"]).view_as(batch.tokens)
    for number, row in enumerate(rows):
        length = len(row.tokens) - 1
        np.testing.assert_array_equal(batch.tokens[number, :length], row.tokens[:-1])
        np.testing.assert_array_equal(labels[number, :length], row.tokens[1:])
        assert (labels[number, length:] == IGNORE).all()
        assert batch.attention_mask[number].sum() == length
        np.testing.assert_array_equal(batch.source[number, : len(row.source)], row.source)
        assert batch.source_attention_mask[number].sum() == len(row.source)
    assert batch.num_tokens == sum(len(row.tokens) - 1 + len(row.source) for row in rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_masked_pass_gives_the_loss_of_predicting_word_by_word(shape):
    model = make_model(shape)
    rows, batch = make_batch()
    total, count = 0.0, 0
    with torch.no_grad():
        loss = Seq2Seq().losses(model, batch)["lm"]
        for number in range(len(rows)):
            row = rows[number]
            alone = Seq2Seq().collate([row], VOCABULARY, generator())
            cache = model.backbone.new_cache(alone, 1)
            weight, bias = model.heads["lm"].projection(model.backbone.table)
            for before, target in zip(row.tokens[:-1].tolist(), row.tokens[1:].tolist(), strict=True):
                hidden = model.backbone.decode(torch.tensor([[before]]), cache)[0, -1]
                logits = torch.nn.functional.linear(hidden, weight, bias)
                total -= float(logits.log_softmax(dim=-1)[target])
                count += 1
    assert loss.count == count
    assert float(loss.total) == pytest.approx(total, rel=1e-5)


def test_labels_are_smoothed_in_training_only():
    model, (_, batch) = make_model(), make_batch()
    with torch.no_grad():
        evaluated = [Seq2Seq(label_smoothing=share).losses(model, batch)["lm"].total for share in (0.0, 0.1)]
        model.train()
        trained = [Seq2Seq(label_smoothing=share).losses(model, batch)["lm"].total for share in (0.0, 0.1)]
    assert evaluated[0] == evaluated[1] == trained[0]
    assert trained[0] != trained[1]


def test_the_smoothed_loss_is_that_of_torch_over_all_tokens():
    model, (_, batch) = make_model(), make_batch()
    model.train()
    with torch.no_grad():
        loss = Seq2Seq(label_smoothing=0.1).losses(model, batch)["lm"]
        logits = model(replace(batch, label_positions=None))["lm"][batch.attention_mask]
        expected = torch.nn.functional.cross_entropy(logits, batch.labels["lm"], label_smoothing=0.1)
    assert float(loss.total / loss.count) == pytest.approx(float(expected), rel=1e-5)


def test_one_table_is_read_by_encoder_decoder_and_head():
    model = make_model("lab", tie_embeddings=True)
    assert [name for name in model.state_dict() if name.endswith("token_embedding.weight")] == [
        "backbone.embedding.token_embedding.weight"
    ]
    assert not [name for name in model.state_dict() if name.startswith("heads.")]  # nor a bias
    _, batch = make_batch()
    Seq2Seq().losses(model, batch)["lm"].total.backward()
    grad = model.backbone.table.grad.abs().sum(dim=1)
    only_read = set(batch.source[batch.source_attention_mask].tolist()) - set(batch.labels["lm"].flatten().tolist())
    assert only_read
    assert all(grad[token] > 0 for token in only_read)


def test_two_vocabularies_are_two_tables():
    model = make_model("lab", source_vocab_size=VOCABULARY.size + 7)
    assert model.state_dict()["backbone.source_embedding.token_embedding.weight"].shape[0] == VOCABULARY.size + 7
    assert model.backbone.table.shape[0] == VOCABULARY.size


def test_passes_that_agree_cost_what_one_pass_costs():
    _, batch = make_batch()
    model = make_model().train()  # no dropout, so both passes say the same
    twice = Seq2Seq(r_drop_alpha=3.0).collate(random_rows(LENGTHS, sources=True), VOCABULARY, generator())
    both, one = Seq2Seq(r_drop_alpha=3.0).losses(model, twice), Seq2Seq().losses(model, batch)
    assert torch.equal(both["lm"].total, one["lm"].total)
    assert float(both["agreement"].total.detach()) == 0
    assert list(one) == ["lm"]


def test_passes_that_differ_are_drawn_together_in_training_alone():
    objective, model = Seq2Seq(r_drop_alpha=2.0), make_model(dropout=0.5)
    batch = objective.collate(random_rows(LENGTHS, sources=True), VOCABULARY, generator())
    assert list(objective.losses(model, batch)) == ["lm"]
    found = objective.losses(model.train(), batch)
    assert float(found["agreement"].total.detach()) > 0
    assert found["agreement"].weight == 2.0
    assert {name: loss.count for name, loss in found.items()} == batch.label_counts


def test_r_drop_without_dropout_is_refused():
    with pytest.raises(ConfigError, match="no dropout"):
        Seq2Seq(r_drop_alpha=1.0).resolve_backbone(tiny_config("encoder-decoder"))
