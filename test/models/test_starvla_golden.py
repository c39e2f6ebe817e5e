"""StarVLA's Qwen heads against numbers that its own code computed (test/golden)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from oxygen_ros.engine.request import FrameState
from oxygen_ros.models.qwen_vl import HIDDEN
from oxygen_ros.policy import Policy
from oxygen_ros.processing.normalization import clipped_actions
from oxygen_ros.types import LanguageRequest, Observation

torch = pytest.importorskip('torch')

GOLDEN = Path(__file__).parents[1] / 'golden'
IMAGES = load_file(GOLDEN / 'starvla_backbone' / 'inputs.safetensors')
HEADS = ('qwenpi_v3', 'qwengr00t', 'qwenoft')
OFT_WORDS = f' Please predict the next 8 robot actions: <action>{"🔍" * 8}<action>.'


class Case:
    """One head's run, loaded with and without state, and what its own code made of it."""

    def __init__(self, head, folder):
        self.case = GOLDEN / f'starvla_{head}'
        self.head = head
        self.about = json.loads((self.case / 'case.json').read_text())['observations']
        self.inputs = {**IMAGES, **load_file(self.case / 'inputs.safetensors')}
        self.expected = load_file(self.case / 'expected.safetensors')
        self.stateless = shutil.copytree(self.case / 'run', folder / 'run')
        options = json.loads((self.case / 'run' / 'oxygen.json').read_text())
        base = GOLDEN / 'starvla_backbone' / 'Qwen3-VL-tiny'
        options |= {'include_state': False, 'base_vlm': str(base)}
        (self.stateless / 'oxygen.json').write_text(json.dumps(options))
        self.policies = {}

    def policy(self, letter):
        stateful = self.about[letter]['state_given']
        if stateful not in self.policies:
            folder = self.case / 'run' if stateful else self.stateless
            self.policies[stateful] = Policy.from_checkpoint(folder, max_new_tokens=24)
        return self.policies[stateful]

    def observation(self, letter):
        prefix = f'{letter}.image.'
        state = self.inputs.get(f'{letter}.state', np.zeros(7, np.float32))
        images = {k[len(prefix) :]: self.inputs[k] for k in self.inputs if k.startswith(prefix)}
        return Observation(images, state.reshape(-1), self.about[letter]['task'])

    def noise(self, letter):
        return self.inputs.get(f'{letter}.noise', np.zeros((1, 8, 7), np.float32))[0]


@pytest.fixture(scope='module', params=HEADS)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp(request.param))


def served(case, letter):
    """The engine's answer to one observation, its frame kept."""
    policy = case.policy(letter)
    frame = policy._processor.frame(case.observation(letter))
    policy.engine.observe(0, frame, torch.from_numpy(case.noise(letter)))
    (answer,) = policy.engine.step()
    return answer


@pytest.mark.parametrize('letter', 'abc')
def test_token_ids(case, letter):
    frame = case.policy(letter)._processor.frame(case.observation(letter))
    wanted = case.inputs[f'{letter}.input_ids'][0].tolist()
    own = frame.token_ids.tolist() + frame.suffix_ids.tolist()
    assert own == wanted[: len(own)]
    # of QwenOFT's words, only the last place that it reads is needed
    assert len(own) == len(wanted) or case.head == 'qwenoft'


@pytest.mark.parametrize('letter', 'abc')
def test_actions(case, letter):
    answer = served(case, letter)
    wanted = case.expected[f'{letter}.actions_normalized'][0]
    np.testing.assert_allclose(answer.actions, wanted, rtol=0, atol=1e-4)
    robot = case.policy(letter).act(case.observation(letter), case.noise(letter)).actions
    wanted = case.expected[f'{letter}.actions_robot']
    np.testing.assert_allclose(robot, wanted, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(robot[:, 6], wanted[:, 6])  # the gripper's 0 and 1


@pytest.mark.parametrize('letter', 'abc')
def test_the_un_normaliser_gives_its_own_numbers(case, letter):
    own = case.expected[f'{letter}.actions_normalized'][0]
    norm = case.policy(letter)._processor._info.normalization
    np.testing.assert_array_equal(
        clipped_actions(own, norm), case.expected[f'{letter}.actions_robot']
    )


@pytest.mark.parametrize('letter', 'abc')
def test_words_from_the_shared_prefix(case, letter):
    policy = case.policy(letter)
    words = OFT_WORDS if case.head == 'qwenoft' else ''
    request = LanguageRequest('q', prompt=words, max_tokens=20)
    policy.act(case.observation(letter), requests=[request])
    tokens = [delta.token_id for delta in policy.stream()]
    assert tokens == case.expected[f'{letter}.language_tokens'].tolist()


@pytest.mark.parametrize('letter', 'abc')
def test_hidden_states_have_the_meaning_of_transformers_4_57(tmp_path, letter):
    """Inputs of layers 1 .. N - 1, deepstack added, and the raw output of the last."""
    case = Case('qwenpi_v3', tmp_path)
    policy = case.policy(letter)
    frame = FrameState(0, 0, policy._processor.frame(case.observation(letter)), None)
    states = policy.engine.runner.prefill(frame, 0).extras[HIDDEN]
    for number in (1, 2, 3):
        wanted = case.expected[f'{letter}.vl_hidden.{number - 1}'][0]
        np.testing.assert_allclose(states[number].numpy(), wanted, rtol=0, atol=1e-4)


def test_images_are_squeezed_as_its_own_code_does(tmp_path):
    case = Case('qwenpi_v3', tmp_path)
    frame = case.policy('a')._processor.frame(case.observation('a'))
    wanted = case.expected['a.pixel_values_first_image']
    np.testing.assert_allclose(frame.pixel_values[: len(wanted)], wanted, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(frame.grid, case.expected['a.image_grid_thw'])
