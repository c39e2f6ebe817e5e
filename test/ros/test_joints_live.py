"""The node between a robot whose gripper counts backwards and a model that must not notice."""

import numpy as np
import pytest
import yaml
from ros_harness import (
    HEIGHT,
    JOINTS,
    WIDTH,
    NodeProcess,
    Peer,
    image,
    joint_state,
    jpeg,
    poll,
    stamp,
)

from oxygen_ros.policy import Policy
from oxygen_ros.ros.contract import contract_path
from oxygen_ros.ros.conversions import compressed_to_rgb
from oxygen_ros.types import Observation

# Apart from the shared node.
NAME = 'oxygen_units'
# Open at 0.0 and closed at 0.8 on the robot, 1 and 0 in the model.
UNITS = {'gripper': {'offset': 0.8, 'scale': 0.8, 'invert': True}}


@pytest.fixture
def robot(tmp_path):
    """A contract in which only the gripper's units differ."""
    tree = yaml.safe_load(contract_path('demo').read_text())
    file = tmp_path / 'robot.yaml'
    file.write_text(yaml.safe_dump({**tree, 'joints': UNITS}))
    return file


@pytest.fixture
def client():
    peer = Peer(node_name=NAME)
    yield peer
    peer.close()


def test_c37_state_chunk_and_stream_are_in_robot_units(tmp_path, tiny_checkpoint, robot, client):
    node = NodeProcess(tmp_path, node_name=NAME, checkpoint=str(tiny_checkpoint),
                       robot=str(robot), autostart=True, default_instruction='close it',
                       status_period_s=0.1)  # fmt: skip
    try:
        client.wait_for_state('waiting')
        stamps = []

        def answered():
            stamps.append(client.now_ns())
            positions = dict(zip(JOINTS, [0.1, -0.2, 0.3, 0.0, 0.2, 0.1, 0.6], strict=True))
            names = JOINTS[::-1]
            client.joints.publish(joint_state(stamps[-1], names, [positions[n] for n in names]))
            client.base.publish(image(stamps[-1], 90))
            client.wrist.publish(jpeg(stamps[-1], 120))
            poll(lambda: client.answered(stamps[-1]) or client.now_ns() - stamps[-1] > 5e8, 5,
                 lambda: 'half a second')  # fmt: skip
            return client.chunks()

        chunk = poll(answered, 60, lambda: f'a chunk, {client.status()}')[-1]
        steps = poll(lambda: client.heard[f'{NAME}/action'], 60, lambda: 'an action')
        assert node.stop() == 0, node.log
    finally:
        node.kill()
    model = Policy.from_checkpoint(tiny_checkpoint).act(Observation(
        images={'base_0_rgb': np.full((HEIGHT, WIDTH, 3), 90, np.uint8),
                'left_wrist_0_rgb': compressed_to_rgb(jpeg(0, 120))},
        state=np.array([0.1, -0.2, 0.3, 0.0, 0.2, 0.1, 0.25], np.float32),  # 0.6 is 1/4 open
        instruction='close it',
        stamp_ns=stamp(chunk.header.stamp),
    )).actions  # fmt: skip
    actions = np.reshape(chunk.actions, model.shape).astype(np.float32)
    np.testing.assert_array_equal(actions[:, :6], model[:, :6])
    np.testing.assert_allclose(actions[:, 6], 0.8 - 0.8 * model[:, 6], atol=1e-6)
    assert np.ptp(model[:, 6]) > 1e-3
    step = next(s for s in steps if stamp(s.source_stamp) == stamp(chunk.header.stamp))
    assert list(step.values) == list(chunk.actions[7 * step.index : 7 * step.index + 7])
