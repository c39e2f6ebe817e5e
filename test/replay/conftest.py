"""A tiny random checkpoint for the robot of config/robots/demo.yaml, made once."""

import json

import pytest

from oxygen_ros.checkpoint.random_pi05 import write_random_checkpoint
from oxygen_ros.demo.recording import JOINTS
from oxygen_ros.replay import cli


@pytest.fixture(scope='session')
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp('checkpoint') / 'tiny'
    write_random_checkpoint(path, 'tiny', state_dim=len(JOINTS))
    return path


@pytest.fixture
def replay(checkpoint, tmp_path, capsys):
    """Run oxygen_replay on a bag; returns the report. bytes is the report's file."""

    def run(bag, *arguments, code=0):
        out = tmp_path / 'report.json'
        given = cli.main([
            str(bag), '--checkpoint', str(checkpoint), '--robot', 'demo', '--json', str(out),
            '--set', 'denoise_steps=2', *arguments,
        ])  # fmt: skip
        captured = capsys.readouterr()
        assert given == code, captured.err
        run.bytes = out.read_bytes()
        run.stderr = captured.err
        return json.loads(run.bytes)

    return run
