"""StarVLA's statistics: its own formulas, and what must not be supposed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.checkpoint.random_starvla import write_random_checkpoint
from oxygen_ros.policy import Policy, PolicyOptions
from oxygen_ros.processing.normalization import network_actions, normalize_state, robot_actions
from oxygen_ros.types import OxygenError, Verdict

GOLDEN = Path(__file__).parents[1] / 'golden'
TAGS = 'dataset_statistics.json'
RANDOM = np.random.default_rng(0)
ACTIONS = RANDOM.uniform(-1.5, 1.5, (5, 7)).astype(np.float32)
STATE = RANDOM.uniform(-1, 1, 8).astype(np.float32)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Head -> its random run, written once."""
    folder = tmp_path_factory.mktemp('runs')
    return {head: write_random_checkpoint(folder / head, head=head) for head in ('QwenPI', 'PI0')}


@pytest.fixture
def run(runs, tmp_path):
    """A copy of a run with other statistics, options and values of datasets.vla_data."""

    def make(head, change=None, tag='random_robot', data=None, **own):
        if head == 'PI05':
            folder = Path(shutil.copytree(GOLDEN / 'starvla_pi05' / 'run', tmp_path / 'run'))
            own = {'tokenizer': str(GOLDEN / 'pi05_lerobot/checkpoint/tokenizer'), **own}
            (folder / 'oxygen.json').write_text('{"architecture": {"vision_heads": 4}}')
        else:
            folder = Path(shutil.copytree(runs[head], tmp_path / 'run'))
        path = folder / TAGS
        (robot,) = json.loads(path.read_text()).values()
        for what in ('action', 'state'):
            middle = np.add(robot[what]['q01'], robot[what]['q99']) / 2
            robot[what] |= {'mean': middle.tolist(), 'std': (np.abs(middle) + 0.25).tolist()}
        if change is not None:
            change(robot)
        path.write_text(json.dumps({tag: robot}))
        options = json.loads((folder / 'oxygen.json').read_text())
        options = {key: value for key, value in options.items() if key != 'gripper'}
        (folder / 'oxygen.json').write_text(json.dumps({**options, **own}))
        config = yaml.safe_load((folder / 'config.yaml').read_text())
        config.setdefault('datasets', {}).setdefault('vla_data', {}).update(data or {})
        (folder / 'config.yaml').write_text(yaml.safe_dump(config))
        kept = ((what, robot[what]) for what in ('action', 'state') if what in robot)
        return folder, {what: {k: np.asarray(v) for k, v in e.items()} for what, e in kept}

    return make


def still(what, places, value=0.8):
    """A change that leaves dimensions of state or actions without any range."""

    def change(robot):
        for place in places:
            for low, high in (('q01', 'q99'), ('min', 'max')):
                robot[what][low][place] = robot[what][high][place] = value
            robot[what]['std'][place] = 0.0

    return change


def their_tool(actions, stats, gripper):
    """unnormalize_actions of model/tools.py, by its words."""
    own = np.clip(actions, -1, 1)
    own[:, gripper] = np.where(own[:, gripper] < 0.5, 0, 1)
    scaled = 0.5 * (own + 1) * (stats['q99'] - stats['q01']) + stats['q01']
    return np.where(stats['mask'], scaled, own)


@pytest.mark.parametrize('head', ['QwenPI', 'PI0', 'PI05'])
def test_an_action_that_never_moved_goes_out_as_it_was(run, head):
    own = {'state_normalization': 'identity'} if head == 'PI05' else {}
    folder, stats = run(head, still('action', [1, 2]), **own)
    stats['action']['mask'][2] = False
    path = folder / TAGS
    ((tag, robot),) = json.loads(path.read_text()).items()
    robot['action']['mask'][2] = False
    path.write_text(json.dumps({tag: robot}))
    norm = inspect_checkpoint(folder).normalization
    made = robot_actions(ACTIONS, norm)
    np.testing.assert_array_equal(made, their_tool(ACTIONS, stats['action'], 6).astype(np.float32))
    assert (made[:, 1] == np.float32(0.8)).all()
    back = network_actions(made, norm)
    assert np.isfinite(back).all() and (back[:, 1] == np.float32(0.8)).all()


def openpi(mode, values, stats, back=False):
    """The four formulas of pi_libero_common.py, in float32."""
    q01, q99, mean, std = (np.float32(stats[key]) for key in ('q01', 'q99', 'mean', 'std'))
    if mode == 'openpi_quantiles':
        width = q99 - q01 + np.float32(1e-6)
        return (values + 1) / 2 * width + q01 if back else (values - q01) / width * 2 - 1
    return (
        values * (std + np.float32(1e-6)) + mean
        if back
        else (values - mean) / (std + np.float32(1e-6))
    )


LIBERO = [
    ('PI0', 'openpi_pi0_libero_franka', None, 'openpi_mean_std'),
    ('PI0', 'franka', {'data_mix': 'openpi_libero_all'}, 'openpi_mean_std'),
    ('PI05', 'openpi_pi05_libero_franka', None, 'openpi_quantiles'),
]


@pytest.mark.parametrize(('head', 'tag', 'data', 'mode'), LIBERO)
def test_the_libero_path_is_recognised_and_its_rule_openpis(run, head, tag, data, mode):
    # the golden PI05's last value never moved
    own = {'constant_dimensions': {'state': [7]}} if head == 'PI05' else {}
    folder, stats = run(head, tag=tag, data=data, **own)
    info = inspect_checkpoint(folder)
    norm = info.normalization
    np.testing.assert_array_equal(
        robot_actions(ACTIONS, norm), openpi(mode, ACTIONS, stats['action'], back=True)
    )
    np.testing.assert_array_equal(
        normalize_state(STATE, norm), openpi(mode, STATE, stats['state'])
    )
    assert (norm.gripper, norm.eps_rule) == (-1, 'add_to_width')
    assert info.relative_actions == ((*[True] * 6, False) if head == 'PI0' else ())


def test_openpis_statistics_may_be_padded(run):
    def pad(robot):
        for what in ('state', 'action'):
            for key, value in robot[what].items():
                robot[what][key] = value + [value[-1]] * (32 - len(value))

    folder, _ = run('PI0', pad, tag='openpi_pi0_libero_franka')
    info = inspect_checkpoint(folder)
    assert (info.state_dim, info.action_dim) == (8, 7)


@pytest.mark.parametrize('mode', ['openpi_quantiles', 'openpi_mean_std', 'mean_std'])
def test_any_run_may_state_the_rule(run, mode):
    folder, stats = run('QwenPI', action_normalization=mode)
    norm = inspect_checkpoint(folder).normalization
    if mode == 'mean_std':
        wanted = (ACTIONS * stats['action']['std'] + stats['action']['mean']).astype(np.float32)
    else:
        wanted = openpi(mode, ACTIONS, stats['action'], back=True)
    np.testing.assert_array_equal(robot_actions(ACTIONS, norm), wanted)
    np.testing.assert_allclose(network_actions(wanted, norm), ACTIONS, atol=1e-5)
    folder.rename(folder.with_name('before'))
    folder, _ = run('QwenPI', action_normalization=mode, gripper=6)
    with pytest.raises(OxygenError, match=f'gripper is 6, but actions are normalised by {mode}'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('head', ['QwenPI', 'PI0', 'PI05'])
def test_a_state_that_is_told_needs_statistics(run, head):
    folder, _ = run(head, lambda robot: robot.pop('state'))
    with pytest.raises(OxygenError, match='no statistics of the state, which the network is told'):
        inspect_checkpoint(folder)
    _, findings = Policy.preflight(folder, PolicyOptions())
    assert Verdict.MISFIT in {finding.verdict for finding in findings}


def test_a_state_as_it_is_has_the_width_that_is_stated(run, edit):
    folder, _ = run('QwenPI', lambda robot: robot.pop('state'), state_normalization='identity')
    assert inspect_checkpoint(folder).state_dim == 8  # of config.yaml
    folder.rename(folder.with_name('before'))
    folder, _ = run('PI05', lambda robot: robot.pop('state'), state_normalization='identity')
    with pytest.raises(OxygenError, match='nothing else tells how wide it is: set state_dim'):
        inspect_checkpoint(folder)
    edit(folder / 'oxygen.json', state_dim=5)
    assert inspect_checkpoint(folder).state_dim == 5


def test_a_network_that_is_not_told_the_state_needs_none(run):
    folder, _ = run('QwenPI', lambda robot: robot.pop('state'), include_state=False)
    policy = Policy.from_checkpoint(folder)
    assert (policy.info.state_dim, policy.engine.model.action_model.state_encoder) == (8, None)


@pytest.mark.parametrize('where', ['config.yaml', 'oxygen.json'])
@pytest.mark.parametrize('head', ['PI0', 'PI05'])
def test_include_state_false_is_not_passed_over(run, head, where):
    own = {'include_state': False} if where == 'oxygen.json' else {}
    data = {'include_state': False} if where == 'config.yaml' else {}
    folder, _ = run(head, data=data, state_normalization='identity', **own)
    with pytest.raises(OxygenError, match='include_state is false, but the network is told'):
        inspect_checkpoint(folder)
    if head == 'PI05':  # whose prompt may be without it
        folder.rename(folder.with_name('before'))
        folder, _ = run(head, data=data, state_in_prompt=False, **own)
        assert not inspect_checkpoint(folder).state_in_prompt


@pytest.mark.parametrize('mode', ['quantiles', 'min_max', 'mean_std', 'openpi_quantiles'])
def test_a_state_that_never_moved_must_be_meant(run, edit, mode):
    folder, _ = run('QwenPI', still('state', [3, 5]), state_normalization=mode)
    with pytest.raises(OxygenError, match=r'state has .* = .* at \[3, 5\], .*"state": \[3, 5\]'):
        inspect_checkpoint(folder)
    edit(folder / 'oxygen.json', constant_dimensions={'state': [3, 5]})
    norm = inspect_checkpoint(folder).normalization
    made = normalize_state(np.full(8, 0.7, np.float32), norm)[[3, 5]]
    # its training keeps such values, makes them 0, or has openpi's eps for a width
    wanted = {'min_max': 0.0, 'openpi_quantiles': (0.7 - 0.8) / 1e-6 * 2 - 1}.get(mode, 0.7)
    np.testing.assert_allclose(made, wanted, rtol=1e-6)
    edit(folder / 'oxygen.json', constant_dimensions={'state': [2, 3, 5]})
    with pytest.raises(
        OxygenError, match=r'has constant_dimensions \[2, 3, 5\] of the state, but'
    ):
        inspect_checkpoint(folder)


def test_options_of_other_heads_are_refused(run, edit):
    folder, _ = run('PI0', base_vlm='x')
    with pytest.raises(OxygenError, match='unknown key base_vlm'):
        inspect_checkpoint(folder)
