"""Budgets: fixed, unlimited, and what auto learns."""

import pytest

from oxygen_ros.engine.budget import APPEND, DECODE, PREFILL, AutoBudget, Work, make_budget
from oxygen_ros.types import OxygenError


def rows(count):
    return Work(DECODE, count)


def test_fixed_budget_is_spent_and_refilled():
    budget = make_budget('2')
    budget.spend(rows(3), 10)
    assert budget.allows(0, rows(3)) and budget.left() == 1
    budget.spend(rows(3), 10)
    assert not budget.allows(0, rows(3)) and budget.left() == 0
    budget.refill(0)
    assert budget.allows(0, rows(3))


def test_unlimited_budget_never_ends():
    budget = make_budget('unlimited')
    for _ in range(1000):
        budget.spend(rows(1), 1)
    assert budget.allows(0, rows(1)) and budget.left() == -1


@pytest.mark.parametrize('value', ['-1', '2.5', 'many', '', 'nan'])
def test_unknown_budget_is_refused_with_what_is_allowed(value):
    with pytest.raises(OxygenError, match="'auto' or 'unlimited'"):
        make_budget(value)


def test_auto_stops_before_the_next_frame_is_due():
    budget = AutoBudget(margin_ns=0)
    for arrival in (0, 100, 200):
        budget.frame_arrived(arrival)
    budget.spend(rows(4), 30)
    assert budget.allows(200, rows(4))  # ends at 230, due at 300
    assert budget.allows(270, rows(4))
    assert not budget.allows(271, rows(4))  # would end at 301
    assert budget.allows(271, rows(1)) is False, 'an unknown row count borrows the nearest time'
    assert budget.left() == 2  # 100 ns a frame, 30 ns a step, one used


def test_auto_goes_on_when_frames_stop_coming():
    budget = AutoBudget(margin_ns=0)
    budget.frame_arrived(0)
    budget.frame_arrived(100)
    budget.spend(rows(1), 30)
    assert not budget.allows(1000, rows(1))
    budget.refill(1000)
    assert budget.allows(1000, rows(1))


def test_auto_forgets_the_period_after_a_pause():
    budget = AutoBudget(margin_ns=0)
    for arrival in (0, 100, 100_000):
        budget.frame_arrived(arrival)
    budget.frame_arrived(100_100)
    assert budget.allows(100_100 + 100, rows(1))
    assert not budget.allows(100_100 + 101, rows(1)), 'the pause is no period'


def at_rate(period=100, frames=3):
    """A budget that knows the rate; its last frame came at (frames - 1) * period."""
    budget = AutoBudget(margin_ns=0)
    for number in range(frames):
        budget.frame_arrived(number * period)
        budget.refill(number * period)
    return budget


@pytest.mark.parametrize('kind', [APPEND, PREFILL])
def test_auto_learns_admissions_apart_from_steps(kind):
    budget = at_rate()
    budget.spend(rows(4), 5)
    assert budget.allows(290, Work(kind, 3)), 'nothing is known of it yet'
    budget.spend(Work(kind, 3), 60)
    assert budget.used == 1 and budget.left() == 19, 'steps alone are counted'
    assert budget.allows(240, Work(kind, 3))  # ends at 300, when the next frame is due
    assert not budget.allows(241, Work(kind, 3))
    assert budget.allows(241, rows(4)), 'a step still fits'


def test_fixed_budgets_do_not_count_admissions():
    budget = make_budget(1)
    budget.spend(Work(PREFILL, 0), 10**9)
    assert budget.used == 0 and budget.allows(0, rows(1))
    budget.spend(rows(1), 1)
    assert not budget.allows(0, rows(1)) and budget.allows(0, Work(PREFILL, 0))


@pytest.mark.parametrize('kind', [DECODE, APPEND, PREFILL])
def test_auto_holds_nothing_back_for_ever(kind):
    """Work that never fits runs once in ten frames, and only if it was asked for."""
    budget, work, now, ran = at_rate(), Work(kind, 1), 200, []
    budget.spend(work, 500)
    for frame in range(35):
        now += 100
        budget.frame_arrived(now)
        budget.refill(now)
        if budget.allows(now, work):
            budget.spend(work, 500)
            ran.append(frame)
        budget.spend(Work('other', 1), 1)  # what does fit changes nothing
    assert ran == [10, 21, 32]
    for _ in range(20):  # nobody asks
        now += 100
        budget.frame_arrived(now)
        budget.refill(now)
    assert not budget.allows(now, work)
