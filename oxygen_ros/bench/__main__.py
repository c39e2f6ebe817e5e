"""What sharing and batching give: modes on the same kernels, in turn, in one run.

    python -m oxygen_ros.bench --preset paper --size small --json result.json

Every number stands beside its setting, and beside what the chip could do where that is known.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from oxygen_ros.bench.families import FAMILIES, STEPS, build_model
from oxygen_ros.bench.plots import draw
from oxygen_ros.bench.report import table
from oxygen_ros.bench.run import (
    GROWTH,
    record,
    run_arrivals,
    run_growth,
    run_modes,
    run_sweep,
)
from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint.library import check_transformers
from oxygen_ros.checkpoint.random_pi05 import SIZES
from oxygen_ros.devices import find_device
from oxygen_ros.engine.execution import NAMES
from oxygen_ros.engine.request import MODES
from oxygen_ros.policy import DTYPES
from oxygen_ros.types import OxygenError

# The paper's workload: 3 cameras, 10 steps, one request of 30 tokens a frame, 5 steps a frame.
PRESETS = {
    'paper': Setting(),
    'sweep': Setting(),
    'arrivals': Setting(budget='auto'),
    'growth': Setting(),
    'tiny': Setting(size='tiny', dtype='float32', prompt_tokens=40),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a preset; exit code 2 with one line when something given cannot be used."""
    given = _parser().parse_args(argv)
    try:
        _run(given)
    except OxygenError as error:
        print(f'bench: {error}', file=sys.stderr)
        return 2
    return 0


def _run(given: argparse.Namespace) -> None:
    check_transformers()
    setting = _setting(given)
    folder = None if given.plots is None else _folder(given.plots)
    out = None if given.json is None else _folder(Path(given.json).parent) / Path(given.json).name
    if given.preset == 'growth':
        _write(out, _growth(setting, given.rounds))
        return
    model = build_model(setting)
    closed = setting if isinstance(setting.budget, int) else replace(setting, budget=5)
    result = run_modes(model, closed, given.modes.split(','), given.rounds, given.frames)
    if given.preset == 'sweep':
        result['sweep'] = run_sweep(model, setting, given.frames)
    if given.preset == 'arrivals':
        seconds, rate = given.seconds, given.frame_hz
        result['arrivals'] = run_arrivals(model, setting, rate, given.request_hz, seconds)
    print_result(result)
    if folder is not None:
        timeline = record(model, setting, 1.0)
        timeline.write_trace(folder / 'trace.json')
        for path in draw(result, timeline, folder):
            print(f'wrote {path}')
    _write(out, result)


def _growth(setting: Setting, rounds: int) -> dict[str, Any]:
    """Build a model for the largest case, run all and print a line for each."""
    most: dict[str, Any] = {
        name: max(GROWTH[name]) for name in ('cameras', 'prompt_tokens', 'horizon')
    }
    largest = replace(setting, **most)
    cases = run_growth(build_model(largest), setting, rounds)
    phases = [name for name in cases[0] if name != 'case']
    lines = [('ms', *phases)]
    lines += [(case['case'], *(f'{case[name]:.1f}' for name in phases)) for case in cases]
    print(table(lines))
    return {'setting': asdict(setting), 'growth': cases}


def _write(out: Path | None, result: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')


def _folder(path: str | Path) -> Path:
    """A folder that can be written, made if need be. Raises OxygenError."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / '.writable'
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OxygenError(f'{folder} cannot be written: {error}; give another folder') from error
    return folder


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
            f'{result["kv_bytes_copied"]} bytes; compiled after ready: '
            f'{result["captures_after_ready"]}'
        )


def _setting(given: argparse.Namespace) -> Setting:
    setting = PRESETS[given.preset]
    names = (
        'family',
        'size',
        'device',
        'dtype',
        'execution',
        'cameras',
        'prompt_tokens',
        'horizon',
        'tokens',
        'budget',
    )
    chosen = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    setting = replace(setting, **chosen)
    setting = replace(setting, denoise_steps=STEPS[setting.family])
    find_device(setting.device)
    return setting


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m oxygen_ros.bench', description=__doc__)
    parser.add_argument('--preset', choices=sorted(PRESETS), default='paper')
    parser.add_argument('--family', choices=sorted(FAMILIES))
    parser.add_argument('--size', choices=sorted(SIZES))
    parser.add_argument('--device')
    parser.add_argument('--dtype', choices=sorted(DTYPES))
    parser.add_argument('--execution', choices=NAMES)
    parser.add_argument('--modes', default=','.join(MODES))
    for name in ('cameras', 'prompt-tokens', 'horizon', 'tokens', 'budget'):
        parser.add_argument(f'--{name}', type=int)
    parser.add_argument('--rounds', type=int, default=3, help='of all modes in turn')
    parser.add_argument('--frames', type=int, default=6, help='of each mode in a round')
    parser.add_argument('--frame-hz', type=float, default=7.0, help='arrivals: of the camera')
    parser.add_argument('--request-hz', type=float, default=2.0, help='arrivals: of requests')
    parser.add_argument('--seconds', type=float, default=10.0, help='arrivals: of each pattern')
    parser.add_argument('--json', metavar='FILE')
    parser.add_argument('--plots', metavar='FOLDER', help='pictures and a trace for Perfetto')
    return parser


if __name__ == '__main__':
    sys.exit(main())
