"""pi0.5 against numbers that LeRobot's, openpi's and OxyGen's own code computed (test/golden)."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from oxygen_ros.policy import Policy
from oxygen_ros.processing.pi05 import Pi05Inputs
from oxygen_ros.types import LanguageRequest, Observation

torch = pytest.importorskip('torch')

GOLDEN = Path(__file__).parents[1] / 'golden'
SLOTS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')


def case(name):
    folder = GOLDEN / name
    return (
        json.loads((folder / 'case.json').read_text()),
        load_file(folder / 'inputs.safetensors'),
        load_file(folder / 'expected.safetensors'),
    )


def observation(about, inputs, letter):
    return Observation(
        images={
            name: inputs[f'{letter}.image.{name}']
            for name in SLOTS
            if f'{letter}.image.{name}' in inputs
        },
        state=inputs[f'{letter}.state'],
        instruction=about['observations'][letter]['task'],
    )


@pytest.fixture(scope='module', params=['eager', 'fused', 'graphs'])
def execution(request):
    return request.param


@pytest.fixture(scope='module')
def lerobot(execution):
    return Policy.from_checkpoint(GOLDEN / 'pi05_lerobot' / 'checkpoint', execution=execution)


@pytest.fixture(scope='module')
def openpi(execution):
    folder = GOLDEN / 'pi05_openpi_format' / 'checkpoint'
    return Policy.from_checkpoint(folder, execution=execution)


def normalised(policy, inputs, noise):
    """Denoised actions [H, 32] of inputs, before un-normalisation."""
    policy.engine.observe(0, inputs, torch.from_numpy(noise))
    (answer,) = policy.engine.step()
    return answer.actions


@pytest.mark.parametrize('letter', 'abcd')
def test_lerobot_actions(lerobot, letter):
    about, inputs, expected = case('pi05_lerobot')
    seen, noise = observation(about, inputs, letter), inputs[f'{letter}.noise'][0]
    actions = normalised(lerobot, lerobot._processor.frame(seen), noise)
    wanted = expected[f'{letter}.actions_normalized_padded'][0]
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)
    robot = lerobot.act(seen, noise).actions
    np.testing.assert_allclose(robot, expected[f'{letter}.actions_robot'][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('steps', [1, 5])
def test_lerobot_actions_with_other_step_counts(steps):
    about, inputs, expected = case('pi05_lerobot')
    checkpoint = GOLDEN / 'pi05_lerobot' / 'checkpoint'
    policy = Policy.from_checkpoint(checkpoint, denoise_steps=steps)
    frame = policy._processor.frame(observation(about, inputs, 'a'))
    actions = normalised(policy, frame, inputs['a.noise'][0])
    wanted = expected[f'a.actions_normalized_padded_steps{steps}'][0]
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)


def test_lerobot_actions_with_the_steps_of_its_config(tmp_path):
    """num_inference_steps is the maker's default, which the node's own number beats."""
    about, inputs, expected = case('pi05_lerobot')
    folder = shutil.copytree(GOLDEN / 'pi05_lerobot' / 'checkpoint', tmp_path / 'checkpoint')
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({**config, 'num_inference_steps': 5}))
    for given, steps in ((0, 5), (1, 1)):
        policy = Policy.from_checkpoint(folder, denoise_steps=given)
        assert policy.info.effective['denoise_steps'] == str(steps)
        frame = policy._processor.frame(observation(about, inputs, 'a'))
        actions = normalised(policy, frame, inputs['a.noise'][0])
        wanted = expected[f'a.actions_normalized_padded_steps{steps}'][0]
        np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize('letter', 'abcd')
def test_lerobot_prefix_keys_and_values(lerobot, letter):
    """The last layer's cache on the valid slots, which are all that the pool holds."""
    about, inputs, expected = case('pi05_lerobot')
    lerobot.act(observation(about, inputs, letter))
    valid = expected[f'{letter}.prefix_pad_mask'][0]
    for name, layers in (('k', lerobot.engine.pool.keys), ('v', lerobot.engine.pool.values)):
        held = layers[-1][0, :, : valid.sum()].numpy()
        wanted = expected[f'{letter}.prefix_{name}.2'][0][:, valid]
        np.testing.assert_allclose(held, wanted, rtol=0, atol=5e-5)


@pytest.mark.parametrize('letter', 'abcd')
def test_openpi_actions(openpi, letter):
    """Its own resize, its own time rule, its own quantiles."""
    about, inputs, expected = case('pi05_openpi_format')
    seen, noise = observation(about, inputs, letter), inputs[f'{letter}.noise'][0]
    actions = normalised(openpi, openpi._processor.frame(seen), noise)
    wanted = expected[f'{letter}.actions_normalized_padded.openpi_resize'][0]
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)
    robot = openpi.act(seen, noise).actions
    wanted = expected[f'{letter}.actions_robot.openpi_resize'][0]
    np.testing.assert_allclose(robot, wanted, rtol=1e-5, atol=1e-6)


def test_time_rules_differ_as_their_makers_do(lerobot, openpi):
    """The same float images: openpi's actions are met by its time rule only."""
    _, inputs, expected = case('pi05_openpi_format')
    about, own, _ = case('pi05_lerobot')
    frame = lerobot._processor.frame(observation(about, own, 'a'))
    noise = inputs['a.noise'][0]
    wanted = expected['a.actions_normalized_padded.float_resize'][0]
    np.testing.assert_allclose(normalised(openpi, frame, noise), wanted, rtol=0, atol=1e-5)
    assert np.abs(normalised(lerobot, frame, noise) - wanted).max() > 1e-5


def test_both_layouts_hold_the_same_weights_bit_for_bit(tmp_path):
    """The openpi folder, told to compute as LeRobot does, gives LeRobot's bits."""
    about, inputs, _ = case('pi05_lerobot')
    folder = tmp_path / 'openpi'
    shutil.copytree(GOLDEN / 'pi05_openpi_format' / 'checkpoint', folder)
    options = json.loads((folder / 'oxygen.json').read_text())
    options |= {'time_rule': 'float32_of_step', 'image_resize': 'float_bilinear'}
    (folder / 'oxygen.json').write_text(json.dumps(options))
    policies = [
        Policy.from_checkpoint(folder),
        Policy.from_checkpoint(GOLDEN / 'pi05_lerobot' / 'checkpoint'),
    ]
    frame = policies[1]._processor.frame(observation(about, inputs, 'a'))
    first, second = (normalised(policy, frame, inputs['a.noise'][0]) for policy in policies)
    np.testing.assert_array_equal(first, second)


@pytest.fixture(scope='module')
def by_layout(tmp_path_factory, execution):
    """Prompt layout -> policy of the LeRobot weights that never stops at <eos>."""
    policies = {}
    for layout in ('bidirectional', 'causal'):
        folder = tmp_path_factory.mktemp('layout') / layout
        shutil.copytree(GOLDEN / 'pi05_lerobot' / 'checkpoint', folder)
        options = json.loads((folder / 'oxygen.json').read_text())
        (folder / 'oxygen.json').write_text(json.dumps({**options, 'prompt_layout': layout}))
        policy = Policy.from_checkpoint(folder, execution=execution)
        model = policy.engine.model
        model.spec = dataclasses.replace(model.spec, eos_ids=frozenset())
        policies[layout] = policy
    return policies


def language(policy, inputs, letter):
    """Greedy tokens [20], first logits [V] and normalised actions of one language case."""
    valid = inputs[f'{letter}.image_mask']
    ids = inputs[f'{letter}.tokens'][0][inputs[f'{letter}.token_mask'][0]]
    frame = Pi05Inputs(
        torch.from_numpy(inputs[f'{letter}.images_processed'][valid]), torch.from_numpy(ids), False
    )
    policy.engine.submit(LanguageRequest(letter, max_tokens=20), [])
    policy.engine.observe(0, frame, torch.from_numpy(inputs[f'{letter}.noise'][0]))
    (answer,) = policy.engine.step()
    logits = policy.engine.model.logits(answer.frame.prefilled.last_hidden[None])[0]
    tokens = []
    while policy.engine.scheduler.live:
        policy.grant()
        tokens += [output.token for output in policy.engine.step()]
    return tokens, logits.numpy(), answer.actions


@pytest.mark.parametrize('layout', ['bidirectional', 'causal'])
@pytest.mark.parametrize('letter', 'efgh')
def test_language_from_the_shared_prefix(by_layout, layout, letter):
    """Masked cameras included: the first token comes from the last valid position."""
    _, inputs, expected = case('pi05_language')
    tokens, logits, actions = language(by_layout[layout], inputs, letter)
    assert tokens == expected[f'{letter}.{layout}.oracle.tokens'].tolist()
    wanted = expected[f'{letter}.{layout}.oracle.logits'][0]
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)
    name = f'{letter}.{layout}.{"" if layout == "bidirectional" else "oracle."}'
    wanted = expected[name + 'actions_normalized_padded'][0]
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize('letter', 'ef')
def test_causal_layout_gives_oxygens_own_tokens(by_layout, letter):
    """Only where its code is right: with a masked camera it seeds from the wrong slot."""
    _, inputs, expected = case('pi05_language')
    tokens, _, _ = language(by_layout['causal'], inputs, letter)
    assert tokens == expected[f'{letter}.causal.oxygen.tokens'].tolist()


@pytest.mark.parametrize('letter', 'abcd')
def test_bfloat16_actions_point_the_same_way(lerobot, letter):
    about, inputs, _ = case('pi05_lerobot')
    seen, noise = observation(about, inputs, letter), inputs[f'{letter}.noise'][0]
    half = Policy.from_checkpoint(GOLDEN / 'pi05_lerobot' / 'checkpoint', dtype='bfloat16')
    first = normalised(lerobot, lerobot._processor.frame(seen), noise).ravel()
    second = normalised(half, half._processor.frame(seen), noise).ravel()
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert cosine >= 0.999, cosine
