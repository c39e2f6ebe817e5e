"""The tools that compare with LeRobot: their own parts, and all of it where its environment is.

OXYGEN_LEROBOT_ENV=FOLDER python -m pytest test/checkpoint/test_peer_tools.py
FOLDER is one that tools/regenerate_golden.py has made.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oxygen_ros.types import OxygenError

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / 'test' / 'golden'
ENVIRONMENT = os.environ.get('OXYGEN_LEROBOT_ENV', '')
with_lerobot = pytest.mark.skipif(not ENVIRONMENT, reason='OXYGEN_LEROBOT_ENV names no folder')


@pytest.fixture
def tool(monkeypatch):
    """Import a module of tools/ by its name."""
    monkeypatch.syspath_prepend(ROOT / 'tools')
    return importlib.import_module


def run_tool(name, *arguments):
    command = [sys.executable, ROOT / 'tools' / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def stored():
    """Golden tensors of the language case, which is the smaller one."""
    return load_file(GOLDEN / 'pi05_language' / 'expected.safetensors')


def test_the_same_numbers_use_no_tolerance(tool, stored):
    assert tool('regenerate_golden').compare('pi05_language', stored, stored) == 0.0


@pytest.mark.parametrize(('shift', 'within'), [(9e-6, True), (-9e-6, True), (1.2e-5, False)])
def test_a_difference_counts_as_a_share_of_its_tolerance(tool, stored, shift, within):
    name = 'f.bidirectional.actions_normalized_padded'
    moved = {**stored, name: stored[name].copy()}
    moved[name][0, 3, 31] += shift
    share = tool('regenerate_golden').compare('pi05_language', moved, stored)
    assert (share <= 1.0) == within
    assert share == pytest.approx(abs(shift) / 1e-5, rel=0.05)


@pytest.mark.parametrize('change', [lambda t: t[:, :9], lambda t: t * np.float32('nan'), None])
def test_a_tensor_that_is_wrong_or_missing_is_beyond(tool, stored, change, capsys):
    name = 'h.bidirectional.actions_normalized_padded'
    computed = {key: tensor for key, tensor in stored.items() if key != name}
    if change is not None:
        computed[name] = change(stored[name])
    assert not tool('regenerate_golden').compare('pi05_language', computed, stored) <= 1.0
    assert [
        line for line in capsys.readouterr().out.splitlines() if 'BEYOND' in line and name in line
    ]


def test_padding_slots_of_keys_and_values_do_not_count(tool):
    expected = load_file(GOLDEN / 'pi05_lerobot' / 'expected.safetensors')
    name, valid = 'b.prefix_k.2', expected['b.prefix_pad_mask'][0]
    for slot, beyond in ((np.flatnonzero(~valid)[0], False), (np.flatnonzero(valid)[0], True)):
        moved = {**expected, name: expected[name].copy()}
        moved[name][..., slot, :] += 1.0
        assert (tool('regenerate_golden').compare('pi05_lerobot', moved, expected) > 1.0) == beyond


def test_every_expected_tensor_of_lerobots_case_is_compared(tool, capsys):
    expected = load_file(GOLDEN / 'pi05_lerobot' / 'expected.safetensors')
    tool('regenerate_golden').compare('pi05_lerobot', expected, expected)
    named = {line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert named == set(expected)


STUB = """
import sys
from lerobot_peer.pipe import serve
def double(value):
    print('noise on standard output')
    return {'value': 2 * value}
serve({'double': double, 'leave': lambda: sys.exit(7)})
"""


def test_a_worker_answers_fails_and_ends_by_name(tool, capfd):
    pipe = tool('lerobot_peer.pipe')
    variables = {**os.environ, 'PYTHONPATH': str(ROOT / 'tools')}
    with pipe.Worker([sys.executable, '-c', STUB], variables) as worker:
        assert worker.ask('double', value=21) == {'value': 42}
        with pytest.raises(pipe.WorkerFailed, match=r'double: TypeError.*value'):
            worker.ask('double')
        with pytest.raises(pipe.WorkerFailed, match='halve: KeyError'):
            worker.ask('halve', value=4)
        assert worker.ask('double', value=1) == {'value': 2}
        with pytest.raises(pipe.WorkerFailed, match='leave: the worker ended with code 7'):
            worker.ask('leave')
        with pytest.raises(pipe.WorkerFailed, match='double: the worker ended'):
            worker.ask('double', value=1)
    assert 'noise on standard output' in capfd.readouterr().err


def test_an_environment_is_never_made_among_other_files(tmp_path):
    (tmp_path / 'precious.txt').write_text('mine')
    done = run_tool('regenerate_golden.py', '--env', tmp_path, '--python', sys.executable)
    assert done.returncode == 2
    assert f'{tmp_path} holds other files' in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ['precious.txt']


def test_a_python_that_is_not_there_is_named(tmp_path):
    done = run_tool('bench_peers.py', '--env', tmp_path / 'env', '--python', tmp_path / 'python')
    assert done.returncode == 2
    assert f'{tmp_path}/python cannot be run: name one by --python' in done.stderr
    assert not (tmp_path / 'env').exists()


def test_an_old_python_is_refused(tool, tmp_path):
    environment = tool('lerobot_peer.environment')
    old = tmp_path / 'python'
    old.write_text('#!/bin/sh\necho 3 11\n')
    old.chmod(0o755)
    with pytest.raises(environment.EnvironmentProblem, match=r'is 3\.11, LeRobot needs 3\.12'):
        environment.ready_python(tmp_path / 'env', str(old))


def test_our_side_of_the_benchmark_gives_lerobots_golden_actions(tool, tmp_path):
    """As the worker that bench_peers starts: what is timed is what is served."""
    pipe = tool('lerobot_peer.pipe')
    inputs = load_file(GOLDEN / 'pi05_language' / 'inputs.safetensors')
    expected = load_file(GOLDEN / 'pi05_language' / 'expected.safetensors')
    command = [sys.executable, str(ROOT / 'tools' / 'bench_peers.py'), '--worker']
    checkpoint = str(GOLDEN / 'pi05_lerobot' / 'checkpoint')
    with pipe.Worker(command, os.environ) as ours:
        shared = {'dtype': 'float32', 'threads': 1, 'device': 'cpu', 'steps': 10}
        shared['execution'] = 'fused'
        assert ours.ask('load', checkpoint=checkpoint, **shared)['versions'].keys() >= {'torch'}
        for letter in 'eg':  # all cameras, and one that is absent
            own = {name[2:]: t for name, t in inputs.items() if name[0] == letter}
            own['pixels'] = own.pop('images_processed')
            save_file(own, tmp_path / 'given')
            files = {'inputs': str(tmp_path / 'given'), 'output': str(tmp_path / 'made')}
            wanted = expected[f'{letter}.bidirectional.actions_normalized_padded']
            for mode in ('shared_kv', 'isolated'):
                answer = ours.ask('act', steps=10, repeats=2, mode=mode, **files)
                assert len(answer['ms']) == 2
                made = load_file(tmp_path / 'made')['actions']
                np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        (['--device', 'cuda:99'], "device 'cuda:99' is not there"),
        (['--json', '/tmp'], '/tmp is a folder: name a file in it'),
        (['--repeats', '0'], 'not allowed, but a whole number from 1'),
        (['--steps', '-1'], 'not allowed, but a whole number from 1'),
        (['--prompt-tokens', '201'], 'not allowed, but a whole number from 1 to 200'),
        (['--size', 'huge'], 'invalid choice'),
    ],
)
def test_wrong_input_of_the_benchmark_is_refused_before_anything_is_made(
    tmp_path, arguments, said
):
    done = run_tool('bench_peers.py', '--env', tmp_path / 'env', *arguments)
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / 'env').exists()


def test_a_size_that_does_not_fit_both_is_refused(tool, monkeypatch, tmp_path):
    peers = tool('bench_peers')
    given = peers._parser().parse_args(['--size', 'full', '--device', 'cpu'])
    monkeypatch.setattr(peers, 'available_bytes', lambda device: 12 * 2**30)
    with pytest.raises(OxygenError, match=r'both networks take 12\.\d GiB, cpu has 12.0 GiB free'):
        peers.check_room(given, tmp_path)
    monkeypatch.setattr(peers, 'available_bytes', lambda device: 2**40)
    monkeypatch.setattr(peers.shutil, 'disk_usage', lambda folder: SimpleNamespace(free=1))
    with pytest.raises(OxygenError, match=r'the checkpoint takes 6\.\d GiB, .* TMPDIR'):
        peers.check_room(given, tmp_path)


@with_lerobot
def test_lerobot_computes_the_golden_numbers_again(tmp_path):
    done = run_tool('regenerate_golden.py', '--env', ENVIRONMENT, '--out', tmp_path / 'out')
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'all within tolerance' in done.stdout
    names = sorted(file.name for file in (tmp_path / 'out').iterdir())
    assert names == ['pi05_language.safetensors', 'pi05_lerobot.safetensors']


@with_lerobot
@pytest.mark.parametrize('cameras', ['3', '2'])
def test_both_answer_the_benchmark_alike(tmp_path, cameras):
    file = tmp_path / 'out.json'
    arguments = ['--env', ENVIRONMENT, '--dtype', 'float32', '--repeats', '2', '--json', file]
    done = run_tool('bench_peers.py', *arguments, '--cameras', cameras)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report['agreement']['max_abs'] < 1e-5
    assert report['chunk_ms'].keys() == {'ours', 'isolated', 'peer'}
    times = report['chunk_ms']
    assert report['ratio'] == pytest.approx(times['peer'] / times['ours'])
    assert report['ratio_isolated'] == pytest.approx(times['peer'] / times['isolated'])
    assert [bar['at_least'] for bar in report['bars']] == [1.0, {'3': 1.2, '2': 1.5}[cameras]]
    assert report['setting']['device'] == 'cpu' and report['setting']['execution_used'] == 'fused'
    assert report['setting']['absent_cameras'] == 3 - int(cameras)
