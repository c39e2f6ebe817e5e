"""The GPU check runs to its end, on a CPU and a tiny model, whatever fails on its way."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oxygen_ros.engine.execution import EXECUTIONS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / 'tools'))

from apart import apart  # noqa: E402

# Run in a fresh process: everything but the standard library and argv's names cannot be found.
HIDING = """
import sys
allowed = {*sys.stdlib_module_names, *sys.argv[2].split(), 'oxygen_ros'}
class Filter:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        ours = name.partition('.')[0] in allowed or name.startswith('_sysconfigdata')
        if path is None and not ours:
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Filter(finder) for finder in sys.meta_path]
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[1] + '/tools')
allowed |= {'gpu_parity', 'gpu_heads', 'gpu_bars', 'apart'}
import gpu_parity, gpu_bars, oxygen_ros.bench.__main__
from oxygen_ros.bench.timeline import Timeline
policy = gpu_parity.load('cpu', 'continuous', 'eager')
print('loaded', 'PIL' in sys.modules)
"""


def check(out, **settings):
    given = {'DEVICE': 'cpu', 'SIZE': 'tiny', 'DTYPE': 'float32', 'ROUNDS': '1'}
    return subprocess.run(
        [ROOT / 'tools' / 'gpu_check.sh', out],
        env={
            **os.environ,
            **given,
            'SECONDS_IN_ALL': '3600',
            'PYTHON': sys.executable,
            **settings,
        },
        capture_output=True,
        text=True,
    )


def test_gpu_check_on_a_cpu(tmp_path):
    """Without compiled_graphs, which a CPU compiles for minutes; test_execution.py has it."""
    ways = [way for way in EXECUTIONS if way != 'compiled_graphs']
    ran = check(tmp_path, PARITY=' '.join(ways), WAYS='graphs')
    assert ran.returncode == 0, ran.stdout + ran.stderr
    parity = json.loads((tmp_path / 'parity.json').read_text())
    for way in ways:
        assert parity[way]['ran_as'] == way
        assert parity[way]['golden_actions_max_abs'] < 1e-4
        assert parity[way]['modes_bit_equal'] and parity[way]['words_equal_alone']
        heads = parity[f'heads_{way}']
        assert heads['ran_as'] == way and set(heads['errors']) == {'hidden', 'actions', 'logits'}
        assert all(0 < error < 0.05 for error in heads['errors'].values()), heads
    paper = json.loads((tmp_path / 'paper_graphs.json').read_text())
    assert paper['setting']['device'] == 'cpu' and paper['fallback'] == ''
    assert paper['setting']['execution_used'] == 'graphs'
    assert 'realised of the ideal' in ran.stdout
    assert 'FAILED' not in ran.stdout.partition('== summary')[2]


def test_a_part_that_fails_ends_no_other(tmp_path):
    """Too little time for parity, and a device that is not there."""
    ran = check(tmp_path, SECONDS_IN_ALL='10', DEVICE='cuda:77', WAYS='graphs')
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = ran.stdout.partition('== summary\n')[2].splitlines()
    assert [line.partition(':')[0] for line in lines] == ['parity', 'paper graphs', 'bars graphs']
    assert all('FAILED, code' in line for line in lines), lines


def test_it_needs_torch_and_transformers_alone():
    """With what these two require themselves."""
    ran = subprocess.run(
        [sys.executable, '-c', HIDING, str(ROOT), ' '.join(required('torch', 'transformers'))],
        capture_output=True,
        text=True,
        cwd='/',
        env={name: value for name, value in os.environ.items() if name != 'PYTHONPATH'},
    )
    assert ran.stdout.split() == ['loaded', 'False'], ran.stdout + ran.stderr


def required(*names):
    """Modules of these distributions and of all they cannot do without."""
    modules, todo, seen = {'torchgen', 'functorch'}, list(names), set()
    owners = importlib.metadata.packages_distributions()
    while todo:
        name = re.sub(r'[-_.]+', '-', todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        modules |= {
            m
            for m, of in owners.items()
            if name in {re.sub(r'[-_.]+', '-', o).lower() for o in of}
        }
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # of another platform
            continue
        todo += [re.match(r'[\w.-]+', need)[0] for need in needs if 'extra ==' not in need]
    return sorted(modules)


@pytest.mark.parametrize(
    'function, seconds, wanted',
    [
        (lambda: 'fine', 60, 'fine'),
        (lambda: 1 / 0, 60, {'error': 'ZeroDivisionError: division by zero'}),
        (lambda: os._exit(3), 60, {'error': 'its process ended with code 3'}),
        (lambda: time.sleep(60), 0.2, {'error': 'nothing after 0 s'}),
    ],
)
def test_what_runs_apart_ends_nothing_else(function, seconds, wanted):
    assert apart(function, seconds) == wanted
