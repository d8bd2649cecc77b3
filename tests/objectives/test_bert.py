import numpy as np
import pytest
import torch

from headstart.batch import EncodedExample
from headstart.config import resolve
from headstart.models.model import build_model, count_parameters
from headstart.objectives import OBJECTIVES
from headstart.objectives.masked_lm import MaskedLM
from headstart.objectives.next_sentence import MaskedAndNextSentence, NextSentence
from tests.helpers.tiny_models import VOCABULARY, generator, random_rows, tiny_config


def test_bert_base_counts_to_its_known_number():
    body = resolve("pretrain", "bert").model.model_copy(update={"architecture": "bidirectional"})
    with torch.device("meta"):
        assert count_parameters(build_model(body, 30_522, {})) == 109_482_240


def pairs():
    rng = np.random.default_rng(0)
    found = []
    for number in range(6):
        a, b = rng.integers(5, 40, 4), rng.integers(5, 40, 5)
        tokens = np.concatenate([[2], a, [3], b, [3]]).astype(np.int32)
        found.append(EncodedExample(tokens, number % 2, np.array([0] * 6 + [1] * 6, np.int8)))
    return found


def test_the_summed_loss_is_the_sum_of_its_parts():
    torch.manual_seed(0)
    body = tiny_config("bidirectional", token_type_embeddings=True, pooler=True)
    both = MaskedAndNextSentence()
    model = build_model(body, VOCABULARY.size, both.heads(body, VOCABULARY.size, 0))
    batch = both.collate(pairs(), VOCABULARY, generator())
    losses = both.losses(model, batch)
    from dataclasses import replace

    masked = MaskedLM().losses(model, replace(batch, labels={"lm": batch.labels["lm"]}))["lm"]
    following = NextSentence().losses(model, replace(batch, labels={"pair": batch.labels["pair"]}))["pair"]
    assert torch.allclose(losses["lm"].total, masked.total)
    assert torch.allclose(losses["pair"].total, following.total)
    assert losses["pair"].count == 6


def test_segments_tell_the_two_texts_apart():
    torch.manual_seed(0)
    body = tiny_config("bidirectional", token_type_embeddings=True)
    model = build_model(body, VOCABULARY.size, {}).eval()
    batch = NextSentence().collate(pairs(), VOCABULARY, generator())
    from dataclasses import replace

    with torch.no_grad():
        assert not torch.allclose(model.backbone(batch), model.backbone(replace(batch, segments=1 - batch.segments)))
        first = replace(batch, segments=torch.zeros_like(batch.segments))
        assert torch.allclose(model.backbone(first), model.backbone(replace(batch, segments=None)))


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_every_unit_hides_the_same_share_and_never_a_special(unit):
    rows = random_rows([82] * 50)
    batch = MaskedLM(mask_rate=0.2, masking=unit).collate(rows, VOCABULARY, generator())
    assert len(batch.label_positions) == round(0.2 * 50 * 80)
    assert not set(batch.labels["lm"].tolist()) & VOCABULARY.special_ids
    assert len(set(batch.label_positions.tolist())) == len(batch.label_positions)


def test_whole_words_are_hidden_together():
    rows = random_rows([102] * 20)
    batch = MaskedLM(mask_rate=0.3, masking="word").collate(rows, VOCABULARY, generator())
    original = torch.stack([torch.from_numpy(row.tokens).long() for row in rows])
    starts = torch.from_numpy(VOCABULARY.word_starts)[original]
    hidden = torch.zeros(original.numel(), dtype=torch.bool)
    hidden[batch.label_positions] = True
    hidden = hidden.view_as(original)
    goes_on = ~starts[:, 2:-1]  # with the word of the token before it
    torn = (hidden[:, 2:-1] != hidden[:, 1:-2]) & goes_on
    assert int(torn.sum()) <= 2  # the last word drawn may be cut, at either end


def test_spans_are_longer_than_chance_makes_them():
    rows = random_rows([102] * 40)

    def runs(unit):
        batch = MaskedLM(mask_rate=0.15, masking=unit).collate(rows, VOCABULARY, generator())
        gaps = batch.label_positions[1:] - batch.label_positions[:-1]
        return int((gaps == 1).sum()) / len(gaps)

    assert runs("span") > 2 * runs("token")


def test_the_hybrid_asks_both_ways():
    objective = OBJECTIVES["causal+masked"]()
    rows = random_rows([12] * 4)
    kinds = [next(iter(objective.collate(rows, VOCABULARY, generator(seed)).labels)) for seed in range(40)]
    assert 8 < kinds.count("causal") < 32


def test_a_causal_batch_keeps_a_bidirectional_body_from_seeing_ahead():
    torch.manual_seed(0)
    model = build_model(tiny_config("bidirectional"), VOCABULARY.size, {}).eval()
    batch = OBJECTIVES["causal+masked"](causal_fraction=1.0).collate(random_rows([12]), VOCABULARY, generator())
    changed = batch.tokens.clone()
    changed[0, 8] = 20 if changed[0, 8] != 20 else 21
    from dataclasses import replace

    with torch.no_grad():
        moved = (model.backbone(batch) - model.backbone(replace(batch, tokens=changed)))[0].abs().amax(-1)
    assert float(moved[:8].max()) == 0
    assert float(moved[8]) > 0


def test_a_generator_s_token_that_happens_to_be_right_is_not_replaced():
    torch.manual_seed(0)
    objective, body = OBJECTIVES["replaced-token"](), tiny_config("bidirectional")
    model = build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 0))
    batch = objective.collate(random_rows([12] * 3), VOCABULARY, generator())
    losses = objective.losses(model, batch)
    assert losses["replaced"].count == 30  # every token but the two special tokens of each row
    assert losses["generator"].count == len(batch.label_positions)
    assert losses["replaced"].weight == objective.discriminator_weight
