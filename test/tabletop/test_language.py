"""What is said to be true is true, and the small tokenizer knows every word of it."""

import itertools
import re

import numpy as np
import pytest

from oxygen_ros.processing.tokenizer import Tokenizer
from oxygen_ros.tabletop import language
from oxygen_ros.tabletop.language import Question, ask, facts, regions, right
from oxygen_ros.tabletop.samples import examples
from oxygen_ros.tabletop.tasks import COLOURS, SIDES, Task, all_tasks
from oxygen_ros.tabletop.vocabulary import vocabulary, write_tokenizer
from oxygen_ros.tabletop.world import NOTHING, layout


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tokenizer')
    write_tokenizer(folder)
    return Tokenizer(folder, len(vocabulary()))


@pytest.mark.parametrize(
    ('spot', 'names'),
    [
        ((-0.15, -0.12), ('at the front left',)),
        ((0.0, 0.02), ('at the back middle',)),
        ((0.075, -0.12), ('at the front right', 'at the front middle')),
        ((0.15, -0.045), ('at the back right', 'at the front right')),
    ],
)
def test_places_have_names_and_near_a_border_two(spot, names):
    assert regions(np.array(spot)) == names


def scene(kind, side='left', seed=0):
    task = Task(kind, 'red', side, '')
    return layout(np.random.default_rng(seed), [task]), task


def test_a_put_is_told_from_its_begin_to_its_end():
    scenes, task = scene('put')
    scenes.joints[0] = [*scenes.blocks[0, 0] + 0.1, 0.1, 1.0]
    assert told(scenes, task) == ('go to the red block', 'nothing yet', 'nothing')
    scenes.joints[0, :3] = [*scenes.blocks[0, 0], 0.01]
    assert told(scenes, task) == ('grasp the red block', 'nothing yet', 'nothing')
    scenes.held[0] = 0
    now = told(scenes, task)
    assert now[0] == 'carry the red block to the left tray'
    assert now[1:] == ('the red block was grasped', 'the red block')
    scenes.joints[0, :2] = scenes.blocks[0, 0] = scenes.trays[0, 0]
    assert told(scenes, task)[0] == 'release the red block'
    scenes.held[0] = NOTHING
    now = told(scenes, task)
    assert now[:2] == ('nothing, the task is done', 'the red block was put on the left tray')
    (known,) = facts(scenes, [task])
    assert known.places['red'] == ('on the left tray',)
    assert known.trays['left'][0] == 'red'


def told(scenes, task):
    """Best subtask, best progress, and what is in the gripper."""
    (known,) = facts(scenes, [task])
    holding = language.answers(Question('holding', ''), known)[0]
    return known.subtasks[0], known.progress[0], holding


def test_another_block_in_the_gripper_is_put_down_first():
    scenes, task = scene('lift')
    other = int(np.flatnonzero(scenes.present[0])[1])
    scenes.held[0] = other
    assert told(scenes, task)[0] == f'put down the {COLOURS[other]} block'


@pytest.mark.parametrize(
    ('x', 'sure'), [(0.15, True), (0.185, False), (0.195, False), (0.21, True)]
)
def test_near_the_line_a_push_may_be_told_done_or_not(x, sure):
    scenes, task = scene('push', 'right')
    scenes.blocks[0, 0] = x, 0.0
    scenes.joints[0] = [x - 0.044, 0.0, 0.01, 0.0]
    (known,) = facts(scenes, [task])
    done = ('the red block was pushed to the right', 'nothing, the task is done')
    going = ('nothing yet', 'push the red block to the right')
    for said, kinds in ((known.progress, 0), (known.subtasks, 1)):
        assert said[0] == (done if x > 0.19 else going)[kinds]
        assert ({done[kinds], going[kinds]} <= set(said)) != sure


def test_while_the_fingers_close_a_block_may_be_told_grasped():
    scenes, task = scene('lift')
    for gripper, sure in ((0.9, True), (0.45, False)):
        scenes.joints[0] = [*scenes.blocks[0, 0], 0.008, gripper]
        (known,) = facts(scenes, [task])
        assert known.progress[0] == 'nothing yet'
        assert ('the red block was grasped' in known.progress) != sure
        assert ('lift the red block' in known.subtasks) != sure


def test_a_description_names_every_block_once():
    scenes, task = scene('push', 'right', seed=3)
    (known,) = facts(scenes, [task])
    question = Question('scene', '')
    best = language.answers(question, known)[0]
    assert [part.split()[0] for part in best.split(', ')] == list(known.places)
    assert right(question, known, f' {best}')
    assert not right(question, known, best.split(', ')[0])


def test_every_word_is_one_token(tokenizer):
    rng = np.random.default_rng(0)
    made = examples(rng, 60)
    known = facts(made.scenes, made.tasks)
    said = {task.text for task in all_tasks()}
    for one, kind in itertools.product(known, language.QUESTIONS):
        question = ask(rng, one, kind)
        said |= {question.prompt, *(f' {a}' for a in language.answers(question, one))}
    for text in said:
        ids = tokenizer.encode(text, bos=False)
        assert tokenizer.decode(ids) == text
        assert len(ids) == len(re.findall(r'[A-Za-z]+|[^A-Za-z ]', text))


def test_the_prompt_is_short_and_foreign_words_survive(tokenizer):
    prompt = 'Task: pick up the red block, State: 12 -1 255 3;\nAction: '
    assert len(tokenizer.encode(prompt, bos=True)) == 1 + 1 + 5 + 1 + 4 + 1
    text = 'Grüße, Zebra 1234!'
    assert tokenizer.decode(tokenizer.encode(text, bos=False)) == text


def test_sides_and_colours_are_all_used():
    texts = ' '.join(task.text for task in all_tasks())
    assert all(word in texts for word in (*COLOURS, *SIDES))
