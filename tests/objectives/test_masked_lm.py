import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.objectives.masked_lm import MaskedLM, lowest
from tests.helpers.tiny_models import VOCABULARY, generator, random_rows


def test_masking_follows_fifteen_percent_and_eighty_ten_ten():
    objective = MaskedLM()
    rows = random_rows([102] * 200)
    batch = objective.collate(rows, VOCABULARY, generator())
    original = torch.stack([torch.from_numpy(row.tokens).long() for row in rows]).flatten()
    positions, shown = batch.label_positions, batch.tokens.flatten()[batch.label_positions]
    count, may = len(positions), 200 * 100
    assert count == round(0.15 * may)
    hidden = (shown == VOCABULARY.mask_id).sum().item()
    same = (shown == original[positions]).sum().item()
    changed = count - hidden - same
    for found, share in ((hidden, 0.8), (changed, 0.1 * 34 / 35), (same, 0.1 + 0.1 / 35)):
        assert abs(found - share * count) < 4 * (count * share * (1 - share)) ** 0.5
    untouched = torch.ones(len(original), dtype=torch.bool)
    untouched[positions] = False
    assert torch.equal(batch.tokens.flatten()[untouched], original[untouched])


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 20), min_size=1, max_size=6), rate=st.floats(0.01, 0.99), seed=st.integers(0, 99)
)
def test_no_special_or_padding_token_is_ever_predicted(lengths, rate, seed):
    batch = MaskedLM(mask_rate=rate).collate(random_rows(lengths), VOCABULARY, generator(seed))
    assert not set(batch.labels["lm"].tolist()) & VOCABULARY.special_ids
    assert batch.attention_mask.flatten()[batch.label_positions].all()
    assert len(set(batch.label_positions.tolist())) == len(batch.label_positions) >= 1
    specials_shown = set(batch.tokens.flatten()[batch.label_positions].tolist()) & VOCABULARY.special_ids
    assert specials_shown <= {VOCABULARY.mask_id}


def test_masks_change_from_step_to_step_and_repeat_with_the_same_chance():
    rows = random_rows([30] * 4)
    first, again, other = (MaskedLM().collate(rows, VOCABULARY, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.label_positions, again.label_positions)
    assert not torch.equal(first.label_positions, other.label_positions)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_the_lowest_lots_are_those_that_sorting_finds(values, data):
    count = data.draw(st.integers(0, len(values)))
    lots = torch.tensor(values, dtype=torch.float)
    assert torch.equal(lowest(lots, count), lots.argsort(stable=True)[:count].sort().values)
