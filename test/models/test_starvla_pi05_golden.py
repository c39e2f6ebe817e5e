"""StarVLA's PI05: pi0.5's network under other names, with a prompt, times and tools of its own."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from oxygen_ros.policy import Policy
from oxygen_ros.processing.normalization import clipped_actions
from oxygen_ros.types import Observation

torch = pytest.importorskip('torch')

GOLDEN = Path(__file__).parents[1] / 'golden'
CASE = GOLDEN / 'starvla_pi05'
ABOUT = json.loads((CASE / 'case.json').read_text())['observations']
INPUTS = load_file(CASE / 'inputs.safetensors')
EXPECTED = load_file(CASE / 'expected.safetensors')
FRAMES = load_file(GOLDEN / 'pi05_lerobot' / 'inputs.safetensors')


@pytest.fixture(scope='module')
def policy():
    return Policy.from_checkpoint(CASE / 'run')


def observation(letter):
    prefix = f'{letter}.image.'
    return Observation(
        {name.removeprefix(prefix): FRAMES[name] for name in FRAMES if name.startswith(prefix)},
        INPUTS[f'{letter}.normalized_state'],
        ABOUT[letter]['task'],
    )


@pytest.mark.parametrize('letter', 'abcd')
def test_the_prompt_pads_the_state(policy, letter):
    wanted = INPUTS[f'{letter}.tokens'][INPUTS[f'{letter}.token_mask']]
    assert policy._processor.frame(observation(letter)).token_ids.tolist() == wanted.tolist()


@pytest.mark.parametrize('letter', 'abcd')
def test_actions(policy, letter):
    frame, noise = policy._processor.frame(observation(letter)), FRAMES[f'{letter}.noise'][0]
    policy.engine.observe(0, frame, torch.from_numpy(noise))
    (answer,) = policy.engine.step()
    wanted = EXPECTED[f'{letter}.actions_normalized_padded'][0]
    np.testing.assert_allclose(answer.actions, wanted, rtol=0, atol=1e-5)
    robot = policy.act(observation(letter), noise).actions
    np.testing.assert_allclose(robot, EXPECTED[f'{letter}.actions_robot'], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('letter', 'abcd')
def test_the_un_normaliser_gives_its_own_numbers(policy, letter):
    norm = policy._processor._info.normalization
    own = EXPECTED[f'{letter}.actions_normalized_padded'][0, :, :7]
    np.testing.assert_array_equal(clipped_actions(own, norm), EXPECTED[f'{letter}.actions_robot'])
