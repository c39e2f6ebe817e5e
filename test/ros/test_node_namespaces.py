"""C64: several robots, one parameter file, no cross-talk. A process for each."""

import subprocess
import sys

import pytest
import yaml
from ros_harness import Peer, stamp
from std_srvs.srv import Trigger

from oxygen_ros import msg


class Robot:
    """A node in a namespace, and the peer that is this robot."""

    def __init__(self, name, params, log):
        command = [sys.executable, '-m', 'oxygen_ros.ros.node', '--ros-args']
        for file in params:
            command += ['--params-file', str(file)]
        command += ['-r', f'__ns:=/{name}']
        self.log = log
        with open(log, 'wb') as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        self.peer = Peer(namespace=f'/{name}')

    def close(self):
        self.peer.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def robots(tmp_path, tiny_checkpoint):
    """Two robots of one file, in which the second has a seed of its own."""
    common = {
        'checkpoint': str(tiny_checkpoint),
        'robot': 'demo',
        'autostart': True,
        'status_period_s': 0.1,
        'cpu_threads': 1,
        'default_instruction': 'go on',
    }
    params = tmp_path / 'params.yaml'
    sections = {
        '/**': {'ros__parameters': common},
        '/robot2/oxygen': {'ros__parameters': {'seed': 7}},
    }
    params.write_text(yaml.safe_dump(sections))
    by_name = tmp_path / 'by_name.yaml'  # ROS passes over this one, in silence
    by_name.write_text(yaml.safe_dump({'oxygen': {'ros__parameters': {'seed': 9}}}))
    names = ('robot1', 'robot2')
    pair = [Robot(name, (params, by_name), tmp_path / f'{name}.log') for name in names]
    yield pair
    for robot in pair:
        robot.close()


def effective(peer, name):
    return {pair.key: pair.value for pair in peer.status().effective}.get(name)


def test_two_robots_of_one_file_do_not_hear_each_other(robots):
    first, second = (robot.peer for robot in robots)
    for peer in (first, second):
        peer.wait_for_state('waiting')
    assert (effective(first, 'seed'), effective(second, 'seed')) == ('0', '7')
    first.request.publish(msg.LanguageRequest(id='mine', prompt='What is next?', max_tokens=4))
    first.frames_until(lambda: len(first.chunks()) > 3 and first.ended('mine'), what='answers')
    assert second.status().frames == 0 and second.status().requests == 0
    assert not second.chunks() and not second.answer('mine') and not second.ended('mine')
    second.frames_until(lambda: len(second.chunks()) > 1, what='chunks of the second')
    for robot in robots:
        log = robot.log.read_text()
        assert log.count('by_name.yaml has nothing for /robot') == 1
        assert 'activate: done' in log and 'Traceback' not in log
    assert {(f'oxygen{part}', f'/robot{n}') for part in ('', '_emergency') for n in (1, 2)} <= set(
        first.node.get_node_names_and_namespaces()
    )
    assert first.call(Trigger, 'oxygen/stop', Trigger.Request()).success
    first.wait_for_state('stopped')
    assert second.call(Trigger, 'oxygen/resume', Trigger.Request()).message == 'was not stopped'
    for peer in (first, second):
        assert {stamp(chunk.header.stamp) for chunk in peer.chunks()} <= set(peer.sent)
