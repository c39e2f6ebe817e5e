"""use_sim_time: everything follows /clock, which may go back."""

import threading

import pytest
from ros_harness import NodeProcess, Peer, poll, stamp
from rosgraph_msgs.msg import Clock

from oxygen_ros.ros.messages import time_msg

NAME = 'oxygen_sim'
SECOND = 1_000_000_000


class SimClock:
    """/clock at half the speed of the wall, from where it is set to; silent until then."""

    def __init__(self, peer):
        self.now_ns = 0
        self.jump_to_ns = None
        self._publisher = peer.node.create_publisher(Clock, '/clock', 1)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self):
        self._end.set()
        self._thread.join()

    def _run(self):
        while not self._end.wait(0.02):
            to_ns, self.jump_to_ns = self.jump_to_ns, None
            if to_ns or self.now_ns:
                self.now_ns = to_ns or self.now_ns + SECOND // 100
                self._publisher.publish(Clock(clock=time_msg(self.now_ns)))


@pytest.fixture
def sim(tmp_path, tiny_checkpoint):
    peer = Peer(node_name=NAME)
    clock = SimClock(peer)
    peer.now_ns = lambda: clock.now_ns
    process = NodeProcess(
        tmp_path,
        node_name=NAME,
        checkpoint=str(tiny_checkpoint),
        robot='demo',
        autostart=True,
        use_sim_time=True,
        status_period_s=0.1,
        default_instruction='go on',
    )
    yield process, peer, clock
    process.kill()
    clock.close()
    peer.close()


def test_c23_everything_follows_the_clock_back_from_100_s_to_10_s(sim):
    node, peer, clock = sim
    peer.wait_for_detail('nothing on /clock yet')
    clock.jump_to_ns = 100 * SECOND
    poll(lambda: peer.status().header.stamp.sec >= 100, 60, lambda: 'the clock')
    asked = peer.ask_long()
    steps = peer.heard[f'{NAME}/action']
    peer.frames_until(
        lambda: (
            any(len(peer.answer(name)) > 1 for name in asked)
            and steps
            and peer.status().state == 'serving'
        ),
        what='words and actions',
    )
    assert 100 <= peer.status().header.stamp.sec < 200

    clock.jump_to_ns = 10 * SECOND
    poll(lambda: len(peer.ends(asked)) == 4, 60, lambda: f'the end of the old ones, {node.log}')
    assert 'cancelled' in peer.ends(asked)
    poll(lambda: peer.status().header.stamp.sec < 100, 60, lambda: 'the jump')
    last = [step for step in steps if stamp(step.header.stamp) >= 100 * SECOND][-1]

    def held():
        return [step for step in list(steps) if stamp(step.header.stamp) < 100 * SECOND]

    poll(lambda: len(held()) > 20, 60, lambda: f'the last step held, {peer.status()}')
    assert all(step.hold and step.values == last.values for step in held())
    assert 'holding' in peer.status().detail
    for heard in (peer.chunks(), steps):
        heard.clear()
    peer.frames_until(lambda: len(peer.chunks()) > 3 and len(steps) > 10, what='the new time')
    for chunk in peer.chunks():
        times = (chunk.header.stamp, chunk.inference_begin, chunk.inference_end)
        assert all(10 * SECOND <= stamp(t) < 100 * SECOND for t in times)
    assert all(stamp(step.header.stamp) < 100 * SECOND for step in steps)
    assert node.log.count('went back') == 1
    assert node.stop() == 0, node.log
    assert 'Traceback' not in node.log
