"""The node and oxygen_replay give the same chunks for the same frames."""

import json
import time

import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from ros_harness import BASE, WRIST, NodeProcess, poll, stamp
from rosbags.rosbag2 import Reader

from oxygen_ros.demo.recording import write_recording
from oxygen_ros.replay import cli

SECONDS = 0.5  # of recording: 15 frames
SETTLE_S = 0.1  # joints must be there before the picture that completes a frame


@pytest.fixture
def node(tmp_path, tiny_checkpoint, peer):
    process = NodeProcess(
        tmp_path,
        checkpoint=str(tiny_checkpoint),
        robot='demo',
        autostart=True,
        seed=5,
        status_period_s=0.1,
    )
    peer.wait_for_state('waiting')
    yield process
    process.kill()


def play(peer, recording):
    """Send the recorded messages one by one, with their own stamps; every frame is awaited."""
    publishers = {
        BASE: peer.base,
        WRIST: peer.wrist,
        '/joint_states': peer.joints,
        '/instruction': peer.instruction,
    }
    with Reader(recording) as reader:
        for connection, _, data in reader.messages():
            publisher = publishers.get(connection.topic)
            if publisher is None:
                continue
            message = deserialize_message(bytes(data), publisher.msg_type)
            if connection.topic == WRIST:
                time.sleep(SETTLE_S)
            publisher.publish(message)
            if connection.topic == '/instruction':
                poll(lambda: 'instruction' not in peer.status().detail, 20, lambda: 'it')
            if connection.topic == WRIST:
                expected = stamp(message.header.stamp)
                poll(lambda: peer.answered(expected), 30, lambda: f'frame {expected}')  # noqa: B023


def test_the_same_frames_give_the_same_chunks_live_and_in_replay(node, peer, tmp_path):
    recording = write_recording(tmp_path / 'bag', SECONDS)
    play(peer, recording)
    live = {stamp(c.header.stamp): np.reshape(c.actions, (c.horizon, -1)) for c in peer.chunks()}
    report = tmp_path / 'report.json'
    assert cli.main([str(recording), '--params', str(node.params), '--json', str(report)]) == 0
    frames = json.loads(report.read_text())['frames']
    replayed = {f['stamp_ns']: np.array(f['actions'], np.float32) for f in frames}
    assert len(replayed) == 15
    assert set(live) == set(replayed)
    for stamp_ns, actions in replayed.items():
        np.testing.assert_array_equal(live[stamp_ns].astype(np.float32), actions)
