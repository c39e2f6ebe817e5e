"""Cameras as they are: rates and offsets of their own, a wrong clock, more than can be used."""

import itertools
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from robot_peer import THIRD, Robot, write_contract
from ros_harness import (
    BASE,
    JOINTS,
    WRIST,
    NodeProcess,
    Peer,
    image,
    joint_state,
    jpeg,
    poll,
    stamp,
)

from oxygen_ros.ros import qos

NAME = 'oxygen_cameras'
SOURCE = Path(__file__).resolve().parents[2] / 'tools' / 'robot_source.py'
CAMERA_HZ = 30


class Unsynchronised(Robot):
    """Two cameras at 30 Hz and one at 15, each 8 ms later than the one before."""

    ahead_ns = 0  # of the third one's clock

    def run(self):
        begin = time.monotonic()
        due = {BASE: begin, WRIST: begin + 0.008, THIRD: begin + 0.016}
        while not self.over.wait(max(min(due.values()) - time.monotonic(), 0)):
            camera = min(due, key=due.get)
            due[camera] += 1 / 15 if camera == THIRD else 1 / 30
            now = self.now_ns()
            if camera == BASE:
                self.joints.publish(joint_state(now))
                self.base.publish(image(now))
            elif camera == WRIST:
                self.wrist.publish(jpeg(now))
            else:
                self.third.publish(image(now + self.ahead_ns))


@pytest.fixture
def shared_memory(monkeypatch):
    """A segment in which these pictures have room, for the processes that are started."""
    for name in ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE'):
        monkeypatch.setenv(name, str(SOURCE.parents[1] / 'config' / 'fastdds_shm.xml'))


@pytest.fixture
def start(tmp_path, tiny_checkpoint, shared_memory):
    processes = []

    def begin(contract, **parameters):
        processes.append(
            NodeProcess(
                tmp_path,
                node_name=NAME,
                checkpoint=str(tiny_checkpoint),
                robot=contract,
                default_instruction='put the red block on the tray',
                status_period_s=0.1,
                **parameters,
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()


def silent(statuses):
    """Those that neither show frames nor say what is missing."""
    return [s for s in statuses if not s.frames_per_s and not s.detail]


def test_c15_cameras_of_three_rhythms_and_a_clock_10_s_ahead_never_end_it_silently(
    start, tmp_path
):
    robot = Unsynchronised(NAME)
    try:
        node = start(write_contract(tmp_path), autostart=True)
        robot.wait_for_motion()
        statuses = robot.heard[f'{NAME}/status']
        statuses.clear()
        before = len(robot.chunks())
        poll(lambda: len(robot.chunks()) > before + 30, 60, lambda: f'chunks, {robot.status()}')
        assert not silent(statuses)

        robot.ahead_ns = 10_000_000_000
        robot.wait_for_detail('behind right_wrist_0_rgb (sync_tolerance_ms 50)')
        robot.wait_for_detail('s ahead of the clock of the node')  # looked at once a second
        poll(lambda: robot.steps()[-1].hold, 60, lambda: 'the hold')
        statuses.clear()
        robot.chunks().clear()
        poll(lambda: len(statuses) > 20, 60, lambda: 'statuses')
        assert not robot.chunks() and not silent(statuses)
        for status in list(statuses):
            assert status.state == 'waiting'
            assert 'its newest stamp is 10.' in status.detail or '9.9' in status.detail
        said = 'camera right_wrist_0_rgb on cameras/third/image_raw: its stamps are'
        assert node.log.count(said.replace('cameras', '/cameras')) == 1

        robot.ahead_ns = 0
        robot.wait_for_motion()
        poll(lambda: robot.status().detail == '', 60, lambda: f'no complaint, {robot.status()}')
    finally:
        robot.close()


@pytest.fixture
def big_cameras(tmp_path, shared_memory):
    """A contract of three raw cameras, and a process that publishes 1280x720 on them at 30 Hz."""
    topics = [BASE, '/cameras/wrist/image_raw', THIRD]
    tree = yaml.safe_load(Path(write_contract(tmp_path)).read_text())
    tree['cameras'] = {
        slot: {'topic': topic} for slot, topic in zip(tree['cameras'], topics, strict=True)
    }
    contract = tmp_path / 'raw.yaml'
    contract.write_text(yaml.safe_dump(tree))
    command = [sys.executable, str(SOURCE), '--size', '1280', '720', '--rate', str(CAMERA_HZ)]
    robot = subprocess.Popen([*command, '--cameras', *topics, '--joints', *JOINTS])
    try:
        yield str(contract)
        robot.send_signal(signal.SIGINT)
        assert robot.wait(60) == 0
    finally:
        robot.kill()


@pytest.fixture
def listener():
    """A peer that publishes nothing the robot does."""
    peer = Peer(NAME)
    for publisher in (peer.base, peer.joints):
        peer.node.destroy_publisher(publisher)
    yield peer
    peer.close()


def test_c18_big_pictures_are_dropped_when_they_are_too_many_and_never_queued(
    start, big_cameras, listener
):
    """An engine of 200 ms and more, to which 90 pictures of 2.8 MB come each second."""
    health = listener.hear('/diagnostics', DiagnosticArray, qos.DIAGNOSTICS)
    node = start(big_cameras, autostart=True, faults={'sleep_s': [0.2]})
    poll(lambda: len(listener.chunks()) > 30, 90, lambda: f'chunks, {listener.status()}')
    chunks = listener.chunks()[5:]
    begun = [stamp(chunk.inference_begin) for chunk in chunks]
    ages = [at - stamp(chunk.header.stamp) for at, chunk in zip(begun, chunks, strict=True)]
    frame_ns = statistics.median(b - a for a, b in itertools.pairwise(begun))
    # A queue would make each older than the one before: by more than half of the time of a frame.
    third = len(ages) // 3
    older_ns = statistics.median(ages[-third:]) - statistics.median(ages[:third])
    assert older_ns < third * frame_ns / 2

    def accounted():
        """Every picture that was heard, and most of the frames were dropped."""
        parts = {entry.name.split(': ')[1]: entry for entry in health[-1].status}
        values = {name: {p.key: p.value for p in parts[name].values} for name in parts}
        heard = sum(int(v['messages']) for name, v in values.items() if name.startswith('camera'))
        drops = {reason: int(count) for reason, count in values['drops'].items()}
        others = ('chunk', 'frame')
        of_images = [count for what, count in drops.items() if not what.startswith(others)]
        replaced, used = drops['frame_replaced'], drops['images used']
        frames = int(values['engine']['frames'])
        waiting = used // 3 - replaced - frames  # one waits, one is being taken
        return heard == sum(of_images) and 0 <= waiting <= 2 and replaced > frames

    poll(accounted, 60, lambda: f'books that agree, {health[-1].status}')
    assert node.stop() == 0, node.log
