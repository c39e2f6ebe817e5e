"""Normalisation statistics: read from either maker's files, refused when they cannot be right."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.types import OxygenError

STATE_FILE = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
ACTION_FILE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'
NORM_STATS = 'assets/tiny_robot/norm_stats.json'


def change_state_file(folder, function, file=STATE_FILE):
    tensors = load_file(folder / file)
    function(tensors)
    save_file(tensors, folder / file)


def test_each_maker_computes_in_its_own_precision(copy_of):
    lerobot = inspect_checkpoint(copy_of('pi05_lerobot')).normalization
    openpi = inspect_checkpoint(copy_of('pi05_openpi_format')).normalization
    for first, second in ((lerobot.state, openpi.state), (lerobot.action, openpi.action)):
        for name in ('origin', 'span_in', 'span_out'):
            assert getattr(first, name).dtype == np.float32
            assert getattr(second, name).dtype == np.float64
        np.testing.assert_array_equal(first.origin, second.origin.astype(np.float32))


def test_processor_without_a_state_file(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'policy_preprocessor.json', lambda c: c['steps'][3].pop('state_file'))
    with pytest.raises(OxygenError, match='policy_preprocessor.json: names no normalisation'):
        inspect_checkpoint(folder)


def test_lerobot_folder_without_processors(copy_of):
    folder = copy_of('pi05_lerobot')
    (folder / 'policy_postprocessor.json').unlink()
    with pytest.raises(OxygenError, match='policy_postprocessor.json: names no normalisation'):
        inspect_checkpoint(folder)


def test_statistics_under_another_name(copy_of):
    folder = copy_of('pi05_lerobot')
    change_state_file(folder, lambda t: t.update({'state.q01': t.pop('observation.state.q01')}))
    with pytest.raises(OxygenError, match=f'{STATE_FILE}.*observation.state.q01 are missing'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('width', [6, 8, 32])
def test_statistics_of_the_wrong_width(copy_of, width):
    folder = copy_of('pi05_lerobot')
    values = {'action.q01': np.zeros(width, np.float32), 'action.q99': np.ones(width, np.float32)}
    change_state_file(folder, lambda t: t.update(values), ACTION_FILE)
    with pytest.raises(
        OxygenError, match=f'{ACTION_FILE}: action has statistics of width {width} .*7 exp'
    ):
        inspect_checkpoint(folder)


def test_quantiles_that_hold_no_range(copy_of):
    folder = copy_of('pi05_lerobot')
    change_state_file(
        folder, lambda t: t.update({'observation.state.q99': t['observation.state.q01']})
    )
    with pytest.raises(OxygenError, match=f'{STATE_FILE}: observation.state has q01 = q99'):
        inspect_checkpoint(folder)


def test_a_joint_that_never_moved_is_allowed_where_it_is_meant(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    stored = load_file(folder / STATE_FILE)
    assert stored['observation.state.q01'][7] == stored['observation.state.q99'][7]
    assert inspect_checkpoint(folder).normalization.state.span_in[7] == np.float32(1e-8)
    edit(folder / 'oxygen.json', constant_dimensions={'action': [7]})
    with pytest.raises(OxygenError, match=r'state has q01 = q99 at \[7\].*\{"state": \[7\]\}'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('span', [0.0, 2e-6])
def test_an_action_without_a_range_is_refused_in_either_format(copy_of, edit, span):
    folder, other = copy_of('pi05_lerobot'), copy_of('pi05_openpi_format')

    def narrow(values):
        values['action.q99'][[2, 5]] = values['action.q01'][[2, 5]] + np.float32(span)

    def narrow_json(values):
        actions = values['norm_stats']['actions']
        for i in (2, 5):
            actions['q99'][i] = actions['q01'][i] + span

    change_state_file(folder, narrow, ACTION_FILE)
    edit(other / NORM_STATS, narrow_json)
    for each in (folder, other):
        with pytest.raises(OxygenError, match=r'actions? has q01 = q99 at \[2, 5\]'):
            inspect_checkpoint(each)
        edit(each / 'oxygen.json', constant_dimensions={'state': [7], 'action': [5, 2]})
        assert 'actions [2, 5]' in inspect_checkpoint(each).normalization.never_moved()


def test_padding_without_a_range_is_no_joint_of_the_robot(copy_of, edit):
    folder = copy_of('pi05_openpi_format')
    stats = {'q01': [-1.0] * 6 + [0.0] * 26, 'q99': [1.0] * 6 + [0.0] * 26}
    edit(folder / NORM_STATS, norm_stats={'state': stats, 'actions': stats})
    with pytest.raises(OxygenError, match='set state_dim if these are padding'):
        inspect_checkpoint(folder)
    edit(folder / 'oxygen.json', state_dim=6, action_dim=6)
    assert inspect_checkpoint(folder).action_dim == 6


@pytest.mark.parametrize('wrong', [[7], {'state': 7}, {'state': ['7']}, {'joint': [7]}])
def test_constant_dimensions_of_the_wrong_kind(copy_of, edit, wrong):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'oxygen.json', constant_dimensions=wrong)
    with pytest.raises(OxygenError, match='constant_dimensions'):
        inspect_checkpoint(folder)


def test_quantiles_the_wrong_way_round(copy_of):
    folder = copy_of('pi05_lerobot')
    low, high = 'observation.state.q01', 'observation.state.q99'
    change_state_file(folder, lambda t: t.update({low: t[high], high: t[low]}))
    with pytest.raises(OxygenError, match='state has q01 above q99 at'):
        inspect_checkpoint(folder)


def test_quantiles_that_are_no_numbers(copy_of):
    folder = copy_of('pi05_lerobot')
    change_state_file(folder, lambda t: t['action.q99'].__setitem__(2, np.nan), ACTION_FILE)
    with pytest.raises(OxygenError, match=f'{ACTION_FILE}: action has .*not finite'):
        inspect_checkpoint(folder)


def test_openpi_needs_exactly_one_norm_stats(copy_of):
    folder = copy_of('pi05_openpi_format')
    stats = (folder / NORM_STATS).read_text()
    (folder / NORM_STATS).unlink()
    with pytest.raises(OxygenError, match='assets: no norm_stats.json'):
        inspect_checkpoint(folder)
    for robot in ('one', 'vendor/two'):
        (folder / 'assets' / robot).mkdir(parents=True)
        (folder / 'assets' / robot / 'norm_stats.json').write_text(stats)
    with pytest.raises(OxygenError, match='assets: 2 norm_stats.json, one expected'):
        inspect_checkpoint(folder)
    (folder / 'oxygen.json').write_text(
        json.dumps(
            {
                'statistics': 'assets/vendor/two/norm_stats.json',
                'architecture': {'vision_heads': 4},
                'constant_dimensions': {'state': [7]},
            }
        )
    )
    assert inspect_checkpoint(folder).state_dim == 8


@pytest.mark.parametrize('entry', [{}, {'q01': [0.0]}, {'q01': ['a'], 'q99': [1.0]}, 5])
def test_norm_stats_without_quantiles(copy_of, edit, entry):
    folder = copy_of('pi05_openpi_format')
    edit(folder / NORM_STATS, lambda c: c['norm_stats'].update(actions=entry))
    with pytest.raises(OxygenError, match='norm_stats.json: actions has no usable q01 and q99'):
        inspect_checkpoint(folder)


def test_norm_stats_without_actions_says_what_there_is(copy_of, edit):
    folder = copy_of('pi05_openpi_format')
    edit(folder / NORM_STATS, lambda c: c['norm_stats'].pop('actions'))
    with pytest.raises(OxygenError, match='has no actions or action, only state'):
        inspect_checkpoint(folder)


def test_an_override_file_replaces_lost_statistics(copy_of, edit):
    """A data set's own stats.json will do."""
    folder = copy_of('pi05_lerobot')
    whole = inspect_checkpoint(folder).normalization
    stored = load_file(folder / STATE_FILE) | load_file(folder / ACTION_FILE)
    (folder / STATE_FILE).unlink()
    (folder / ACTION_FILE).unlink()
    stats = {
        feature: {name: stored[f'{feature}.{name}'].tolist() for name in ('q01', 'q99')}
        for feature in ('observation.state', 'action')
    }
    (folder / 'stats.json').write_text(json.dumps(stats))
    edit(folder / 'oxygen.json', statistics='stats.json')
    norm = inspect_checkpoint(folder).normalization
    for found, wanted in ((norm.state, whole.state), (norm.action, whole.action)):
        assert found.origin.dtype == found.span_in.dtype == np.float32
        np.testing.assert_array_equal(found.origin, wanted.origin)
        np.testing.assert_array_equal(found.span_in, wanted.span_in)


def padded_statistics(width):
    return {'q01': [-1.0] * width, 'q99': [1.0] * width}


def test_wider_statistics_are_cut_only_where_the_robots_width_is_stated(copy_of, edit):
    """openpi allows padded statistics; the prompt must hold the robot's own joints only."""
    folder = copy_of('pi05_openpi_format')
    stats = {'state': padded_statistics(32), 'actions': padded_statistics(32)}
    edit(folder / NORM_STATS, norm_stats=stats)
    info = inspect_checkpoint(folder)
    assert (info.state_dim, info.action_dim) == (32, 32)
    edit(folder / 'oxygen.json', state_dim=14, action_dim=14)
    info = inspect_checkpoint(folder)
    assert (info.state_dim, info.action_dim) == (14, 14)
    assert info.normalization.action.origin.shape == (14,)


def test_more_actions_than_the_network_has(copy_of, edit):
    folder = copy_of('pi05_openpi_format')
    stats = {'state': padded_statistics(40), 'actions': padded_statistics(40)}
    edit(folder / NORM_STATS, norm_stats=stats)
    with pytest.raises(OxygenError, match='statistics have 40 actions, the network only 32'):
        inspect_checkpoint(folder)
