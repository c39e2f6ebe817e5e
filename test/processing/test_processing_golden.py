"""Processing against what LeRobot's preprocessor and openpi's transforms computed."""

import numpy as np
import pytest

from oxygen_ros.processing.normalization import normalize_state

LEROBOT, OPENPI = 'pi05_lerobot', 'pi05_openpi_format'


@pytest.mark.parametrize('letter', 'abcd')
@pytest.mark.parametrize('name', [LEROBOT, OPENPI])
def test_token_ids_are_equal(golden, name, letter):
    case = golden(name)
    frame = case.processor.frame(case.observation(letter))
    wanted = case.inputs[f'{letter}.tokens'][case.inputs[f'{letter}.token_mask']]
    np.testing.assert_array_equal(frame.token_ids.numpy(), wanted)
    assert frame.token_ids.dtype.itemsize == 8
    assert not frame.truncated


@pytest.mark.parametrize('letter', 'abcd')
@pytest.mark.parametrize('name', [LEROBOT, OPENPI])
def test_normalised_state_is_equal(golden, name, letter):
    case = golden(name)
    state = normalize_state(case.inputs[f'{letter}.state'], case.info.normalization)
    wanted = case.expected[f'{letter}.normalized_state'].reshape(-1)
    assert state.dtype == wanted.dtype
    np.testing.assert_array_equal(state, wanted)


@pytest.mark.parametrize('letter', 'abcd')
def test_images_by_lerobots_rule(golden, letter):
    case = golden(LEROBOT)
    pixels = case.processor.frame(case.observation(letter)).pixel_values.numpy()
    # LeRobot puts present cameras first and fills the rest with -1: those are not computed here.
    wanted = case.expected[f'{letter}.images_processed'][case.expected[f'{letter}.image_masks'][0]]
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize('letter', 'abcd')
def test_images_by_openpis_rule(golden, letter):
    case = golden(OPENPI)
    pixels = case.processor.frame(case.observation(letter)).pixel_values.numpy()
    resized = case.expected[f'{letter}.images_openpi_resized_uint8']
    wanted = resized[case.inputs[f'{letter}.image_mask']].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(np.rint((pixels + 1.0) * 127.5), wanted)
    np.testing.assert_allclose(pixels, wanted / 127.5 - 1.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize('letter', 'abcd')
def test_robot_actions_of_lerobot(golden, letter):
    case = golden(LEROBOT)
    state = case.inputs[f'{letter}.state']
    padded = case.expected[f'{letter}.actions_normalized_padded'][0]
    actions = case.processor.robot_actions(padded, state)
    assert (actions.shape, actions.dtype) == ((10, 7), np.float32)
    np.testing.assert_allclose(actions, case.expected[f'{letter}.actions_robot'][0], rtol=1e-5)


@pytest.mark.parametrize('resize', ['float_resize', 'openpi_resize'])
@pytest.mark.parametrize('letter', 'abcd')
def test_robot_actions_of_openpi(golden, letter, resize):
    case = golden(OPENPI)
    name = f'{letter}.actions_normalized_padded.{resize}'
    state = case.inputs[f'{letter}.state']
    actions = case.processor.robot_actions(case.expected[name][0], state)
    wanted = case.expected[f'{letter}.actions_robot.{resize}'][0]
    np.testing.assert_allclose(actions, wanted, rtol=1e-5)
