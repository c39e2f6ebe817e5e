"""Which chunks are refused, and that no published step ever moves faster than it may."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.ros.joints import Joint
from oxygen_ros.ros.motion.limits import Limiter, Limits

PERIOD_S = 1 / 70
TARGETS = st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=60)
RATES = st.floats(0.01, 50.0)


def joints(**limits):
    return [Joint('shoulder', **limits), Joint('gripper', lower=0.0, upper=0.8)]


def chunk(rows=10):
    return np.full((rows, 2), 0.4, np.float32)


def test_a_chunk_within_its_limits_is_used():
    actions = chunk()
    actions[3, 1], actions[4, 1] = 0.8, 0.0  # the limits themselves, in 32 bits
    assert Limits(joints()).problem(actions) == ('', '')


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_c36_one_value_that_is_no_number_refuses_the_chunk_by_row_and_joint(value):
    actions = chunk()
    actions[7, 0] = value
    reason, text = Limits(joints()).problem(actions)
    assert reason == 'chunk_not_finite'
    assert text == f'row 7: shoulder is {value:g}, must be a finite number'


@pytest.mark.parametrize('value', [8.0, -0.1])
def test_c36_one_value_beyond_its_limit_refuses_the_chunk_by_row_joint_and_value(value):
    actions = chunk()
    actions[2, 1] = value
    reason, text = Limits(joints()).problem(actions)
    assert reason == 'chunk_out_of_limits'
    assert text == f'row 2: gripper is {value:g}, must be 0 to 0.8'


def followed(limits, targets, start=None):
    """Positions that are published for targets of one joint."""
    limiter = Limiter(Limits([Joint('j', **limits)]), PERIOD_S)
    if start is not None:
        limiter.start(np.array([start]))
    return np.array([limiter.follow(np.array([target]))[0][0] for target in targets])


def test_without_limits_every_target_is_published_as_it_is():
    targets = [0.1, -3.0, 7.7]
    assert followed({}, targets).tolist() == targets


@settings(max_examples=150, deadline=None)
@given(targets=TARGETS, velocity=RATES, acceleration=RATES)
def test_no_step_violates_velocity_acceleration_or_position(targets, velocity, acceleration):
    targets = [0.0, *targets, *[targets[-1]] * 20]
    limits = {'lower': -2.0, 'upper': 2.0}
    limits |= {'max_velocity': velocity, 'max_acceleration': acceleration}
    positions = followed(limits, targets)
    speed = np.diff(positions, prepend=0.0) / PERIOD_S
    assert np.abs(speed).max() <= velocity * (1 + 1e-6) + 1e-9
    change = np.abs(np.diff(speed, prepend=0.0)) / PERIOD_S
    assert change.max() <= acceleration * (1 + 1e-6) + 1e-6
    assert positions.min() >= -2.0 - 1e-9 and positions.max() <= 2.0 + 1e-9


@settings(max_examples=25, deadline=None)
@given(target=st.floats(-2.0, 2.0), velocity=st.floats(0.5, 20), acceleration=st.floats(1.0, 50))
def test_a_target_that_stands_still_is_reached_and_not_overshot(target, velocity, acceleration):
    limits = {'max_velocity': velocity, 'max_acceleration': acceleration}
    positions = followed(limits, [0.0] + [target] * 700)
    assert positions[-1] == pytest.approx(target, abs=1e-6)
    assert np.abs(positions).max() <= abs(target) + 1e-9


def test_a_slow_ramp_is_followed_without_lag():
    targets = np.arange(100) * 0.5 * PERIOD_S
    positions = followed({'max_velocity': 1.0, 'max_acceleration': 20.0}, targets)
    np.testing.assert_allclose(positions[20:], targets[20:], atol=1e-9)


def test_the_first_step_starts_where_the_robot_is():
    positions = followed({'max_velocity': 0.7}, [1.0, 1.0], start=0.0)
    np.testing.assert_allclose(positions, [0.01, 0.02])
    assert followed({'max_velocity': 0.7}, [1.0], start=math.nan)[0] == 1.0
