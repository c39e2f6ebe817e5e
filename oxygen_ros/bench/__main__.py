"""What sharing and batching give: modes on the same kernels, in turn, in one run.

    python -m oxygen_ros.bench --preset paper --size small --json result.json

Every number stands beside its setting, and beside what the chip could do where that is known.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from oxygen_ros.bench.measure import Phases, Samples, Session
from oxygen_ros.bench.report import ideal_speedup, mode_numbers, phase_medians, table
from oxygen_ros.bench.roofline import chip_of, roofline_ms
from oxygen_ros.bench.setting import DTYPES, Setting, build_engine, build_model
from oxygen_ros.checkpoint.random_pi05 import SIZES
from oxygen_ros.engine.request import MODES
from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.types import OxygenError

# The paper's workload: 3 cameras, 10 steps, one request of 30 tokens a frame, 5 steps a frame.
PRESETS = {
    'paper': Setting(),
    'tiny': Setting(size='tiny', dtype='float32', prompt_tokens=40),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a preset; exit code 2 with one line when something given cannot be used."""
    given = _parser().parse_args(argv)
    try:
        setting = _setting(given)
        result = run(setting, given.modes.split(','), given.rounds, given.frames)
    except OxygenError as error:
        print(f'bench: {error}', file=sys.stderr)
        return 2
    print_result(result)
    if given.json:
        try:
            Path(given.json).write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')
        except OSError as error:
            print(f'bench: {given.json} cannot be written: {error}', file=sys.stderr)
            return 2
    return 0


def run(setting: Setting, modes: Sequence[str], rounds: int, frames: int) -> dict[str, Any]:
    """Alternate the modes `rounds` times, `frames` frames each; warm-up apart."""
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise OxygenError(f'unknown modes {", ".join(unknown)}, allowed: {", ".join(MODES)}')
    model = build_model(setting)
    sessions = {mode: Session(model, setting, mode) for mode in modes}
    engine = build_engine(model, setting, 'continuous', 'unlimited')
    phases = Phases(engine, model, setting, sorted({1, setting.rows}))
    for session in tqdm(sessions.values(), 'warm-up', disable=None):
        session.warm_up()
    phases.warm_up()
    samples = {mode: Samples() for mode in modes}
    for _ in tqdm(range(rounds), 'rounds', disable=None):
        phases.run()
        for mode, session in sessions.items():
            session.run(frames, samples[mode])
    return _result(setting, model, sessions, samples, phases)


def _result(
    setting: Setting,
    model: Pi05,
    sessions: dict[str, Session],
    samples: dict[str, Samples],
    phases: Phases,
) -> dict[str, Any]:
    times = phase_medians(phases)
    numbers = {mode: mode_numbers(taken, setting.horizon) for mode, taken in samples.items()}
    result: dict[str, Any] = {
        'setting': {**asdict(setting), 'rows': setting.rows, **_machine(setting)},
        'modes': numbers,
        'phases_ms': times,
        'kv_bytes_copied': sum(
            s.engine.stats.kv_bytes_copied_between_frames for s in sessions.values()
        ),
    }
    chip = chip_of(result['setting']['chip'])
    if chip is not None:
        item = DTYPES[setting.dtype].itemsize
        result['roofline_ms'] = roofline_ms(chip, model.arch, setting, item)
    if {'isolated', 'continuous'} <= set(numbers):
        speedup = numbers['isolated']['frame_ms'] / numbers['continuous']['frame_ms']
        ideal = ideal_speedup(times, setting)
        result |= {'speedup': speedup, 'ideal': ideal, 'realised_over_ideal': speedup / ideal}
    return result


def _machine(setting: Setting) -> dict[str, Any]:
    if setting.device.startswith('cuda'):
        chip = torch.cuda.get_device_name(setting.device)
    else:
        chip = platform.processor() or platform.machine()
    return {'chip': chip, 'threads': torch.get_num_threads(), 'torch': torch.__version__}


def print_result(result: dict[str, Any]) -> None:
    """The setting, a line per mode, a line per phase, and the speed-up."""
    print('setting: ' + ', '.join(f'{key} {value}' for key, value in result['setting'].items()))
    rows: list[tuple[str, ...]] = [
        ('mode', 'frame ms', 'frames/s', 'actions/s', 'tok/s', 'ttft ms', 'chunk p50/p99')
    ]
    for mode, n in result['modes'].items():
        chunk = n['camera_to_chunk_ms']
        rows.append(
            (
                mode,
                f'{n["frame_ms"]:.1f}',
                f'{n["frames_per_s"]:.2f}',
                f'{n["actions_per_s"]:.1f}',
                f'{n["tok_per_s"]:.1f}',
                f'{n["ttft_ms"]:.1f}',
                f'{chunk["p50"]:.1f}/{chunk["p99"]:.1f}',
            )
        )
    print(table(rows))
    roof = result.get('roofline_ms', {})
    for phase, ms in result['phases_ms'].items():
        ceiling = f' (roofline {roof[phase]:.2f})' if phase in roof else ''
        print(f'{phase}: {ms:.2f} ms{ceiling}')
    if 'speedup' in result:
        print(
            f'speed-up {result["speedup"]:.2f}, ideal {result["ideal"]:.2f}, realised '
            f'{result["realised_over_ideal"]:.3f}; KV copied between frames: '
            f'{result["kv_bytes_copied"]} bytes'
        )


def _setting(given: argparse.Namespace) -> Setting:
    setting = PRESETS[given.preset]
    names = ('size', 'device', 'dtype', 'cameras', 'prompt_tokens', 'horizon', 'tokens', 'budget')
    chosen = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    setting = replace(setting, **chosen)
    if setting.device.startswith('cuda') and not torch.cuda.is_available():
        raise OxygenError(f'device {setting.device} is not there: use cpu')
    return setting


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m oxygen_ros.bench', description=__doc__)
    parser.add_argument('--preset', choices=sorted(PRESETS), default='paper')
    parser.add_argument('--size', choices=sorted(SIZES))
    parser.add_argument('--device')
    parser.add_argument('--dtype', choices=sorted(DTYPES))
    parser.add_argument('--modes', default=','.join(MODES))
    for name in ('cameras', 'prompt-tokens', 'horizon', 'tokens', 'budget'):
        parser.add_argument(f'--{name}', type=int)
    parser.add_argument('--rounds', type=int, default=3, help='of all modes in turn')
    parser.add_argument('--frames', type=int, default=6, help='of each mode in a round')
    parser.add_argument('--json', metavar='FILE')
    return parser


if __name__ == '__main__':
    sys.exit(main())
