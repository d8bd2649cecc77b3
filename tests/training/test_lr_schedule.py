import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headstart.config import LrScheduleConfig
from headstart.errors import ConfigError
from headstart.training.optimizers import SCHEDULES, lr_factor


@pytest.mark.parametrize("kind", SCHEDULES)
@given(
    progress=st.floats(-0.5, 1.5), warmup=st.floats(0, 1), decay=st.floats(0, 1), final=st.floats(0, 1),
    warmup_steps=st.none() | st.integers(1, 50), step=st.integers(0, 100),
)  # fmt: skip
def test_a_rate_is_always_a_share_of_the_top(kind, progress, warmup, decay, final, warmup_steps, step):
    assume(warmup or kind != "inverse-square-root")
    config = LrScheduleConfig(
        name=kind, warmup_ratio=warmup, decay_ratio=decay, min_lr_ratio=final, warmup_steps=warmup_steps
    )
    assert 0 <= lr_factor(progress, config, step) <= 1


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_rises_to_the_top(kind):
    config = LrScheduleConfig(name=kind, warmup_ratio=0.1)
    rising = [lr_factor(progress / 100, config) for progress in range(11)]
    assert rising == sorted(rising)
    assert rising[-1] == pytest.approx(1)
    assert rising[0] > 0


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_warmup_in_steps_is_the_share_that_those_steps_are(kind):
    """But that a rise by steps is already under way at the first of them."""
    by_share = LrScheduleConfig(name=kind, warmup_ratio=0.1)
    by_steps = LrScheduleConfig(name=kind, warmup_steps=10)
    for step in range(100):
        shift = 1 if step < 10 or kind == "inverse-square-root" else 0
        assert lr_factor(step / 100, by_steps, step) == pytest.approx(lr_factor((step + shift) / 100, by_share))


def test_inverse_square_root_is_the_formula_of_the_paper():
    width, warmup = 512, 4000
    config = LrScheduleConfig(name="inverse-square-root", warmup_steps=warmup)
    top = (width * warmup) ** -0.5
    for step in (1, 2, 100, 3999, 4000, 4001, 10_000, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert top * lr_factor((step - 1) / 100_000, config, step - 1) == pytest.approx(paper, rel=1e-9, abs=1e-3 * top)


def test_inverse_square_root_without_a_rise_is_refused():
    with pytest.raises(ConfigError, match="warmup"):
        LrScheduleConfig(name="inverse-square-root", warmup_ratio=0)


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULES if kind not in ("constant", "inverse-square-root")])
def test_every_falling_schedule_ends_where_it_should(kind):
    assert lr_factor(1.0, LrScheduleConfig(name=kind, warmup_ratio=0.1, min_lr_ratio=0.25)) == pytest.approx(0.25)


def test_the_stable_part_stays_at_the_top_until_the_decay():
    config = LrScheduleConfig(name="warmup-stable-decay", warmup_ratio=0.1, decay_ratio=0.2)
    assert lr_factor(0.79, config) == 1
    assert lr_factor(0.9, config) == pytest.approx(0.5)
