"""The real dimensions, written, read and run. Opt-in: takes minutes, 7 GB of disk, 8 of memory.

OXYGEN_FULL_SIZE=FOLDER python -m pytest -s -o faulthandler_timeout=0 -k full_size test/checkpoint
FOLDER is where the checkpoint is written, and stays; one that is there already is read.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = os.environ.get('OXYGEN_FULL_SIZE', '')
pytestmark = pytest.mark.skipif(not FOLDER, reason='OXYGEN_FULL_SIZE names no folder')

WEIGHTS_GB = 6.7
WRITE = """
import sys
from oxygen_ros.checkpoint.random_pi05 import main
main([sys.argv[1], '--size', 'full'])
"""
SERVE = """
import sys, time
import numpy as np
from oxygen_ros.policy import Policy
from oxygen_ros.types import LanguageRequest, Observation

def observation(stamp):
    pixels = np.random.default_rng(stamp).integers(0, 256, (480, 640, 3), np.uint8)
    images = dict.fromkeys(policy.info.cameras, pixels)
    state = np.zeros(policy.info.state_dim, np.float32)
    return Observation(images, state, 'stack the cups', stamp)

began = time.perf_counter()
policy = Policy.from_checkpoint(sys.argv[1], dtype='bfloat16', budget=5, max_new_tokens=64)
times['load_and_warm_up'], memory['loaded'] = time.perf_counter() - began, anonymous()
finite = True
for stamp in range(1, 7):
    request = LanguageRequest(str(stamp), prompt='what do you see?', max_tokens=24)
    began = time.perf_counter()
    actions = policy.act(observation(stamp), requests=[request]).actions
    times['frame'] = time.perf_counter() - began
    finite &= bool(np.isfinite(actions).all())
began, steps = time.perf_counter(), policy.stats.decode_steps
answers = {}
for delta in policy.stream():
    answers[delta.request_id] = answers.get(delta.request_id, '') + delta.text
stats = policy.stats
times['decode_step'] = (time.perf_counter() - began) / (stats.decode_steps - steps)
said = {
    'finite': finite, 'horizon': actions.shape[0], 'answers': answers, 'rows': stats.rows_max,
    'prefills': stats.prefills, 'ended': dict(stats.requests_ended),
}
"""
# Around either: times in s, memory in GB. A page of a mapped file counts in the peak, although
# the system takes it back when it needs it; anonymous memory is what the process itself holds.
REPORT = """
import json, resource, time
times, memory, said = {{}}, {{}}, {{}}

def anonymous():
    lines = open('/proc/self/status').read().split()
    return int(lines[lines.index('RssAnon:') + 1]) / 1e6

started = time.perf_counter()
{body}
times['all'] = time.perf_counter() - started
memory['peak'] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({{'times': times, 'memory': memory, **said}}))
"""


def run(body, path):
    """Report of one process that does nothing else."""
    command = [sys.executable, '-c', REPORT.format(body=body), str(path)]
    # As many threads as the machine has: the other tests ask for one.
    variables = {k: v for k, v in os.environ.items() if k != 'OMP_NUM_THREADS'}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(report, indent=1))
    return report


@pytest.fixture(scope='module')
def checkpoint():
    path = Path(FOLDER)
    if not path.exists():
        # Shard by shard: never more than a shard, its tensor being made and the libraries.
        assert run(WRITE, path)['memory']['peak'] < 3.0
    return path


def test_it_is_read_and_run_in_bfloat16(checkpoint):
    report = run(SERVE, checkpoint)
    assert report['memory']['loaded'] < WEIGHTS_GB * 1.15  # one copy of the weights
    assert report['memory']['peak'] < WEIGHTS_GB * 1.5  # and one shard of the file at most
    assert report['finite']
    assert report['horizon'] == 10
    assert report['rows'] >= 2  # words of several frames in one step
    assert report['prefills'] == 6
    assert set(report['ended']) <= {'stop', 'length'}
    assert len(report['answers']) == 6
    assert any(report['answers'].values())
