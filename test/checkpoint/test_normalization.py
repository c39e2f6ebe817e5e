"""LeRobot's ways to normalise, by a checkpoint's own norm_map, against values worked out by hand.

The numbers are chosen so that float32 holds every step of the arithmetic exactly.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.processing.normalization import normalize_state, robot_actions
from oxygen_ros.types import OxygenError

PRE, POST = 'policy_preprocessor.json', 'policy_postprocessor.json'
STATE_FILE = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
ACTION_FILE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'


def step(processor, name):
    return next(s for s in processor['steps'] if s['registry_name'] == name)['config']


@pytest.fixture
def checkpoint(copy_of, edit):
    """Normalised so: checkpoint(mode, eps, {statistic: (of the state, of the actions)})."""

    def make(mode, eps=1e-8, **stats):
        folder = copy_of('pi05_lerobot')
        norm_map = {'VISUAL': 'IDENTITY', 'STATE': mode, 'ACTION': mode}
        settings = {'eps': eps, 'norm_map': norm_map}
        edit(folder / PRE, lambda c: step(c, 'normalizer_processor').update(settings))
        edit(folder / POST, lambda c: step(c, 'unnormalizer_processor').update(settings))
        state = {f'observation.state.{k}': np.float32(v[0]) for k, v in stats.items()}
        action = {f'action.{k}': np.float32(v[1]) for k, v in stats.items()}
        save_file(state, folder / STATE_FILE)
        save_file(action, folder / ACTION_FILE)
        still = {'state': list(range(8)), 'action': list(range(7))}
        edit(folder / 'oxygen.json', constant_dimensions=still)
        return folder

    return make


def both_ways(folder, state, actions):
    """Normalised state, and the robot actions of [1, 32] of which the first are given."""
    norm = inspect_checkpoint(folder).normalization
    padded = np.zeros((1, 32), np.float32)
    padded[0, : len(actions)] = actions
    found = normalize_state(np.float32(state), norm), robot_actions(padded, norm)[0]
    assert [values.dtype for values in found] == [np.float32, np.float32]
    return found[0].tolist(), found[1].tolist()


def test_mean_and_standard_deviation(checkpoint):
    """(x - mean) / (std + eps) in, y * std + mean out: no eps on the way back."""
    folder = checkpoint(
        'MEAN_STD',
        eps=0.25,
        mean=([0.5, -1.0, 0, 0, 0, 0, 0, 2.0], [0.5, -1.0, 0, 0, 0, 0, 3.0]),
        std=([0.25, 1.75, 1, 1, 1, 1, 1, 0.0], [0.25, 2.0, 1, 1, 1, 1, 0.0]),
    )
    state, actions = both_ways(folder, [1.0, 3.0, 0, 5.0, 0, 0, -2.5, 2.5], [2.0, -0.5, 0, 4.0])
    assert state == [1.0, 2.0, 0, 4.0, 0, 0, -2.0, 2.0]
    assert actions == [1.0, -2.0, 0, 4.0, 0, 0, 3.0]


def test_smallest_and_largest(checkpoint):
    """2 (x - min) / (max - min) - 1 in; a width of zero becomes eps, both ways."""
    folder = checkpoint(
        'MIN_MAX',
        eps=0.5,
        min=([-1.0, 0, 0, 0, 0, 0, 0, 2.0], [-1.0, 0, 0, 0, 0, 0, 2.0]),
        max=([3.0, 1, 1, 1, 1, 1, 1, 2.0], [3.0, 1, 1, 1, 1, 1, 2.0]),
    )
    state, actions = both_ways(
        folder, [0.0, 0.5, 1, 0, 2, 0.25, 0.75, 2.25], [-0.5, 0, 1, -1, 3, -0.5, 1.0]
    )
    assert state == [-0.5, 0, 1, -1, 3, -0.5, 0.5, 0.0]
    assert actions == [0.0, 0.5, 1, 0, 2, 0.25, 2.5]


def test_inner_quantiles(checkpoint):
    folder = checkpoint('QUANTILE10', q10=([0.0] * 8, [1.0] * 7), q90=([4.0] * 8, [1.5] * 7))
    state, actions = both_ways(folder, [5.0, 2, 0, 4, 1, 3, -1, 2], [2.0, 0, -1, 1, 0, 0, 0])
    assert state == [1.5, 0, -1, 1, -0.5, 0.5, -1.5, 0]
    assert actions == [1.75, 1.25, 1, 1.5, 1.25, 1.25, 1.25]


def test_not_normalised_needs_no_statistics(checkpoint):
    folder = checkpoint('IDENTITY')
    state = [0.1, -0.7, 3.25, 0, -1, 1, 2, 0.3]
    found, actions = both_ways(folder, state, [0.1, -5.0, 0, 0, 0, 0, 0.7])
    assert found == np.float32(state).tolist()
    assert actions == np.float32([0.1, -5.0, 0, 0, 0, 0, 0.7]).tolist()


def test_state_and_actions_each_follow_their_own_step(checkpoint, edit):
    folder = checkpoint(
        'QUANTILES',
        eps=0.5,
        q01=([1.0] * 8, [1.0] * 7),
        q99=([1.0] * 7 + [2.0], [1.0] * 6 + [2.0]),
    )
    edit(
        folder / POST,
        lambda c: step(c, 'unnormalizer_processor').update(eps=2.0),
    )
    state, actions = both_ways(folder, [1.5] * 8, [1.0] * 7)
    assert state == [1.0] * 7 + [0.0]
    assert actions == [3.0] * 6 + [2.0]


def test_without_a_norm_map_the_configuration_says(checkpoint, edit):
    folder = checkpoint('MEAN_STD', mean=([1.0] * 8, [1.0] * 7), std=([2.0] * 8, [2.0] * 7))
    for file, name in ((PRE, 'normalizer_processor'), (POST, 'unnormalizer_processor')):
        edit(folder / file, lambda c, name=name: step(c, name).pop('norm_map'))
    modes = {'VISUAL': 'IDENTITY', 'STATE': 'MEAN_STD', 'ACTION': 'MEAN_STD'}
    edit(folder / 'config.json', normalization_mapping=modes)
    norm = inspect_checkpoint(folder).normalization
    assert (norm.state.mode, norm.action.mode) == ('mean_std', 'mean_std')


def test_a_kind_that_the_norm_map_leaves_out_is_not_normalised(checkpoint, edit):
    folder = checkpoint('QUANTILES', q01=([0.0] * 8, [0.0] * 7), q99=([2.0] * 8, [2.0] * 7))
    edit(folder / PRE, lambda c: step(c, 'normalizer_processor')['norm_map'].pop('STATE'))
    state, actions = both_ways(folder, [0.25] * 8, [0.0] * 7)
    assert (state, actions) == ([0.25] * 8, [1.0] * 7)


def test_an_unknown_way_is_refused_with_the_known_ones(checkpoint):
    folder = checkpoint('LOG', q01=([0.0] * 8, [0.0] * 7))
    with pytest.raises(OxygenError, match='STATE by LOG, supported: .*MEAN_STD, IDENTITY'):
        inspect_checkpoint(folder)


def test_statistics_of_another_way_are_no_substitute(checkpoint, edit):
    """LeRobot would pass the values on as they are."""
    folder = checkpoint('MEAN_STD', q01=([0.0] * 8, [0.0] * 7), q99=([1.0] * 8, [1.0] * 7))
    with pytest.raises(OxygenError, match='observation.state.mean, observation.state.std are mis'):
        inspect_checkpoint(folder)
    stats = {'state': {'q01': [0.0] * 8, 'q99': [1.0] * 8}, 'actions': {}}
    (folder / 'stats.json').write_text(json.dumps(stats))
    edit(folder / 'oxygen.json', statistics='stats.json')
    with pytest.raises(OxygenError, match='state has no usable mean and std'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('std', 'said'),
    [([-1.0] + [1.0] * 7, r'std below 0 at \[0\]'), ([0.0] * 8, 'std = 0 in every dimension')],
)
def test_deviations_that_cannot_be(checkpoint, std, said):
    folder = checkpoint('MEAN_STD', mean=([0.0] * 8, [0.0] * 7), std=(std, [1.0] * 7))
    with pytest.raises(OxygenError, match=said):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('key', 'listed'),
    [('features', {}), ('normalize_observation_keys', ['observation.images.base_0_rgb'])],
)
def test_a_state_that_the_step_does_not_list_is_refused(copy_of, edit, key, listed):
    """LeRobot would not normalise it, whatever its statistics say."""
    folder = copy_of('pi05_lerobot')
    assert 'observation.state.q01' in load_file(folder / STATE_FILE)
    edit(folder / PRE, lambda c: step(c, 'normalizer_processor').update({key: listed}))
    with pytest.raises(OxygenError, match=f'does not list it under {key}'):
        inspect_checkpoint(folder)
