"""The real node, with parts that are slow, wrong, break or stand still, by the first argument.

JSON: sleep_s, seconds that the first, second, … frame takes longer, the last for all that follow;
slope, actions that are this times the moment in s (from the first frame on) at which their row is
due; values, frame number (as text) -> row -> value of the last joint; breaks_after, a step of
words breaks when more chunks than this have been given; fails, first and last of the published
steps that raise; step, image, loaded: a file, as long as which exists a step, an image or the
news of a load stands still.
"""

import dataclasses
import itertools
import json
import math
import os
import sys
import time

import numpy as np

from oxygen_ros.policy import Policy
from oxygen_ros.ros import inputs, node
from oxygen_ros.ros.outputs import Outputs
from oxygen_ros.types import ActionChunk

STEP_S = 0.05


def changed(chunk, faults, first_ns):
    actions = chunk.actions.copy()
    if 'slope' in faults:
        due_s = (chunk.stamp_ns - first_ns) / 1e9 + STEP_S * np.arange(len(actions))
        actions[:] = (faults['slope'] * due_s)[:, None]
    for row, value in faults.get('values', {}).get(str(chunk.frame), {}).items():
        actions[int(row), -1] = value
    return dataclasses.replace(chunk, actions=actions)


def stand_still(what, faults):
    file = faults.get(what, '')
    if os.path.exists(file):
        print(f'{what}: stands still', flush=True)
    while os.path.exists(file):
        time.sleep(0.005)


def spoil_policy(faults):
    """Let every policy give what the faults say."""
    step, began = Policy.step, []

    def spoilt(policy):
        if len(began) > faults.get('breaks_after', math.inf) and policy.stats.rows_in_use:
            raise RuntimeError('an illegal memory access')
        stand_still('step', faults)
        outputs = step(policy)
        chunks = [o for o in outputs if isinstance(o, ActionChunk)]
        for chunk in chunks:
            began.append(chunk.stamp_ns)
            sleeps = faults.get('sleep_s', [0])
            time.sleep(sleeps[min(len(began), len(sleeps)) - 1])
        return [changed(o, faults, began[0]) if o in chunks else o for o in outputs]

    Policy.step = spoilt


def spoil_outputs(faults):
    """Let some of the published steps raise."""
    publish, numbers = Outputs.step, itertools.count(1)
    first, last = faults.get('fails', (0, 0))

    def spoilt(outputs, due):
        if first <= next(numbers) <= last:
            raise RuntimeError('no room in the history')
        publish(outputs, due)

    Outputs.step = spoilt


def hold_up(faults):
    """Let images and the news of a load stand still."""
    to_rgb, on_event = inputs.image_to_rgb, node.OxygenNode._on_event

    def image(message):
        stand_still('image', faults)
        return to_rgb(message)

    def event(self, session, kind, text):
        if kind == 'loaded':
            stand_still('loaded', faults)
        on_event(self, session, kind, text)

    inputs.image_to_rgb, node.OxygenNode._on_event = image, event


if __name__ == '__main__':
    given = json.loads(sys.argv.pop(1))
    for spoil in (spoil_policy, spoil_outputs, hold_up):
        spoil(given)
    sys.exit(node.main())
