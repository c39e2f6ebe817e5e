"""The processor refuses what does not fit and says what would, and never shortens the tail."""

import dataclasses

import numpy as np
import pytest

from oxygen_ros.processing.pi05 import Pi05Processor
from oxygen_ros.processing.prompt import clean_task
from oxygen_ros.types import Observation, OxygenError

SLOTS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')


@pytest.fixture
def case(golden):
    return golden('pi05_lerobot')


def observation(**changes):
    blank = np.zeros((20, 30, 3), np.uint8)
    fields = {'images': dict.fromkeys(SLOTS, blank), 'state': np.zeros(8, np.float32)}
    return Observation(**{**fields, 'instruction': 'pick up the cup', **changes})


def test_present_cameras_come_in_slot_order_whatever_the_mappings(case):
    pictures = {slot: np.full((56, 56, 3), 50 * i, np.uint8) for i, slot in enumerate(SLOTS)}
    backwards = {slot: pictures[slot] for slot in (SLOTS[2], SLOTS[0])}
    pixels = case.processor.frame(observation(images=backwards)).pixel_values
    assert pixels.shape == (2, 3, 56, 56)
    assert [round(float(p.mean()), 3) for p in pixels] == [-1.0, round(100 / 127.5 - 1, 3)]


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'images': {}}, 'no camera image, at least one.*base_0_rgb, left_wrist_0_rgb'),
        (
            {'images': {'front': np.zeros((9, 9, 3), np.uint8)}},
            'cameras front are unknown, allowed: base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb',
        ),
        (
            {'images': {'base_0_rgb': np.zeros((9, 9, 3), np.float32)}},
            r'base_0_rgb is float32 \[9, 9, 3\], uint8',
        ),
        ({'images': {'base_0_rgb': np.zeros((9, 9, 4), np.uint8)}}, r'uint8 \[9, 9, 4\]'),
        ({'images': {'base_0_rgb': np.zeros((9, 9), np.uint8)}}, r'uint8 \[9, 9\]'),
        ({'images': {'base_0_rgb': np.zeros((0, 9, 3), np.uint8)}}, r'uint8 \[0, 9, 3\]'),
        ({'state': np.zeros(7, np.float32)}, r'state has shape \[7\].*expects \[8\]'),
        ({'state': np.zeros((1, 8), np.float32)}, r'state has shape \[1, 8\].*expects \[8\]'),
        ({'state': np.full(8, np.nan, np.float32)}, r'at index \[0, 1, 2, 3, 4, 5, 6, 7\]'),
        ({'instruction': ' \n_ '}, 'instruction is empty'),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(case, changes, said):
    with pytest.raises(OxygenError, match=said):
        case.processor.frame(observation(**changes))


@pytest.mark.parametrize('words', [300, 2500])
def test_a_long_instruction_keeps_state_and_cue(case, words):
    """2,500 words are more than 10,000 characters."""
    frame = case.processor.frame(observation(instruction='pick ' * words))
    ids = frame.token_ids.tolist()
    assert frame.truncated
    assert case.info.tokenizer_max_length - 1 <= len(ids) <= case.info.tokenizer_max_length
    short = case.processor.frame(observation(instruction='pick')).token_ids.tolist()
    tail = short[-30:]
    assert ids[-30:] == tail
    assert ids[0] == 2


def test_only_real_joints_are_written(case):
    """A state padded to 32 would more than double the prompt."""
    text = case.processor._tokenizer.decode(case.processor.frame(observation()).token_ids.tolist())
    digits = text.split('State: ')[1].split(';')[0].split(' ')
    assert len(digits) == case.info.state_dim == 8


@pytest.mark.parametrize('pad', [0.0, -2.0])
def test_a_state_that_was_padded_in_training(case, pad):
    """LeRobot 0.4: zeros behind the normalised state, up to 32 values, then 256 bins."""
    info = dataclasses.replace(case.info, prompt_state_dim=32, prompt_state_pad=pad)
    seen = case.observation('a')
    norm = case.info.normalization.state
    unit = (seen.state - norm.origin) / norm.span_in * 2 - 1
    padded = np.concatenate([unit, np.full(24, pad, np.float32)])
    bins = np.digitize(padded, np.linspace(-1, 1, 257)[:-1]) - 1
    assert bins[8:].tolist() == [{0.0: 128, -2.0: -1}[pad]] * 24
    task = clean_task(seen.instruction, 'bidirectional')
    prompt = f'Task: {task}, State: {" ".join(map(str, bins))};\nAction: '
    encode = case.processor._tokenizer.encode
    assert Pi05Processor(info).frame(seen).token_ids.tolist() == encode(prompt, bos=True)


def test_half_a_character_is_refused_wherever_it_comes_from(case):
    with pytest.raises(OxygenError, match=r"broken at character \d+: '\\ud800' is half of a"):
        case.processor.frame(observation(instruction='a\ud800b'))
    with pytest.raises(OxygenError, match='broken at character 1'):
        case.processor.prompt_tokens('a\ud800b')


def test_request_words_have_no_bos(case):
    assert case.processor.prompt_tokens('') == []
    ids = case.processor.prompt_tokens('what do you see?')
    assert 2 not in ids
    assert case.processor._tokenizer.decode(ids) == 'what do you see?'
    assert case.processor.eos_id == 1


@pytest.mark.parametrize('letter', 'efg')
def test_the_causal_layouts_prompt_is_oxygens(case, golden_language, letter):
    info = dataclasses.replace(case.info, prompt_layout='causal')
    prompt, wanted = golden_language(letter)
    task = prompt.removeprefix('Task: ').removesuffix(' Subtask: ')
    frame = Pi05Processor(info).frame(observation(instruction=task.upper()))
    assert frame.token_ids.tolist() == wanted


def test_padded_dimensions_are_dropped_and_units_are_the_robots(case):
    scale = case.info.normalization.action
    state = np.full(8, 9.0, np.float32)  # of no account while actions are absolute
    low, high = (case.processor.robot_actions(np.full((10, 32), v), state) for v in (-1.0, 1.0))
    np.testing.assert_array_equal(low, np.broadcast_to(scale.origin, (10, 7)))
    q99 = scale.origin + scale.span_out
    np.testing.assert_allclose(high, np.broadcast_to(q99, (10, 7)), atol=1e-6)


def test_a_checkpoint_trained_without_the_state_in_its_prompt(case):
    """openpi's discrete_state_input=False: <bos>, the cleaned task, a newline of its own."""
    processor = Pi05Processor(dataclasses.replace(case.info, state_in_prompt=False))
    encode = case.processor._tokenizer.encode
    wanted = [2, *encode('pick up the cup', bos=False), *encode('\n', bos=False)]
    for state in (np.zeros(8, np.float32), np.ones(8, np.float32)):
        frame = processor.frame(observation(instruction=' pick up_the\ncup ', state=state))
        assert frame.token_ids.tolist() == wanted
    long = processor.frame(observation(instruction='pick ' * 300))
    assert long.truncated
    assert len(long.token_ids) == case.info.tokenizer_max_length
    assert long.token_ids.tolist()[-1:] == encode('\n', bos=False)
