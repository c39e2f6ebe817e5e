"""The real node, with a policy that is slow or whose actions are made up, by the first argument.

JSON: sleep_s, seconds that the first, second, … frame takes longer, the last for all that follow;
slope, actions that are this times the moment in s (from the first frame on) at which their row is
due; values, frame number (as text) -> row -> value of the last joint.
"""

import dataclasses
import json
import sys
import time

import numpy as np

from oxygen_ros.policy import Policy
from oxygen_ros.ros import node
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


def spoil(faults):
    """Let every policy give what the faults say."""
    step, began = Policy.step, []

    def spoilt(policy):
        outputs = step(policy)
        chunks = [o for o in outputs if isinstance(o, ActionChunk)]
        for chunk in chunks:
            began.append(chunk.stamp_ns)
            sleeps = faults.get('sleep_s', [0])
            time.sleep(sleeps[min(len(began), len(sleeps)) - 1])
        return [changed(o, faults, began[0]) if o in chunks else o for o in outputs]

    Policy.step = spoilt


if __name__ == '__main__':
    spoil(json.loads(sys.argv.pop(1)))
    sys.exit(node.main())
