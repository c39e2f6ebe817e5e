"""No two runs on one machine meet in a ROS domain."""

import os
import socket
import subprocess
import sys

import pytest

from oxygen_ros.ros import domain
from oxygen_ros.types import OxygenError

TAKE = 'import sys; from oxygen_ros.ros import domain; print(domain.own_domain(), flush=True)'


@pytest.fixture
def holders():
    """Start processes that take a domain and hold it until their stdin is closed."""
    processes = []

    def hold(folder):
        processes.append(
            subprocess.Popen(
                [sys.executable, '-c', f'{TAKE}; sys.stdin.read()'],
                env={**os.environ, 'TMPDIR': str(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return int(processes[-1].stdout.readline())

    yield hold
    for process in processes:
        process.communicate('')


def taken_by_a_process(folder):
    """The domain that a process takes which ends at once."""
    command = [sys.executable, '-c', TAKE]
    environment = {**os.environ, 'TMPDIR': str(folder)}
    return int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def test_each_process_has_a_domain_of_its_own_and_frees_it_when_it_ends(holders, tmp_path):
    held = [holders(tmp_path) for _ in range(3)]
    assert len(set(held)) == 3
    free = taken_by_a_process(tmp_path)
    assert free not in held
    assert taken_by_a_process(tmp_path) == free


def test_a_domain_in_which_somebody_else_listens_is_left_alone(tmp_path):
    first = taken_by_a_process(tmp_path)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as robot:
        robot.bind(('127.0.0.1', 7400 + 250 * first + 12))  # the second participant
        assert taken_by_a_process(tmp_path) != first


def test_this_process_keeps_its_domain_and_says_when_there_is_none(monkeypatch, tmp_path):
    environment = {}
    domain.isolate(environment)
    assert environment['ROS_DOMAIN_ID'] == str(domain.own_domain()) == os.environ['ROS_DOMAIN_ID']
    monkeypatch.setattr(domain, '_held', {})
    monkeypatch.setattr(domain, 'DOMAINS', ())
    with pytest.raises(OxygenError):
        domain.own_domain()
