"""The running robot against the contract, over Fast DDS from a process of its own."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from misfits import GOLDEN
from ros_harness import BASE, WRIST, poll, use_own_domain

from oxygen_ros.check import cli

HERE = Path(__file__).parent
IMAGE, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'

use_own_domain()


@pytest.fixture
def robot():
    """Start a robot with these faults, in a namespace; ended after the test."""
    with contextlib.ExitStack() as stack:

        def start(*faults, namespace='robot_a'):
            path = os.pathsep.join([str(HERE.parent / 'ros'), str(HERE.parents[1])])
            process = stack.enter_context(subprocess.Popen(
                [sys.executable, HERE / 'robot_process.py', namespace, *faults],
                stdout=subprocess.PIPE, text=True, env={**os.environ, 'PYTHONPATH': path},
            ))  # fmt: skip
            stack.callback(process.kill)
            assert process.stdout.readline() == 'ready\n'

        yield start


@pytest.fixture
def listen(check):
    """Findings once the misfits are the expected ones; discovery takes a moment."""

    def run(*misfits, namespace='robot_a'):
        answers = []

        def as_expected():
            answers.append(check('--live', '--seconds', '2', '--namespace', namespace))
            return answers[-1].verdicts('misfit') == set(misfits)

        poll(as_expected, 40, lambda: f'{misfits}, but {answers[-1].out}')
        assert answers[-1].code == (1 if misfits else 0)
        return answers[-1].findings

    return run


def test_a_sound_robot(robot, listen):
    """Best-effort cameras, permuted joints and a latched instruction are heard as they are."""
    robot()
    findings = listen()
    assert findings['camera base_0_rgb']['found'].startswith(f'/robot_a{BASE}: ')
    assert findings['camera base_0_rgb']['found'].endswith('/s, rgb8 64x48')
    assert findings['camera left_wrist_0_rgb']['found'].endswith('jpeg compressed bgr8 64x48')
    assert findings['joint state']['found'].endswith('/s, 8 joints')
    assert "'pick up the cup'" in findings['instruction']['found']


def test_raw_where_compressed_was_meant(robot, listen):
    robot('raw_wrist')
    finding = listen('camera left_wrist_0_rgb')['camera left_wrist_0_rgb']
    assert (finding['found'], finding['needed']) == (IMAGE, COMPRESSED)
    assert f'/robot_a{WRIST} is {IMAGE}: must be {COMPRESSED}' in finding['detail']
    assert 'set type: image in the contract' in finding['detail']


def test_quality_of_service_that_cannot_be_heard(robot, listen):
    """The node asks for reliable instructions: a best-effort one would never arrive."""
    robot('lossy_instruction')
    finding = listen('instruction')['instruction']
    assert finding['found'] == 'QoS that does not fit'
    for words in ('/robot_a/robot offers BEST_EFFORT and VOLATILE', 'asks for RELIABLE'):
        assert words in finding['detail']


def test_messages_that_cannot_be_used(robot, listen):
    robot('depth', 'few_joints', 'silent_wrist')
    findings = listen('camera base_0_rgb', 'camera left_wrist_0_rgb', 'joint state')
    assert '16UC1' in findings['camera base_0_rgb']['detail']
    assert 'brought no message in 2 s' in findings['camera left_wrist_0_rgb']['detail']
    assert 'lacks lift of the contract' in findings['joint state']['detail']


def test_a_robot_in_another_namespace_is_not_heard(robot, listen):
    robot(namespace='robot_b')
    missing = ('camera base_0_rgb', 'camera left_wrist_0_rgb', 'joint state')
    findings = listen(*missing)
    for name in missing:
        assert 'nobody publishes /robot_a/' in findings[name]['detail']
    assert findings['instruction']['verdict'] == 'note'
    listen(namespace='robot_b')


def test_a_namespace_that_cannot_be(capsys):
    arguments = ['--checkpoint', str(GOLDEN), '--robot', 'demo', '--live']
    assert cli.main([*arguments, '--namespace', 'not a name']) == 2
    assert 'ROS cannot be started here' in capsys.readouterr().err
