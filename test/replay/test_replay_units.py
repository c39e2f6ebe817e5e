"""Replay converts joint units as the node does: the model sees its own, the report the robot's."""

import numpy as np
import yaml
from bags import STATE, joint_state, session, write_bag

from oxygen_ros.ros.contract import contract_path

# Open at 0.0 and closed at 0.8 on the robot, 1 and 0 in the model.
UNITS = {'gripper': {'offset': 0.8, 'scale': 0.8, 'invert': True}}


def with_gripper(value):
    """A session whose gripper stands at value."""
    vector = [*np.linspace(-0.4, 0.4, 6), value]
    lines = [
        (topic, at, joint_state(at, values=vector) if topic == STATE else message)
        for topic, at, message in session(frames=2)
    ]
    return lines


def actions(report):
    return np.array([frame['actions'] for frame in report['frames']], np.float32)


def test_c37_units_in_replay(replay, tmp_path):
    tree = yaml.safe_load(contract_path('demo').read_text())
    robot = tmp_path / 'robot.yaml'
    robot.write_text(yaml.safe_dump({**tree, 'joints': UNITS}))
    a_quarter_open = write_bag(tmp_path / 'robot', with_gripper(0.6))
    as_the_model_has_it = write_bag(tmp_path / 'model', with_gripper(0.25))
    mapped = actions(replay(a_quarter_open, '--robot', str(robot)))
    model = actions(replay(as_the_model_has_it))
    np.testing.assert_array_equal(mapped[..., :6], model[..., :6])
    np.testing.assert_allclose(mapped[..., 6], 0.8 - 0.8 * model[..., 6], atol=1e-6)
    unmapped = actions(replay(a_quarter_open))
    assert not np.array_equal(unmapped[..., :6], model[..., :6])
