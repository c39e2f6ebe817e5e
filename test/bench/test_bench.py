"""The benchmark runs whole on a tiny model, and its numbers hang together."""

import json
import os
import subprocess
import sys

import pytest

from oxygen_ros.bench.__main__ import main
from oxygen_ros.bench.arrivals import request_times
from oxygen_ros.bench.families import FAMILIES
from oxygen_ros.bench.roofline import CHIPS, roofline_ms
from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint import Pi05Arch
from oxygen_ros.checkpoint.random_pi05 import SIZES

TINY = ['--size', 'tiny', '--dtype', 'float32', '--prompt-tokens', '30']


@pytest.fixture(scope='module')
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp('bench') / 'new' / 'result.json'
    short = ['--rounds', '1', '--frames', '7', '--seconds', '1', '--tokens', '10']
    command = [sys.executable, '-m', 'oxygen_ros.bench', '--preset', 'arrivals', *TINY, *short]
    ran = subprocess.run([*command, '--json', str(out)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(out.read_text()), ran.stdout


def test_every_mode_delivers_the_same_work(result):
    found, _ = result
    for mode, numbers in found['modes'].items():
        assert numbers['tokens_per_frame'] == pytest.approx(10, abs=2), mode
        assert numbers['actions_per_s'] == pytest.approx(10 * numbers['frames_per_s'])
    assert found['kv_bytes_copied'] == 0


def test_the_speed_up_follows_from_the_numbers_beside_it(result):
    found, printed = result
    modes, times = found['modes'], found['phases_ms']
    speedup = modes['isolated']['frame_ms'] / modes['continuous']['frame_ms']
    assert found['speedup'] == pytest.approx(speedup)
    alone = 2 * times['prefill'] + times['act'] + 10 * times['decode_1']
    together = times['prefill'] + times['act'] + 5 * times['decode_2']
    assert found['ideal'] == pytest.approx(alone / together)
    assert found['realised_over_ideal'] == pytest.approx(found['speedup'] / found['ideal'])
    assert found['captures_after_ready'] == 0
    rates = found['decode_tok_per_s']
    assert rates['2'] == pytest.approx(2e3 / times['decode_2'])
    assert f'speed-up {found["speedup"]:.2f}' in printed
    assert 'setting: family pi05, size tiny' in printed


def test_growth_times_every_case(capsys, tmp_path):
    out = tmp_path / 'growth.json'
    assert main(['--preset', 'growth', *TINY, '--rounds', '1', '--json', str(out)]) == 0
    cases = {case.pop('case'): case for case in json.loads(out.read_text())['growth']}
    assert {'cameras 1', 'cameras 3', 'horizon 50', 'denoise_steps 20'} <= set(cases)
    for times in cases.values():
        assert set(times) == {'prefill', 'act', 'decode_1', 'decode_2', 'decode_4', 'decode_8'}
        assert min(times.values()) > 0
    assert 'prompt_tokens 200' in capsys.readouterr().out


def test_every_pattern_of_arrivals_is_answered(result):
    patterns = result[0]['arrivals']['patterns']
    assert set(patterns) == {'none', 'uniform', 'poisson', 'bursty', 'mixed'}
    assert patterns['none']['tok_per_s'] == 0
    for name, numbers in patterns.items():
        assert numbers['frames'] == 7 and numbers['refused'] == 0, name
        assert name == 'none' or numbers['tok_per_s'] > 0, name


def test_request_times_keep_their_rate():
    for pattern in ('uniform', 'poisson', 'bursty', 'mixed'):
        times = request_times(pattern, rate=4.0, seconds=100.0, seed=1)
        assert len(times) == 400 and times == sorted(times)
        assert times[-1] == pytest.approx(100, rel=0.15)
    bursts = request_times('bursty', 4.0, 10.0, 1)
    assert bursts[:4] == [0.0] * 4 and bursts[4] == 1.0


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        (['--modes', 'fast'], 'unknown modes fast, allowed: isolated, shared_kv, continuous'),
        (['--device', 'cuda:99'], "device 'cuda:99' is not there"),
        (['--json', '/proc/nowhere/x.json'], 'cannot be written'),
        (['--preset', 'huge'], "invalid choice: 'huge'"),
        (['--size', 'huge'], "invalid choice: 'huge'"),
    ],
)
def test_wrong_input_is_one_clear_line(arguments, said, capsys):
    try:
        code = main([*TINY, '--rounds', '1', '--frames', '1', *arguments])
    except SystemExit as refused:  # by argparse
        code = refused.code
    assert code == 2 and said in capsys.readouterr().err


def test_roofline_of_the_real_model_on_known_chips():
    """Against the figures of the model's published sizes: 3 views, 968 tokens, bf16."""
    arch = Pi05Arch(**SIZES['full'], horizon=50)
    setting = Setting(size='full', horizon=50)
    h200 = roofline_ms(CHIPS['H200'], arch, setting, 2)
    assert h200['vision'] == pytest.approx(0.84, rel=0.1)
    assert h200['prefill'] - h200['vision'] == pytest.approx(5.0, rel=0.1)
    assert h200['act'] == pytest.approx(1.5, rel=0.1)
    assert h200['decode_1'] == pytest.approx(1.17, rel=0.05)
    small = roofline_ms(CHIPS['RTX 4090'], arch, setting, 2)
    assert small['prefill'] == pytest.approx(4.0 + 24.1, rel=0.1)
    assert small['decode_1'] == pytest.approx(5.04, rel=0.05)


@pytest.mark.parametrize('family', FAMILIES)
def test_a_model_larger_than_the_machine_is_refused_before_it_is_built(
    family, monkeypatch, capsys
):
    sysconf = os.sysconf
    monkeypatch.setattr(os, 'sysconf', lambda n: 256 if n == 'SC_PHYS_PAGES' else sysconf(n))
    monkeypatch.setattr(FAMILIES[family], 'build_model', None)
    assert main(['--preset', 'tiny', '--family', family]) == 2
    said = capsys.readouterr().err
    assert 'the machine has 0.0 GiB: choose a smaller size or dtype' in said
