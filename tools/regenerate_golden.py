"""Recompute LeRobot's golden numbers with LeRobot itself, and compare them with test/golden.

    python tools/regenerate_golden.py --env ../lerobot-env --python python3.12 [--out FOLDER]

Makes an environment with LeRobot 0.6.1 from PyPI in the folder that --env names (5.3 GB, Python
3.12 or newer) where it is not there yet. Nothing in test/golden is changed; --out keeps what was
computed. Ends with 1 when a number is beyond its tolerance, with 2 when it could not be computed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from lerobot_peer.environment import EnvironmentProblem, ready_python, worker_variables
from lerobot_peer.pipe import Worker, WorkerFailed
from safetensors.numpy import load_file, save_file

from oxygen_ros.checkpoint import inspect_checkpoint

GOLDEN = Path(__file__).resolve().parents[1] / 'test' / 'golden'
CHECKPOINT = GOLDEN / 'pi05_lerobot' / 'checkpoint'
# Name of a tensor -> (relative, absolute) tolerance; the first that fits counts.
TOLERANCES = (
    (re.compile(r'tokens|mask'), (0.0, 0.0)),
    (re.compile(r'normalized_state'), (0.0, 0.0)),
    (re.compile(r'images_processed'), (0.0, 1e-6)),
    (re.compile(r'prefix_[kv]'), (0.0, 5e-5)),
    (re.compile(r'actions_robot'), (1e-5, 1e-6)),
    (re.compile(r'actions'), (0.0, 1e-5)),
)
# Case -> which of its tensors are LeRobot's own; the others are inputs or made by others.
MADE = {
    'pi05_lerobot': re.compile(r'[a-d]\.(?!image\.|noise$|state$)'),
    'pi05_language': re.compile(r'[e-h]\.bidirectional\.actions'),
}
Tensors = Mapping[str, np.ndarray]


def main() -> int:
    """Recompute, compare, print a table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--env', type=Path, required=True, help="folder of LeRobot's environment")
    parser.add_argument('--python', default='python3.12', help='makes the environment')
    parser.add_argument('--out', type=Path, help='folder for what was computed')
    given = parser.parse_args()
    try:
        computed = recompute(ready_python(given.env.absolute(), given.python))
    except (EnvironmentProblem, WorkerFailed) as problem:
        print(f'regenerate_golden: {problem}', file=sys.stderr)
        return 2
    worst = 0.0
    for case, tensors in computed.items():
        stored = load_file(GOLDEN / case / 'inputs.safetensors')
        stored |= load_file(GOLDEN / case / 'expected.safetensors')
        worst = max(worst, compare(case, tensors, stored))
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            save_file(dict(tensors), given.out / f'{case}.safetensors')
    print('all within tolerance' if worst <= 1.0 else 'NOT within tolerance')
    return int(worst > 1.0)


def recompute(python: Path) -> dict[str, dict[str, np.ndarray]]:
    """Case -> every tensor that LeRobot computes for it. Raises WorkerFailed."""
    command = [str(python), '-m', 'lerobot_peer.worker']
    with Worker(command, worker_variables()) as worker, tempfile.TemporaryDirectory() as scratch:
        arch = dataclasses.asdict(inspect_checkpoint(CHECKPOINT).arch)
        sizes = {'arch': arch, 'dtype': 'float32', 'vision_dtype': 'float32', 'threads': 1}
        answer = worker.ask('load', checkpoint=str(CHECKPOINT), **sizes)
        print(', '.join(f'{name} {version}' for name, version in answer['versions'].items()))
        return {
            'pi05_lerobot': dict(_observations(worker, Path(scratch))),
            'pi05_language': dict(_language(worker, Path(scratch))),
        }


def _observations(worker: Worker, scratch: Path) -> Iterator[tuple[str, np.ndarray]]:
    """From raw frames to robot units."""
    folder = GOLDEN / 'pi05_lerobot'
    about = json.loads((folder / 'case.json').read_text())
    inputs = load_file(folder / 'inputs.safetensors')
    for letter, observation in about['observations'].items():
        own = {name[2:]: tensor for name, tensor in inputs.items() if name[0] == letter}
        raw = {name: tensor for name, tensor in own.items() if not name.startswith('token')}
        save_file(raw, scratch / 'given')
        files = {'inputs': str(scratch / 'given'), 'output': str(scratch / 'made')}
        worker.ask('observe', task=observation['task'], steps=[10, 1, 5], **files)
        for name, tensor in load_file(scratch / 'made').items():
            name = name.replace('actions.10', 'actions_normalized_padded')
            name = re.sub(r'^actions\.(\d+)$', r'actions_normalized_padded_steps\1', name)
            yield f'{letter}.{name}', tensor


def _language(worker: Worker, scratch: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Actions from the prefixes of the language cases; LeRobot itself has no words."""
    inputs = load_file(GOLDEN / 'pi05_language' / 'inputs.safetensors')
    for letter in sorted({name[0] for name in inputs}):
        own = {name[2:]: tensor for name, tensor in inputs.items() if name[0] == letter}
        own['pixels'] = own.pop('images_processed')
        save_file(own, scratch / 'given')
        files = {'inputs': str(scratch / 'given'), 'output': str(scratch / 'made')}
        worker.ask('act', steps=10, repeats=1, **files)
        actions = load_file(scratch / 'made')['actions']
        yield f'{letter}.bidirectional.actions_normalized_padded', actions


def compare(case: str, computed: Tensors, stored: Tensors) -> float:
    """Print a line per tensor of LeRobot's; returns the largest share of a tolerance that is used.

    A tensor that was not computed again is beyond every tolerance.
    """
    worst = 0.0
    for name in sorted(filter(MADE[case].match, stored)):
        difference, share = np.inf, np.inf
        if name in computed:
            valid = computed.get(f'{name[0]}.prefix_pad_mask')
            pair = computed[name], stored[name]
            if '.prefix_k.' in name or '.prefix_v.' in name:  # those of padding are arbitrary
                pair = tuple(tensor[:, :, valid[0]] for tensor in pair)
            difference, share = _difference(name, *pair)
        worst = max(worst, share)
        print(f'{case}  {name:45} {difference:9.2e}  {"ok" if share <= 1.0 else "BEYOND"}')
    return worst


def _difference(name: str, found: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Largest absolute difference, and the largest share of the tolerance that is used."""
    if found.shape != wanted.shape:
        return np.inf, np.inf
    relative, absolute = next(limit for pattern, limit in TOLERANCES if pattern.search(name))
    away = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    if not np.isfinite(away).all():
        return np.inf, np.inf
    allowed = absolute + relative * np.abs(wanted.astype(np.float64))
    share = np.divide(away, allowed, out=np.where(away > 0, np.inf, 0.0), where=allowed > 0)
    return float(away.max()), float(share.max())


if __name__ == '__main__':
    sys.exit(main())
