"""The prompt's cleaning, its state digits, and its tail that stays whatever the task's length."""

from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.processing.prompt import (
    clean_task,
    compose,
    fit_prompt,
    shortened,
    state_bins,
)
from oxygen_ros.processing.tokenizer import Tokenizer
from oxygen_ros.types import OxygenError

FOLDER = Path(__file__).parents[1] / 'golden' / 'pi05_lerobot' / 'checkpoint' / 'tokenizer'
GOLDEN = Tokenizer(FOLDER, 512)


def by_words(text, bos=False):
    """A stand-in for a tokenizer: one id per space-separated word, no <bos>."""
    return [len(word) for word in text.split(' ')]


def test_state_bins_cover_the_range_evenly():
    inside = np.linspace(-1, 1, 257)[:-1] + 1 / 256
    assert state_bins(inside).tolist() == list(range(256))
    assert state_bins(np.array([-1.0001, -1.0, 0.0, 0.9999, 1.0, 40.0])).tolist() == [
        -1, 0, 128, 255, 255, 255,
    ]  # fmt: skip


@pytest.mark.parametrize('wrong', [np.nan, np.inf, -np.inf])
def test_state_that_is_no_number_names_the_index(wrong):
    with pytest.raises(OxygenError, match=r'not a finite number at index \[1, 3\]'):
        state_bins(np.array([0.0, wrong, 0.5, wrong]))


def test_cleaning_keeps_inner_spaces_and_case():
    assert clean_task('  Stack_the blue\n block ', 'bidirectional') == 'Stack the blue  block'


@pytest.mark.parametrize(
    ('text', 'cleaned'),
    [
        (' Open_the Drawer! ', 'open the drawer'),
        ('open the drawer.', 'open the drawer'),
        ('open\nthe drawer', 'open the drawer'),
        ('wait...', 'wait..'),  # one mark goes, as in OxyGen
    ],
)
def test_the_causal_layout_is_lower_case_without_a_last_mark(text, cleaned):
    assert clean_task(text, 'causal') == cleaned


def test_both_layouts_compose_as_their_makers_do():
    assert compose('pick', [1, -1, 255], 'bidirectional') == (
        'Task: pick, State: 1 -1 255;\nAction: ',
    )
    assert compose('pick', None, 'bidirectional') == ('pick', '\n')
    assert compose('pick', [1, 2], 'causal') == ('Task: pick. Subtask: ',)


@pytest.mark.parametrize('limit', [9, 12, 30])
def test_a_long_task_loses_its_end_and_nothing_else(limit):
    task = ' '.join(f'word{i}' for i in range(400))
    ids, truncated = fit_prompt(task, [1, 2, 3], 'bidirectional', limit, by_words)
    assert truncated
    assert len(ids) == limit
    assert ids[-5:] == by_words('State: 1 2 3;\nAction: ')
    kept = ids[1:-5]
    assert kept[:-1] == by_words(task)[: len(kept) - 1]


def test_a_prompt_that_just_fits_is_not_touched():
    ids, truncated = fit_prompt('a b c', [1], 'bidirectional', 7, by_words)
    assert (ids, truncated) == (by_words('Task: a b c, State: 1;\nAction: '), False)
    assert fit_prompt('a b c', [1], 'bidirectional', 6, by_words)[1]


def test_a_state_that_leaves_no_room_is_refused():
    with pytest.raises(OxygenError, match='without its task has 14 tokens, at most 10 fit'):
        fit_prompt('pick', list(range(10)), 'bidirectional', 10, by_words)


@pytest.mark.parametrize(
    'task',
    [
        'pick up the red cup ' * 2000,
        'word' * 9000,
        'ab\u0301\u0302 \n\t日本🤖' * 3000,
        ' ' * 20_000 + 'cup',
        'Q' * 700 + ' cup' * 5000,
        '<bos><eos>' * 3000,
    ],
)
@pytest.mark.parametrize('limit', [20, 200])
def test_a_text_that_is_too_long_to_fit_is_not_made_tokens(task, limit):
    """The ids are those of trying every length that bisection asks for."""
    tried = []

    def encode(text, bos):
        tried.append(len(text))
        return GOLDEN.encode(text, bos)

    given = (task, [1, 2, 3], 'bidirectional', limit)
    assert fit_prompt(*given, encode, GOLDEN.longest) == fit_prompt(*given, GOLDEN.encode)
    assert max(tried) <= limit * GOLDEN.longest + 40


@pytest.mark.parametrize('limit', [1, 7, 64])
def test_no_prompt_that_fits_is_taken_for_too_long(limit):
    """As many of a token as fit, and no token longer than that one."""
    task = '<eos>' * limit
    assert GOLDEN.encode(task, False) == [1] * limit
    assert GOLDEN.longest >= len('<eos>')

    def ids_of(length):
        return GOLDEN.encode(task[:length], False)

    assert shortened(ids_of, len(task), limit, len('<eos>')) == ([1] * limit, False)


def test_without_the_state_only_the_task_is_shortened():
    """A newline, made a token by itself, ends the prompt: it is where the answer starts."""
    task = ' '.join(['pick'] * 400)
    ids, truncated = fit_prompt(task, None, 'bidirectional', 20, by_words)
    assert (len(ids), truncated) == (20, True)
    assert (ids[:18], ids[-1:]) == ([4] * 18, by_words('\n'))
    assert fit_prompt('pick', None, 'bidirectional', 20, by_words) == ([4, 1], False)
