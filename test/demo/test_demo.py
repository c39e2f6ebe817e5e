"""The demo as a whole: real processes, real topics, a clean end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from oxygen_ros.demo.__main__ import unproven
from oxygen_ros.demo.table import half_blocks
from oxygen_ros.tabletop import SHIPPED

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


def start(folder, seconds, source='world'):
    environment = {
        **os.environ,
        'DEMO_SECONDS': seconds,
        'DEMO_SOURCE': source,
        'PYTHONPATH': str(ROOT),
    }
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


@pytest.mark.parametrize(
    ('source', 'note'),
    [
        ('bag', 'random weights: the words mean nothing'),
        ('world', 'a small trained model moves the arm'),
    ],
)
def test_the_demo_shows_frames_and_words_and_ends_with_its_numbers(folder, source, note):
    process = start(folder, '8', source)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    lines = output.strip().splitlines()
    assert any(note in line for line in lines)
    assert any('frames/s' in line and 'tok/s' in line for line in lines)
    word, numbers = lines[-1].split(' ', 1)
    assert word == 'DEMO'
    numbers = json.loads(numbers)
    assert set(numbers) >= KEYS
    assert numbers['frames'] >= numbers['chunks'] > 0
    assert numbers['tokens'] > 0 < numbers['requests_done']
    assert 0 < numbers['camera_to_chunk_ms_p50'] <= numbers['camera_to_chunk_ms_p99']
    if source == 'world':
        assert numbers['answers'] >= numbers['answers_right'] > 0
        assert numbers['episodes'] >= numbers['successes']
        assert any('answers right' in line for line in lines)


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
    assert process.returncode == 2
    assert f"DEMO_SECONDS is '{seconds}': must be a number from 1 to 86400" in output


def test_an_unknown_source_is_explained(folder):
    process = start(folder, '5', 'moon')
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "DEMO_SOURCE is 'moon': must be one of world, bag" in output


OTHER_MODEL = """
import sys
from pathlib import Path
from oxygen_ros.demo import __main__ as demo, prepare
prepare.SHIPPED = Path(sys.argv[1])
sys.exit(demo.main())
"""


def test_a_model_that_carries_nothing_out_does_not_pass(folder, tmp_path):
    """Chunks and true words come, the processes end well, and the arm only trembles."""
    shutil.copytree(SHIPPED, tmp_path / 'trembling')
    weights = tmp_path / 'trembling' / 'model.safetensors'
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if 'action_out_proj' in name:
            tensor.zero_()
    save_file(tensors, weights)
    done = subprocess.run(
        [sys.executable, '-c', OTHER_MODEL, str(tmp_path / 'trembling')],
        cwd=folder,
        env={**os.environ, 'DEMO_SECONDS': '10.5', 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith('demo: no instruction was carried out in 1')
    assert len(done.stderr.splitlines()) == 1
    numbers = json.loads(done.stdout.strip().splitlines()[-1].removeprefix('DEMO '))
    assert numbers['chunks'] > 0 < numbers['answers_right']


@pytest.mark.parametrize(
    ('seconds', 'successes', 'answers', 'right', 'problems'),
    [
        (15.0, 5, 60, 58, 0),
        (15.0, 1, 60, 1, 0),
        (15.0, 0, 60, 58, 1),
        (15.0, 0, 60, 0, 2),
        (10.0, 1, 0, 0, 1),
        (3.0, 0, 4, 0, 0),
        (3.0, 0, 5, 0, 1),
        (1.0, 0, 0, 0, 0),
    ],
)
def test_a_run_that_was_long_enough_must_have_shown_something(
    seconds, successes, answers, right, problems
):
    summary = {'seconds': seconds, 'episodes': successes, 'successes': successes}
    found = unproven({**summary, 'answers': answers, 'answers_right': right})
    assert len(found) == problems


def test_a_picture_becomes_half_blocks():
    picture = np.zeros((4, 4, 3), np.uint8)
    picture[:2, 2:] = (255, 0, 0)
    picture[2:] = (0, 0, 9)
    lines = half_blocks(picture, 2)
    assert len(lines) == 1  # two rows of pixels in one line
    assert lines[0].startswith('\x1b[38;2;0;0;0;48;2;0;0;9m▀\x1b[38;2;255;0;0;48;2;0;0;9m▀')
