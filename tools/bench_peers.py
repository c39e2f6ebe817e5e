"""Time an action chunk of LeRobot's own pi0.5 and of ours: same weights, inputs, dtype, device.

    python tools/bench_peers.py --env ../lerobot-env --size small --dtype bfloat16 --json out.json
    python tools/bench_peers.py --env ../lerobot-env --size full --device cuda --json out.json

Both run in processes of their own, which are idle while the other works, and answer in turn; ours
in `shared_kv` and in `isolated`. Timed is the same of both: processed tensors on the host in,
normalised actions on the host out, by each process itself. The environment is made as
tools/regenerate_golden.py makes it. All threads of the machine are used.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lerobot_peer.environment import EnvironmentProblem, ready_python, worker_variables
from lerobot_peer.pipe import Worker, WorkerFailed, serve
from safetensors.numpy import load_file, save_file

from oxygen_ros.bench.bars import Bar
from oxygen_ros.bench.flags import whole
from oxygen_ros.bench.outputs import check_outputs
from oxygen_ros.bench.setting import Setting, network
from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.checkpoint.random_pi05 import DTYPES as STORED
from oxygen_ros.checkpoint.random_pi05 import SIZES, write_random_checkpoint
from oxygen_ros.devices import available_bytes, find_device
from oxygen_ros.policy import DTYPES
from oxygen_ros.types import OxygenError

SLOTS = 3
FRAMES = 3  # different inputs, taken in turn
PROMPT = 200  # slots of a prompt
OURS = {'ours': 'shared_kv', 'isolated': 'isolated'}  # who -> mode
# Whoever follows the other process finds cold caches: so both of ours do.
TURN = ('ours', 'peer', 'isolated', 'peer')
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
        outputs = check_outputs(given.json, None, None)
        find_device(given.device)
        python = ready_python(given.env.absolute(), given.python)
        with tempfile.TemporaryDirectory() as scratch:
            check_room(given, Path(scratch))
            report = measure(given, python, Path(scratch))
    except (EnvironmentProblem, WorkerFailed, OxygenError) as problem:
        print(f'bench_peers: {problem}', file=sys.stderr)
        return 2
    outputs.write(report)
    print(json.dumps(report, indent=2))
    for bar in bars(report):
        print(bar.line())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--env', type=Path, help="folder of LeRobot's environment")
    parser.add_argument('--python', default='python3.12', help='makes the environment')
    parser.add_argument('--size', choices=tuple(SIZES), default='tiny')
    parser.add_argument('--device', default='cpu', help='of both: cpu, cuda or cuda:N')
    parser.add_argument('--cameras', type=int, choices=(3, 2), default=3, help='2: one is absent')
    parser.add_argument(
        '--prompt-tokens',
        type=whole(1, PROMPT),
        default=PROMPT,
        help=f'of {PROMPT}, the rest is padding',
    )
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='bfloat16')
    parser.add_argument(
        '--peer-vision',
        choices=('same', 'float32'),
        default='same',
        help='LeRobot itself keeps the vision tower in float32; same: in --dtype, as ours',
    )
    parser.add_argument('--execution', default='auto', help='of ours, as in PolicyOptions')
    parser.add_argument('--steps', type=whole(1), default=10, help='of denoising')
    parser.add_argument('--repeats', type=whole(1), default=10, help='of each, in turn')
    parser.add_argument('--json', metavar='FILE', help='for the results')
    parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
    return parser


def check_room(given: argparse.Namespace, scratch: Path) -> None:
    """Disk for the checkpoint, memory for both networks. Raises OxygenError."""
    setting = Setting(size=given.size, dtype=given.dtype, device='meta')
    values = sum(parameter.numel() for parameter in network(setting).parameters())
    needed = 2 * values * DTYPES[given.dtype].itemsize
    free = available_bytes(find_device(given.device))
    if needed > free:
        raise OxygenError(
            f'both networks take {needed / 2**30:.1f} GiB, {given.device} has '
            f'{free / 2**30:.1f} GiB free: choose a smaller size or dtype'
        )
    needed, free = values * STORED[given.size].itemsize, shutil.disk_usage(scratch).free
    if needed > free:
        raise OxygenError(
            f'the checkpoint takes {needed / 2**30:.1f} GiB, {scratch.parent} has '
            f'{free / 2**30:.1f} GiB left: name a folder on another disk by TMPDIR'
        )


def bars(report: dict[str, Any]) -> list[Bar]:
    """Aims: isolated is a strong baseline, a chunk from shared_kv is faster than the peer's."""
    least = 1.2 if report['setting']['absent_cameras'] == 0 else 1.5
    return [
        Bar("LeRobot's time over isolated", report['ratio_isolated'], 1.0, False),
        Bar("LeRobot's time over shared_kv", report['ratio'], least, False),
    ]


def measure(given: argparse.Namespace, python: Path, scratch: Path) -> dict[str, Any]:
    """The report; checkpoint and tensors are written to scratch. Raises WorkerFailed."""
    checkpoint = write_random_checkpoint(scratch / 'checkpoint', given.size)
    info = inspect_checkpoint(checkpoint)
    files = [_write_inputs(info.arch, given, number, scratch) for number in range(FRAMES)]
    threads = os.cpu_count() or 1
    vision = given.dtype if given.peer_vision == 'same' else 'float32'
    with _workers(python) as (ours, peer):
        shared = {'checkpoint': str(checkpoint), 'dtype': given.dtype, 'threads': threads}
        shared['device'] = given.device
        own = {'execution': given.execution, 'steps': given.steps}
        versions = {'ours': ours.ask('load', **shared, **own)}
        arch = dataclasses.asdict(info.arch)
        versions['peer'] = peer.ask('load', **shared, arch=arch, vision_dtype=vision)
        times, away, scale = _alternate(ours, peer, files, given, scratch)
    medians = {who: statistics.median(each) for who, each in times.items()}
    report = {
        'chunk_ms': medians,
        'ratio': medians['peer'] / medians['ours'],
        'ratio_isolated': medians['peer'] / medians['isolated'],
        'chunk_ms_all': times,
        'agreement': {'max_abs': away, 'largest_action': scale},
        'setting': {
            **{name: getattr(given, name) for name in _SETTING},
            'execution_used': versions['ours']['execution_used'],
            'absent_cameras': SLOTS - given.cameras,
            'peer_vision_dtype': vision,
            'horizon': info.arch.horizon,
            'threads': threads,
            'timed': 'processed tensors in, normalised actions out',
            'machine': _machine(),
            'chip': versions['ours']['chip'],
            'versions': {who: answer['versions'] for who, answer in versions.items()},
        },
    }
    return {**report, 'bars': [bar.report() for bar in bars(report)]}


_SETTING = (
    'size', 'device', 'cameras', 'prompt_tokens', 'dtype', 'execution', 'steps', 'repeats',
)  # fmt: skip


@contextlib.contextmanager
def _workers(python: Path) -> Iterator[tuple[Worker, Worker]]:
    own = [sys.executable, __file__, '--worker']
    theirs = [str(python), '-m', 'lerobot_peer.worker']
    with Worker(own, os.environ) as ours, Worker(theirs, worker_variables()) as peer:
        yield ours, peer


def _write_inputs(arch: Any, given: argparse.Namespace, number: int, scratch: Path) -> str:
    """One frame; the last slot is the absent one, as LeRobot orders them."""
    random = np.random.default_rng(number)
    side, padded = arch.image_size, PROMPT
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
    """Times in ms of each, largest difference of their actions, and the largest action."""
    askers = {who: partial(ours.ask, 'act', mode=mode) for who, mode in OURS.items()}
    askers['peer'] = partial(peer.ask, 'act')
    times: dict[str, list[float]] = {who: [] for who in askers}
    away = scale = 0.0
    for turn in range(WARM_UP + given.repeats):
        made = {}
        for who in TURN:
            output = str(scratch / who)
            inputs = files[turn % len(files)]
            answer = askers[who](inputs=inputs, output=output, steps=given.steps, repeats=1)
            made[who] = load_file(output)['actions']
            if turn >= WARM_UP:
                times[who] += answer['ms']
            time.sleep(SETTLE_S)
        away = max(away, *(float(np.abs(made[who] - made['peer']).max()) for who in OURS))
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
    checkpoint: str, dtype: str, device: str, threads: int, execution: str, steps: int
) -> dict[str, Any]:
    import torch
    import transformers

    from oxygen_ros.policy import Policy

    policy = Policy.from_checkpoint(
        checkpoint,
        dtype=dtype,
        device=device,
        denoise_steps=steps,
        cpu_threads=threads,
        execution=execution,
    )
    _held.update(policy=policy, steps=steps)
    on_gpu = device.startswith('cuda')
    return {
        'versions': {m.__name__: m.__version__ for m in (torch, transformers)},
        'execution_used': policy.stats.execution,
        'chip': torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
    }


def _act(inputs: str, output: str, steps: int, repeats: int, mode: str) -> dict[str, Any]:
    """As the peer's: actions [1, H, A] written to output, times in ms. mode: of the engine."""
    from safetensors.torch import load_file as load_tensors

    from oxygen_ros.engine.request import MODES
    from oxygen_ros.processing.pi05 import Pi05Inputs

    engine, given = _held['policy'].engine, load_tensors(inputs)
    assert steps == _held['steps'], 'loaded for another number of steps'
    engine.scheduler.mode = MODES[mode]
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
