"""Budgets: fixed, unlimited, and what auto learns."""

import pytest

from oxygen_ros.engine.budget import AutoBudget, make_budget
from oxygen_ros.types import OxygenError


def test_fixed_budget_is_spent_and_refilled():
    budget = make_budget('2')
    budget.spend(3, 10)
    assert budget.allows(0, 3) and budget.left() == 1
    budget.spend(3, 10)
    assert not budget.allows(0, 3) and budget.left() == 0
    budget.refill(0)
    assert budget.allows(0, 3)


def test_unlimited_budget_never_ends():
    budget = make_budget('unlimited')
    for _ in range(1000):
        budget.spend(1, 1)
    assert budget.allows(0, 1) and budget.left() == -1


@pytest.mark.parametrize('value', ['-1', '2.5', 'many', '', 'nan'])
def test_unknown_budget_is_refused_with_what_is_allowed(value):
    with pytest.raises(OxygenError, match="'auto' or 'unlimited'"):
        make_budget(value)


def test_auto_stops_before_the_next_frame_is_due():
    budget = AutoBudget(margin_ns=0)
    for arrival in (0, 100, 200):
        budget.frame_arrived(arrival)
    budget.spend(4, 30)
    assert budget.allows(200, 4)  # ends at 230, due at 300
    assert budget.allows(270, 4)
    assert not budget.allows(271, 4)  # would end at 301
    assert budget.allows(271, 1) is False, 'an unknown row count borrows the nearest time'
    assert budget.left() == 2  # 100 ns a frame, 30 ns a step, one used


def test_auto_goes_on_when_frames_stop_coming():
    budget = AutoBudget(margin_ns=0)
    budget.frame_arrived(0)
    budget.frame_arrived(100)
    budget.spend(1, 30)
    assert not budget.allows(1000, 1)
    budget.refill(1000)
    assert budget.allows(1000, 1)


def test_auto_forgets_the_period_after_a_pause():
    budget = AutoBudget(margin_ns=0)
    for arrival in (0, 100, 100_000):
        budget.frame_arrived(arrival)
    budget.frame_arrived(100_100)
    assert budget.allows(100_100 + 100, 1)
    assert not budget.allows(100_100 + 101, 1), 'the pause is no period'
