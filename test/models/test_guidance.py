"""Real-time chunking: the gradient is right, overlapping rows are met, others stay free."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from oxygen_ros.models.guidance import Guide, guided_velocity, overlap_mask
from oxygen_ros.policy import Policy
from oxygen_ros.types import Observation, Overlap, OxygenError

GOLDEN = Path(__file__).parents[1] / 'golden'


@pytest.fixture(scope='module')
def policy():
    return Policy.from_checkpoint(GOLDEN / 'pi05_lerobot' / 'checkpoint')


def observation(policy, stamp=1):
    random = np.random.default_rng(stamp)
    return Observation(
        {name: random.integers(0, 256, (56, 56, 3), np.uint8) for name in policy.info.cameras},
        np.zeros(policy.info.state_dim, np.float32),
        'pick up the red cup',
        stamp,
    )


def act(policy, seen, noise, overlap=None):
    policy.observe(seen, noise, overlap)
    (chunk,) = policy.step()
    return chunk.actions


def test_mask_is_one_while_delayed_then_falls_to_zero():
    mask = overlap_mask(horizon=8, overlap=6, delay=2)
    assert mask[:2].tolist() == [1.0, 1.0]
    assert mask[6:].tolist() == [0.0, 0.0]
    assert all(a > b for a, b in zip(mask[1:6], mask[2:7], strict=True))
    share = (6 - 3) / (6 - 2 + 1)  # row 3, by the paper's formula
    assert mask[3] == pytest.approx(share * (np.exp(share) - 1) / (np.e - 1))


def test_velocity_is_bent_by_the_exact_gradient():
    """Against a linear flow, whose gradient is known: v = A x, clean = (1 - t A) x."""
    torch.manual_seed(0)
    matrix, time = torch.randn(6, 6), 0.4
    guide = Guide(torch.randn(2, 6), torch.rand(2, 6))
    noisy = torch.randn(1, 2, 6)
    bent = guided_velocity(lambda x: x @ matrix.T, noisy, time, guide)
    clean = noisy - time * noisy @ matrix.T
    error = (guide.target - clean) * guide.mask
    weight = (0.6**2 + 0.4**2) / (0.6 * 0.4)
    pull = error - time * error @ matrix
    torch.testing.assert_close(bent, noisy @ matrix.T - weight * pull)


def test_overlapping_rows_are_met_and_a_chunk_continues_itself(policy):
    horizon, width = policy.engine.model.spec.horizon, policy.info.action_dim
    noises = np.random.default_rng(0).standard_normal((2, horizon, 32)).astype(np.float32)
    running = act(policy, observation(policy, 1), noises[0])
    rest = running[3:]
    free = act(policy, observation(policy, 2), noises[1])
    guided = act(policy, observation(policy, 2), noises[1], Overlap(rest, delay=3))
    rows = slice(0, 3)
    assert np.abs(guided - rest[:1])[0].max() < 0.25 * np.abs(free - rest[:1])[0].max()
    before = np.abs(free[rows] - rest[rows]).mean()
    after = np.abs(guided[rows] - rest[rows]).mean()
    assert after < 0.2 * before, (before, after)
    assert guided.shape == (horizon, width)
    again = act(policy, observation(policy, 2), noises[1])
    np.testing.assert_array_equal(again, free)  # a guided frame leaves nothing behind


def test_guidance_leaves_the_pools_suffix_alone_and_keeps_no_graph(policy):
    overlap = Overlap(np.zeros((4, policy.info.action_dim), np.float32), delay=1)
    act(policy, observation(policy, 3), None, overlap)
    assert not any(key.requires_grad for key in policy.engine.pool.keys)


@pytest.mark.parametrize(
    ('shape', 'delay', 'said'),
    [((0, 7), 0, 'shape'), ((11, 7), 0, 'shape'), ((3, 6), 0, 'shape'), ((3, 7), 4, 'delay is 4')],
)
def test_an_overlap_that_cannot_be_used_is_refused(policy, shape, delay, said):
    with pytest.raises(OxygenError, match=said):
        policy.observe(observation(policy), None, Overlap(np.zeros(shape, np.float32), delay))


def test_relative_actions_count_from_their_own_frames_state(tmp_path):
    """Absolute values of the same network output differ by the state; guidance knows of it."""
    folder = tmp_path / 'relative'
    shutil.copytree(GOLDEN / 'pi05_lerobot' / 'checkpoint', folder)
    options = json.loads((folder / 'oxygen.json').read_text())
    mask = [True, False, True, True, True, True, False]
    (folder / 'oxygen.json').write_text(json.dumps({**options, 'relative_actions': mask}))
    relative = Policy.from_checkpoint(folder)
    absolute = Policy.from_checkpoint(GOLDEN / 'pi05_lerobot' / 'checkpoint')
    seen = observation(absolute)
    seen = dataclasses.replace(seen, state=np.linspace(-0.3, 0.3, 8, dtype=np.float32))
    first, second = absolute.act(seen).actions, relative.act(seen).actions
    np.testing.assert_allclose(
        second - first, np.where(mask, seen.state[:7], 0) + 0 * first, atol=1e-6
    )
    processor = relative._processor
    network = processor.network_actions(second, seen.state)
    np.testing.assert_allclose(processor.robot_actions(network, seen.state), second, atol=1e-5)
