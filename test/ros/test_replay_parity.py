"""The live node and oxygen_replay answer the same messages with the same numbers and words.

Words that were asked for, and words that a task asks by itself.
"""

import json

import numpy as np
import pytest
import ros_harness as rig
from rclpy.serialization import serialize_message
from rosbags.rosbag2 import StoragePlugin, Writer
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.replay import cli
from oxygen_ros.replay.bag import REQUEST_TYPE, typestore

REQUEST = '/oxygen/language/request'
# Ends within the budget of its own frame, so that it is never pending when the next frame asks.
EVERY_OTHER = {'prompt': 'what now?', 'every_frames': 2, 'max_tokens': 4, 'max_pending': 1}
KIND = {
    rig.BASE: 'sensor_msgs/msg/Image',
    rig.WRIST: 'sensor_msgs/msg/CompressedImage',
    '/joint_states': 'sensor_msgs/msg/JointState',
    '/instruction': 'std_msgs/msg/String',
    REQUEST: REQUEST_TYPE,
}


class Recorder:
    """Publishes messages, and writes the same bytes to a bag."""

    def __init__(self, writer, peer):
        self._writer = writer
        self._peer = peer
        store = typestore()
        self._connections = {
            topic: writer.add_connection(topic, kind, typestore=store)
            for topic, kind in KIND.items()
        }
        self._publishers = {
            rig.BASE: peer.base, rig.WRIST: peer.wrist, '/joint_states': peer.joints,
            '/instruction': peer.instruction, REQUEST: peer.request,
        }  # fmt: skip

    def send(self, topic, message):
        self._publishers[topic].publish(message)
        data = serialize_message(message)
        self._writer.write(self._connections[topic], self._peer.now_ns(), data)

    def frame(self, shade):
        stamp_ns = self._peer.now_ns()
        joints = rig.joint_state(stamp_ns)
        self._peer.joints_first(lambda: self.send('/joint_states', joints))
        self.send(rig.BASE, rig.image(stamp_ns, shade))
        self.send(rig.WRIST, rig.jpeg(stamp_ns, 255 - shade))
        rig.poll(lambda: self._peer.answered(stamp_ns), 60, lambda: f'frame {shade}')
        return stamp_ns


@pytest.fixture
def node(tmp_path, tiny_checkpoint, peer):
    process = rig.NodeProcess(
        tmp_path,
        checkpoint=str(tiny_checkpoint),
        robot=rig.patient_contract(tmp_path),
        autostart=True,
        seed=5,
        status_period_s=0.1,
        tasks={'subtask': EVERY_OTHER},
    )
    peer.wait_for_state('waiting')
    yield process
    process.kill()


@pytest.fixture
def recorded(node, peer, tmp_path):
    """A bag and the stamps of its frames, which the node has answered."""
    path = tmp_path / 'bag'
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        recorder = Recorder(writer, peer)
        recorder.send('/instruction', String(data='stack the cups'))
        rig.poll(lambda: 'instruction' not in peer.status().detail, 60, lambda: 'the instruction')
        stamps = [recorder.frame(40)]
        rig.poll(lambda: peer.ended('subtask/0', 'subtask'), 60, lambda: 'what it asked itself')
        for k, task in enumerate(['memory', 'conversation']):
            asked = msg.LanguageRequest(id=f'q{k}', task=task, prompt='what now?', max_tokens=9)
            recorder.send(REQUEST, asked)
            rig.poll(lambda: peer.status().queued, 60, lambda: 'the request to be queued')
            stamps.append(recorder.frame(90 + 50 * k))
        for k, task in enumerate(['memory', 'conversation']):
            rig.poll(lambda k=k, task=task: peer.ended(f'q{k}', task), 60, lambda: 'the answers')
    return path, stamps


def test_same_chunks_and_words(recorded, node, peer, tmp_path):
    path, stamps = recorded
    out = tmp_path / 'report.json'
    assert cli.main([str(path), '--params', str(node.params), '--json', str(out)]) == 0
    report = json.loads(out.read_text())
    live = {rig.stamp(c.header.stamp): c for c in peer.chunks()}
    assert [frame['stamp_ns'] for frame in report['frames']] == stamps
    for frame in report['frames']:
        replayed = np.array(frame['actions'], np.float32)
        chunk = live[frame['stamp_ns']]
        assert chunk.horizon == len(replayed)
        assert np.array_equal(np.array(chunk.actions, np.float32), replayed.reshape(-1))
    answers = {answer['id']: answer for answer in report['requests']}
    asked_of = {'subtask/0': 0, 'q0': 1, 'q1': 2, 'subtask/1': 2}
    assert set(answers) == set(asked_of) and report['counters']['tasks_skipped'] == {}
    for name, answer in answers.items():
        heard = peer.answer(name, answer['task'])
        assert answer['stamp_ns'] == rig.stamp(heard[0].header.stamp) == stamps[asked_of[name]]
        assert answer['tokens'] == [t.token for t in heard if t.token >= 0] != []
        assert answer['text'] == ''.join(t.text for t in heard)
        assert answer['reason'] == heard[-1].reason
