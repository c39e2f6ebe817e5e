"""Time an action chunk of LeRobot's own pi0.5 and of ours: same weights, inputs, dtype, threads.

    python tools/bench_peers.py --env ../lerobot-env --size small --dtype bfloat16 --json out.json

Both run in processes of their own, which are idle while the other works, and answer in turn. Timed
is the same of both: processed tensors in, normalised actions out, by each process itself. The
environment is made as tools/regenerate_golden.py makes it. All threads of the machine are used.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lerobot_peer.environment import EnvironmentProblem, ready_python, worker_variables
from lerobot_peer.pipe import Worker, WorkerFailed, serve
from safetensors.numpy import load_file, save_file

from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.checkpoint.random_pi05 import write_random_checkpoint

SLOTS = 3
FRAMES = 3  # different inputs, taken in turn
WARM_UP = 2
SETTLE_S = 0.3  # threads of the one that has answered spin for a moment
_held: dict[str, Any] = {}


def main() -> int:
    """Measure, print, write the JSON; returns the exit code."""
    given = _parser().parse_args()
    if given.worker:
        serve({'load': _load, 'act': _act})
        return 0
    if given.env is None:
        _parser().error("--env is needed: a folder for LeRobot's environment")
    try:
        python = ready_python(given.env.absolute(), given.python)
        with tempfile.TemporaryDirectory() as scratch:
            report = measure(given, python, Path(scratch))
    except (EnvironmentProblem, WorkerFailed) as problem:
        print(f'bench_peers: {problem}', file=sys.stderr)
        return 2
    text = json.dumps(report, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + '\n')
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--env', type=Path, help="folder of LeRobot's environment")
    parser.add_argument('--python', default='python3.12', help='makes the environment')
    parser.add_argument('--size', choices=('tiny', 'small'), default='tiny')
    parser.add_argument('--cameras', type=int, choices=(3, 2), default=3, help='2: one is absent')
    parser.add_argument(
        '--prompt-tokens', type=int, default=200, help='of 200, the rest is padding'
    )
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='bfloat16')
    parser.add_argument(
        '--peer-vision',
        choices=('same', 'float32'),
        default='same',
        help='LeRobot itself keeps the vision tower in float32; same: in --dtype, as ours',
    )
    parser.add_argument('--mode', choices=('shared_kv', 'isolated'), default='shared_kv')
    parser.add_argument('--execution', default='auto', help='of ours, as in PolicyOptions')
    parser.add_argument('--steps', type=int, default=10, help='of denoising')
    parser.add_argument('--repeats', type=int, default=10, help='of each, in turn')
    parser.add_argument('--json', type=Path, help='file for the results')
    parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
    return parser


def measure(given: argparse.Namespace, python: Path, scratch: Path) -> dict[str, Any]:
    """The report; checkpoint and tensors are written to scratch. Raises WorkerFailed."""
    checkpoint = write_random_checkpoint(scratch / 'checkpoint', given.size)
    info = inspect_checkpoint(checkpoint)
    files = [_write_inputs(info.arch, given, number, scratch) for number in range(FRAMES)]
    threads = os.cpu_count() or 1
    vision = given.dtype if given.peer_vision == 'same' else 'float32'
    with _workers(python) as (ours, peer):
        shared = {'checkpoint': str(checkpoint), 'dtype': given.dtype, 'threads': threads}
        own = {name: getattr(given, name) for name in ('mode', 'execution', 'steps')}
        versions = {'ours': ours.ask('load', **shared, **own)}
        arch = dataclasses.asdict(info.arch)
        versions['peer'] = peer.ask('load', **shared, arch=arch, vision_dtype=vision)
        times, away, scale = _alternate(ours, peer, files, given, scratch)
    medians = {who: statistics.median(each) for who, each in times.items()}
    return {
        'chunk_ms': medians,
        'ratio': medians['peer'] / medians['ours'],
        'chunk_ms_all': times,
        'agreement': {'max_abs': away, 'largest_action': scale},
        'setting': {
            **{name: getattr(given, name) for name in _SETTING},
            'absent_cameras': SLOTS - given.cameras,
            'peer_vision_dtype': vision,
            'horizon': info.arch.horizon,
            'threads': threads,
            'timed': 'processed tensors in, normalised actions out',
            'machine': _machine(),
            'versions': {who: answer['versions'] for who, answer in versions.items()},
        },
    }


_SETTING = (
    'size',
    'cameras',
    'prompt_tokens',
    'dtype',
    'mode',
    'execution',
    'steps',
    'repeats',
)


@contextlib.contextmanager
def _workers(python: Path) -> Iterator[tuple[Worker, Worker]]:
    own = [sys.executable, __file__, '--worker']
    theirs = [str(python), '-m', 'lerobot_peer.worker']
    with Worker(own, os.environ) as ours, Worker(theirs, worker_variables()) as peer:
        yield ours, peer


def _write_inputs(arch: Any, given: argparse.Namespace, number: int, scratch: Path) -> str:
    """One frame; the last slot is the absent one, as LeRobot orders them."""
    random = np.random.default_rng(number)
    side, padded = arch.image_size, 200
    pixels = random.uniform(-1, 1, (SLOTS, 3, side, side)).astype(np.float32)
    present = np.arange(SLOTS) < given.cameras
    pixels[~present] = -1.0
    tokens = random.integers(4, arch.vocab_size, (1, padded))
    valid = np.arange(padded)[None] < given.prompt_tokens
    noise = random.standard_normal((1, arch.horizon, arch.action_dim_padded), np.float32)
    path = scratch / f'frame{number}'
    save_file(
        {
            'pixels': pixels,
            'image_mask': present,
            'tokens': np.where(valid, tokens, 0),
            'token_mask': valid,
            'noise': noise,
        },
        path,
    )
    return str(path)


def _alternate(
    ours: Worker, peer: Worker, files: list[str], given: argparse.Namespace, scratch: Path
) -> tuple[dict[str, list[float]], float, float]:
    """Times in ms of both, largest difference of their actions, and the largest action."""
    times: dict[str, list[float]] = {'ours': [], 'peer': []}
    away = scale = 0.0
    workers = {'ours': ours, 'peer': peer}
    for turn in range(WARM_UP + given.repeats):
        made = {}
        for who, worker in workers.items():
            output = str(scratch / who)
            inputs = files[turn % len(files)]
            answer = worker.ask('act', inputs=inputs, output=output, steps=given.steps, repeats=1)
            made[who] = load_file(output)['actions']
            if turn >= WARM_UP:
                times[who] += answer['ms']
            time.sleep(SETTLE_S)
        away = max(away, float(np.abs(made['ours'] - made['peer']).max()))
        scale = max(scale, float(np.abs(made['peer']).max()))
    return times, away, scale


def _machine() -> str:
    names = [
        line.split(':')[1].strip()
        for line in Path('/proc/cpuinfo').read_text().splitlines()
        if line.startswith('model name')
    ]
    return f'{names[0]}, {len(names)} cores' if names else platform.processor()


# -- our side of the pipe


def _load(
    checkpoint: str, dtype: str, threads: int, mode: str, execution: str, steps: int
) -> dict[str, Any]:
    import torch
    import transformers

    from oxygen_ros.policy import Policy

    policy = Policy.from_checkpoint(
        checkpoint,
        dtype=dtype,
        mode=mode,
        denoise_steps=steps,
        cpu_threads=threads,
        execution=execution,
    )
    _held.update(policy=policy, steps=steps)
    return {'versions': {m.__name__: m.__version__ for m in (torch, transformers)}}


def _act(inputs: str, output: str, steps: int, repeats: int) -> dict[str, Any]:
    """As the peer's: actions [1, H, A] written to output, times in ms."""
    from safetensors.torch import load_file as load_tensors

    from oxygen_ros.processing.pi05 import Pi05Inputs

    engine, given = _held['policy'].engine, load_tensors(inputs)
    assert steps == _held['steps'], 'loaded for another number of steps'
    times = []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        frame = Pi05Inputs(
            given['pixels'][given['image_mask']], given['tokens'][given['token_mask']], False
        )
        engine.observe(0, frame, given['noise'][0])
        (answer,) = engine.step()
        times.append((time.perf_counter_ns() - began) / 1e6)
    save_file({'actions': answer.actions[None]}, output)
    return {'ms': times}


if __name__ == '__main__':
    sys.exit(main())
