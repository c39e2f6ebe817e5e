"""What the robot can be told to do, in many wordings; some wordings are kept from training."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

COLOURS = ('red', 'green', 'blue', 'yellow', 'purple')
SIDES = ('left', 'right')
KINDS = ('put', 'lift', 'push')

_WORDINGS = {
    'put': (
        'put the {c} block on the {s} tray',
        'place the {c} block on the {s} tray',
        'move the {c} block to the {s} tray',
        'bring the {c} block to the {s} tray',
        'pick the {c} block and put it on the {s} tray',
        'the {c} block goes on the {s} tray',
        'take the {c} block and place it on the tray on the {s}',
        'please put the {c} block on the tray on the {s}',
    ),
    'lift': (
        'pick up the {c} block',
        'lift the {c} block',
        'lift up the {c} block',
        'grasp the {c} block and lift it',
        'take the {c} block',
        'please pick up the {c} block',
        'hold the {c} block up',
    ),
    'push': (
        'push the {c} block to the {s}',
        'push the {c} block to the {s} edge',
        'slide the {c} block to the {s}',
        'slide the {c} block to the {s} edge of the table',
        'shove the {c} block to the {s}',
        'please push the {c} block to the {s}',
    ),
}
_KEPT_BACK = 5  # one wording in so many is for evaluation alone


@dataclass(frozen=True)
class Task:
    """kind: one of KINDS; side: of the tray or the edge, 'left' for a lift too; text: as told."""

    kind: str
    colour: str
    side: str
    text: str


def all_tasks() -> tuple[Task, ...]:
    """Every task in every wording."""
    tasks = {}
    for kind, wordings in _WORDINGS.items():
        for wording in wordings:
            for colour in COLOURS:
                for side in SIDES if '{s}' in wording else SIDES[:1]:
                    text = wording.format(c=colour, s=side)
                    tasks[text] = Task(kind, colour, side, text)
    return tuple(tasks.values())


def kept_back(text: str) -> bool:
    """True for a wording that training never sees, for this colour and side."""
    return zlib.crc32(text.encode()) % _KEPT_BACK == 0


TRAINING = tuple(task for task in all_tasks() if not kept_back(task.text))
UNSEEN = tuple(task for task in all_tasks() if kept_back(task.text))


def draw(rng: np.random.Generator, tasks: tuple[Task, ...], count: int) -> list[Task]:
    """Tasks with every kind as often as the others."""
    by_kind = [[task for task in tasks if task.kind == kind] for kind in KINDS]
    drawn = []
    for _ in range(count):
        own = by_kind[rng.integers(len(KINDS))]
        drawn.append(own[rng.integers(len(own))])
    return drawn
