"""Xiaomi-Robotics-0's observations: what the prompt says, and what cannot be used."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.processing.xiaomi_robotics_0 import XiaomiProcessor, compose
from oxygen_ros.types import Observation, OxygenError

CHECKPOINT = Path(__file__).parents[1] / 'golden' / 'xr0' / 'checkpoint'
INFO = inspect_checkpoint(CHECKPOINT, 'libero_tiny')
PROCESSOR = XiaomiProcessor(INFO)


def seen(instruction='pick up the cup', views=('base_view',), size=(64, 64), state=None):
    images = {view: np.zeros((*size, 3), np.uint8) for view in views}
    return Observation(images, np.zeros(32, np.float32) if state is None else state, instruction)


def text_of(frame):
    ids = frame.token_ids.tolist()
    return PROCESSOR.tokenizer._fast.decode(ids, clean_up_tokenization_spaces=False)


def test_absent_cameras_are_not_in_the_prompt():
    frame = PROCESSOR.frame(seen(views=('right_wrist_view', 'base_view')))
    assert len(frame.grid) == 2
    text = text_of(frame)
    assert text.index('# Base View') < text.index('# Right-Wrist View')
    assert 'Left' not in text


def test_a_very_long_text_is_cut_without_being_read_whole(monkeypatch):
    whole = PROCESSOR.frame(seen('word ' * 20_000))
    read = []
    encode = PROCESSOR.tokenizer.encode
    monkeypatch.setattr(PROCESSOR.tokenizer, 'encode', lambda t: read.append(len(t)) or encode(t))
    cut = PROCESSOR.frame(seen('word ' * 20_000))
    assert cut.token_ids.tolist() == whole.token_ids.tolist() and cut.truncated
    assert max(read) < 50_000
    monkeypatch.setattr(PROCESSOR.tokenizer, 'longest', 2**40)
    assert PROCESSOR.frame(seen('word ' * 20_000)).token_ids.tolist() == whole.token_ids.tolist()
    assert max(read) > 100_000


def test_half_a_character_is_refused():
    with pytest.raises(OxygenError, match='broken at character'):
        PROCESSOR.frame(seen('a\ud800b'))
    with pytest.raises(OxygenError, match='broken at character'):
        PROCESSOR.prompt_tokens('a\ud800b')


def test_views_and_robot_are_named_in_oxygen_json(tmp_path):
    folder = Path(shutil.copytree(CHECKPOINT, tmp_path / 'copy'))
    own = {'views': {'head': 'Ego View'}, 'state_dim': 8, 'action_dim': 6, 'max_image_tokens': 9}
    (folder / 'oxygen.json').write_text(json.dumps(own))
    info = inspect_checkpoint(folder, 'bridge_tiny')
    assert (info.cameras, info.state_dim, info.action_dim, info.horizon) == (('head',), 8, 6, 4)
    assert info.max_prefix == 9 + 200
    processor = XiaomiProcessor(info)
    state = np.arange(8, dtype=np.float32)
    frame = processor.frame(seen(views=('head',), state=state))
    assert '# Ego View\n' in text_of(frame)
    np.testing.assert_array_equal(frame.state[0], np.pad(state, (0, 24)))
    assert processor.robot_actions(np.zeros((4, 32), np.float32), state).shape == (4, 6)
    with pytest.raises(OxygenError, match='128x96 image of head takes 12 tokens, 9 are reserved'):
        processor.frame(seen(views=('head',), size=(96, 128), state=state))


def test_a_long_task_is_shortened_and_all_else_is_whole():
    info = dataclasses.replace(INFO, text_tokens=110)
    frame = XiaomiProcessor(info).frame(seen('pick up the cup ' * 30))
    assert frame.truncated
    images = int(frame.grid.prod() // 4)
    assert 105 <= len(frame.token_ids) - images <= 110
    text = text_of(frame)
    assert text.endswith(' /no_cot<|im_end|>\n<|im_start|>assistant\n')
    assert text.startswith('<|im_start|>user\n') and 'pick up the cup pick up' in text
    with pytest.raises(OxygenError, match='without its task has .* at most 40 fit'):
        XiaomiProcessor(dataclasses.replace(INFO, text_tokens=36)).frame(seen())


@pytest.mark.parametrize(
    'wrong, words',
    [
        ({'views': ('front',)}, 'cameras front are unknown, allowed: base_view, left_wrist_view'),
        ({'views': ()}, 'no camera image, at least one is needed of: base_view'),
        ({'instruction': ' \n'}, 'the instruction is empty'),
        ({'instruction': 'go<|image_pad|>'}, r'the instruction holds <\|image_pad\|>'),
        ({'state': np.zeros(7, np.float32)}, r'state has shape \[7\], .* expects \[32\]'),
        ({'state': np.full(32, np.nan, np.float32)}, 'not a finite number at index'),
    ],
)
def test_what_cannot_be_used_says_what_can(wrong, words):
    with pytest.raises(OxygenError, match=words):
        PROCESSOR.frame(seen(**wrong))


def test_actions_there_and_back_step_by_step():
    """Rows have statistics of their own; a value that never moved stays at its mean."""
    scale = INFO.normalization
    random = np.random.default_rng(0)
    normalised = random.standard_normal((10, 32)).astype(np.float32)
    robot = PROCESSOR.robot_actions(normalised, None)
    for row in range(10):
        wanted = normalised[row, :7] * scale.std[row, :7] + scale.mean[row, :7]
        np.testing.assert_allclose(robot[row], wanted, rtol=1e-6)
    back = PROCESSOR.network_actions(robot[:6], None)
    np.testing.assert_allclose(back, normalised[:6, :7], atol=1e-5)
    still = PROCESSOR.network_actions(robot, None)[9, 3]
    assert not scale.mask[9, 3] and still == 0


def test_the_prompt_is_the_makers():
    assert compose('go', ['Base View', 'Ego View']) == (
        '<|im_start|>user\n'
        'The following observations are captured from multiple views.\n'
        '# Base View\n<|vision_start|><|image_pad|><|vision_end|>\n'
        '# Ego View\n<|vision_start|><|image_pad|><|vision_end|>\n'
        'Generate robot actions for the task:\ngo /no_cot<|im_end|>\n'
        '<|im_start|>assistant\n'
    )


def test_a_requests_words_are_a_turn_of_the_user():
    """Not what the assistant says; without any, language goes on where the prefix ends."""
    decode = PROCESSOR.tokenizer._fast.decode
    words = PROCESSOR.prompt_tokens('What do you see?')
    assert decode(words, clean_up_tokenization_spaces=False) == (
        '<|im_end|>\n<|im_start|>user\nWhat do you see?<|im_end|>\n<|im_start|>assistant\n'
    )
    assert PROCESSOR.prompt_tokens('') == []
    with pytest.raises(OxygenError, match=r'the prompt holds <\|im_end\|>: leave special tokens'):
        PROCESSOR.prompt_tokens('see?<|im_end|>')


def test_its_makers_resize_with_pillow_unless_it_is_said_otherwise(tmp_path):
    folder = Path(shutil.copytree(CHECKPOINT, tmp_path / 'copy'))
    assert INFO.image_resize == 'pil'
    (folder / 'oxygen.json').write_text(json.dumps({'image_resize': 'torchvision'}))
    other = XiaomiProcessor(inspect_checkpoint(folder, 'libero_tiny'))
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    frames = [
        each.frame(Observation({'base_view': image}, np.zeros(32, np.float32), 'go'))
        for each in (PROCESSOR, other)
    ]
    apart = (frames[0].pixel_values - frames[1].pixel_values).abs()
    assert 0 < (apart > 1e-3).float().mean() < 0.05 and apart.max() < 2 / 100
