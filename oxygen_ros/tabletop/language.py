"""What is true of a scene, in words: questions, their answers, and which answers count as right.

Answers name places coarsely. Near the border of two names both are right, and near the end of a
subtask the next one too: Facts holds what is true within a small margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxygen_ros.tabletop.tasks import COLOURS, SIDES, Task
from oxygen_ros.tabletop.world import (
    HELD_GAP,
    LIFTED_Z,
    LOW_Z,
    NOTHING,
    OPENED,
    PUSH_WALL,
    Scenes,
    done,
)

COLUMN_X, ROW_Y = 0.07, -0.05  # borders of left, middle and right, and of front and back, in m
MARGIN = 0.012  # m
NEAR = 0.03  # m: over a block or a tray

# Kind of question -> wordings; the kinds are also what language is scored by.
QUESTIONS = {
    'subtask': (
        'What is the next step?',
        'What is the next subtask?',
        'What are you doing now?',
        'What do you do next?',
    ),
    'progress': (
        'What has been done so far?',
        'What have you done so far?',
        'How far are you?',
    ),
    'where': (
        'Where is the {c} block?',
        'Where can I find the {c} block?',
        'Tell me where the {c} block is.',
    ),
    'scene': ('What is on the table?', 'Describe the scene.', 'What do you see?'),
    'holding': ('What is in the gripper?', 'What are you holding?'),
    'tray': ('What is on the {s} tray?', 'Is there a block on the {s} tray?'),
}

# Every word of the answers below, for the tokenizer.
EVERY_WORD = (
    'at the front back left middle right in gripper on tray put down block nothing task is done '
    'go beside push to lift carry release grasp was lifted pushed grasped yet no and'
)


@dataclass(frozen=True)
class Facts:
    """What holds in one scene for one task.

    places: colour -> names of its place that are right, the best first. subtasks, progress:
    statements that are right, the best first. held: a colour or ''.
    trays: side -> colours on it.
    """

    places: dict[str, tuple[str, ...]]
    subtasks: tuple[str, ...]
    progress: tuple[str, ...]
    held: str
    trays: dict[str, tuple[str, ...]]


def facts(scenes: Scenes, tasks: Sequence[Task]) -> list[Facts]:
    """The facts of every scene."""
    finished = done(scenes, tasks)
    return [_facts(scenes, row, task, bool(finished[row])) for row, task in enumerate(tasks)]


def _facts(scenes: Scenes, row: int, task: Task, finished: bool) -> Facts:
    held = '' if scenes.held[row] == NOTHING else COLOURS[scenes.held[row]]
    places: dict[str, tuple[str, ...]] = {}
    trays: dict[str, tuple[str, ...]] = {side: () for side in SIDES}
    for index in np.flatnonzero(scenes.present[row]):
        colour = COLOURS[index]
        if colour == held:
            places[colour] = ('in the gripper',)
            continue
        spot = scenes.blocks[row, index]
        on = [s for i, s in enumerate(SIDES) if _on_tray(scenes, row, spot, i)]
        for side in on:
            trays[side] += (colour,)
        places[colour] = (f'on the {on[0]} tray',) if on else regions(spot)
    told = [(finished, held)]
    if _turning(scenes, row, task, held):  # it will be the other in a moment, or was just now
        changed = held or task.kind == 'push'
        told.append((not finished, held) if changed else (False, task.colour))
    steps = [_subtasks(scenes, row, task, *state) for state in told]
    progress = [_progress(task, *state) for state in told]
    return Facts(places, sum(steps, ()), sum(progress, ()), held, trays)


def _turning(scenes: Scenes, row: int, task: Task, held: str) -> bool:
    """Whether the goal, or the grasp of the task's block, is within a moment or a margin."""
    x, _ = scenes.blocks[row, COLOURS.index(task.colour)]
    if task.kind == 'push':
        return abs(abs(float(x)) - PUSH_WALL) < MARGIN
    _, _, z, gripper = scenes.joints[row]
    if held == task.colour:
        return task.kind == 'lift' and abs(z - LIFTED_Z) < MARGIN
    over = scenes.joints[row, :2] - scenes.blocks[row, COLOURS.index(task.colour)]
    return not held and z < LOW_Z and HELD_GAP < gripper < OPENED and abs(over).max() < NEAR


def _on_tray(scenes: Scenes, row: int, spot: np.ndarray, side: int) -> bool:
    return bool(scenes.take([row]).on_tray(spot[None], np.array([side]))[0])


def regions(spot: np.ndarray) -> tuple[str, ...]:
    """Names of the place of x and y on the table, the best first."""
    columns = _named(float(spot[0]), (-COLUMN_X, COLUMN_X), ('left', 'middle', 'right'))
    rows = _named(float(spot[1]), (ROW_Y,), ('front', 'back'))
    return tuple(f'at the {depth} {across}' for depth in rows for across in columns)


def _named(value: float, borders: tuple[float, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    best = names[sum(value > border for border in borders)]
    close = {names[sum(value + m > b for b in borders)] for m in (-MARGIN, MARGIN)} - {best}
    return (best, *sorted(close))


def _subtasks(scenes: Scenes, row: int, task: Task, finished: bool, held: str) -> tuple[str, ...]:
    block = f'the {task.colour} block'
    joints = scenes.joints[row]
    if held and (held != task.colour or task.kind == 'push'):
        return (f'put down the {held} block',)
    if finished:
        return ('nothing, the task is done',)
    if task.kind == 'push':
        first, then = f'go beside {block}', f'push {block} to the {task.side}'
        sign = 1 if task.side == 'right' else -1
        own = scenes.blocks[row, COLOURS.index(task.colour)]
        behind = own - np.array([sign * 0.044, 0.0])
        return _in_turn(first, then, np.abs(joints[:2] - behind).max(), 0.02)
    if held:
        if task.kind == 'lift':
            return (f'lift {block}',)
        tray = scenes.trays[row, SIDES.index(task.side)]
        first, then = f'carry {block} to the {task.side} tray', f'release {block}'
        return _in_turn(first, then, float(np.linalg.norm(joints[:2] - tray)), NEAR)
    own = scenes.blocks[row, COLOURS.index(task.colour)]
    return _in_turn(
        f'go to {block}', f'grasp {block}', float(np.abs(joints[:2] - own).max()), NEAR
    )


def _in_turn(first: str, then: str, distance: float, border: float) -> tuple[str, ...]:
    """The first above the border, then the other; both near it."""
    names = (first, then) if distance > border else (then, first)
    return names if abs(distance - border) < MARGIN else names[:1]


def _progress(task: Task, finished: bool, held: str) -> tuple[str, ...]:
    block = f'the {task.colour} block'
    if finished:
        ends = {
            'put': f'{block} was put on the {task.side} tray',
            'lift': f'{block} was lifted',
            'push': f'{block} was pushed to the {task.side}',
        }
        return (ends[task.kind],)
    if held == task.colour and task.kind != 'push':
        return (f'{block} was grasped',)
    return ('nothing yet',)


@dataclass(frozen=True)
class Question:
    """kind: a key of QUESTIONS; subject: the colour or side it is about, or ''."""

    kind: str
    prompt: str
    subject: str = ''


def ask(rng: np.random.Generator, known: Facts, kind: str) -> Question:
    """A question of a kind about a scene."""
    wordings = QUESTIONS[kind]
    prompt = wordings[rng.integers(len(wordings))]
    if kind == 'where':
        colour = list(known.places)[rng.integers(len(known.places))]
        return Question(kind, prompt.format(c=colour), colour)
    if kind == 'tray':
        side = SIDES[rng.integers(len(SIDES))]
        return Question(kind, prompt.format(s=side), side)
    return Question(kind, prompt)


def answers(question: Question, known: Facts) -> tuple[str, ...]:
    """What may be answered, the best first."""
    kind, subject = question.kind, question.subject
    if kind == 'subtask':
        return known.subtasks
    if kind == 'progress':
        return known.progress
    if kind == 'where':
        return known.places[subject]
    if kind == 'holding':
        return (f'the {known.held} block' if known.held else 'nothing',)
    if kind == 'tray':
        return (_listed(known.trays[subject]),)
    return _scenes(known)


def _listed(colours: Sequence[str]) -> str:
    return ' and '.join(f'the {colour} block' for colour in colours) or 'no block'


def _scenes(known: Facts) -> tuple[str, ...]:
    """Every right description: one name for each block, in the order of the colours."""
    said = ['']
    for colour, names in known.places.items():
        said = [
            f'{before}{", " if before else ""}{colour} {name}' for before in said for name in names
        ]
    return tuple(said)


def right(question: Question, known: Facts, answer: str) -> bool:
    """Whether an answer is one of the right ones."""
    return answer.strip() in answers(question, known)


def best(question: Question, known: Facts, answer: str) -> bool:
    """Whether an answer is the first of them: right without any margin."""
    return answer.strip() == answers(question, known)[0]
