"""The GPU check runs to its end, on a CPU and a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_gpu_check_on_a_cpu(tmp_path):
    settings = {'DEVICE': 'cpu', 'SIZE': 'tiny', 'DTYPE': 'float32', 'ROUNDS': '1'}
    ran = subprocess.run(
        [ROOT / 'tools' / 'gpu_check.sh', tmp_path / 'out'],
        env={**os.environ, **settings, 'PYTHON': sys.executable},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    parity = json.loads((tmp_path / 'out' / 'parity.json').read_text())
    for way in ('eager', 'fused', 'compiled', 'graphs'):
        assert parity[way]['ran_as'] == way
        assert parity[way]['golden_actions_max_abs'] < 1e-4
        assert parity[way]['modes_bit_equal'] and parity[way]['words_equal_alone']
    assert 'realised of the ideal' in ran.stdout
    assert json.loads((tmp_path / 'out' / 'paper.json').read_text())['setting']['device'] == 'cpu'
