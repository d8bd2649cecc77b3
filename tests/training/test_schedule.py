import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config import ScheduleConfig
from headstart.training.schedule import SCHEDULES, rate_at


@pytest.mark.parametrize("kind", SCHEDULES)
@given(progress=st.floats(-0.5, 1.5), warmup=st.floats(0, 1), decay=st.floats(0, 1), final=st.floats(0, 1))
def test_a_rate_is_always_a_share_of_the_top(kind, progress, warmup, decay, final):
    config = ScheduleConfig(kind=kind, warmup=warmup, decay=decay, final=final)
    assert 0 <= rate_at(progress, config) <= 1


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_rises_to_the_top(kind):
    config = ScheduleConfig(kind=kind, warmup=0.1)
    rising = [rate_at(progress / 100, config) for progress in range(11)]
    assert rising == sorted(rising)
    assert rising[-1] == pytest.approx(1)
    assert rising[0] > 0


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULES if kind != "constant"])
def test_every_falling_schedule_ends_where_it_should(kind):
    assert rate_at(1.0, ScheduleConfig(kind=kind, warmup=0.1, final=0.25)) == pytest.approx(0.25)


def test_the_stable_part_stays_at_the_top_until_the_decay():
    config = ScheduleConfig(kind="warmup-stable-decay", warmup=0.1, decay=0.2)
    assert rate_at(0.79, config) == 1
    assert rate_at(0.9, config) == pytest.approx(0.5)
