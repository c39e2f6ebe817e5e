"""The demo as a whole: real processes, real topics, a clean end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    'frames',
    'chunks',
    'frames_per_s',
    'actions_per_s',
    'action_stream_hz',
    'tokens',
    'tok_per_s',
    'requests_done',
    'rows_max',
    'camera_to_chunk_ms_p50',
    'camera_to_chunk_ms_p99',
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Where the demo keeps its files, so that only the first run makes them."""
    return tmp_path_factory.mktemp('demo')


def start(folder, seconds):
    environment = {**os.environ, 'DEMO_SECONDS': seconds, 'PYTHONPATH': str(ROOT)}
    return subprocess.Popen(
        [sys.executable, '-u', '-m', 'oxygen_ros.demo'],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(pid):
    return [
        int(child)
        for tasks in Path(f'/proc/{pid}/task').glob('*/children')
        for child in tasks.read_text().split()
    ]


def running(pids):
    """Those of the processes that run; a zombie does not."""
    found = []
    for pid in pids:
        try:
            state = Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0]
        except FileNotFoundError:
            continue
        if state != 'Z':
            found.append(pid)
    return found


def test_the_demo_shows_frames_and_words_and_ends_with_its_numbers(folder):
    process = start(folder, '5')
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    lines = output.strip().splitlines()
    assert any('random weights: the words mean nothing' in line for line in lines)
    assert any('frames/s' in line and 'tok/s' in line for line in lines)
    word, numbers = lines[-1].split(' ', 1)
    assert word == 'DEMO'
    numbers = json.loads(numbers)
    assert set(numbers) >= KEYS
    assert numbers['frames'] >= numbers['chunks'] > 0
    assert numbers['tokens'] > 0 < numbers['requests_done']
    assert 0 < numbers['camera_to_chunk_ms_p50'] <= numbers['camera_to_chunk_ms_p99']


@pytest.mark.parametrize(
    ('number', 'status'),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_an_ended_demo_leaves_no_process_behind(folder, number, status):
    process = start(folder, '60')
    try:
        while 'waiting for the node' not in (line := process.stdout.readline()):
            assert line, 'the demo ended before its view began'
        pids = children(process.pid)
        assert len(pids) == 3
        process.send_signal(number)
        assert process.wait(30) == status
        deadline = time.monotonic() + 30
        while running(pids):
            assert time.monotonic() < deadline, f'{running(pids)} still run'
            time.sleep(0.05)
    finally:
        process.kill()
        process.stdout.close()


@pytest.mark.parametrize('seconds', ['soon', '0', '-3', 'inf'])
def test_a_bad_duration_is_explained(folder, seconds):
    process = start(folder, seconds)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"DEMO_SECONDS is '{seconds}': must be a number from 1 to 86400" in output
