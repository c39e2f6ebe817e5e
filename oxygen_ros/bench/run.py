"""Runs a preset: modes in turn, phases, a sweep of budgets, arrivals in open loop."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from tqdm import tqdm

from oxygen_ros.bench.arrivals import PATTERNS, OpenLoop
from oxygen_ros.bench.measure import Phases, Samples, Session
from oxygen_ros.bench.report import decode_rates, ideal_speedup, mode_numbers, phase_medians
from oxygen_ros.bench.roofline import chip_of, roofline_ms
from oxygen_ros.bench.setting import Setting, build_engine
from oxygen_ros.bench.timeline import Timeline
from oxygen_ros.engine.execution import choose, compilations
from oxygen_ros.engine.request import MODES
from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.policy import DTYPES
from oxygen_ros.types import OxygenError

# one thing at a time, from the setting's own value down or up
GROWTH: dict[str, tuple[int, ...]] = {
    'cameras': (1, 2, 3),
    'prompt_tokens': (25, 100, 200),
    'horizon': (10, 25, 50),
    'denoise_steps': (5, 10, 20),
}
GROWTH_ROWS = (1, 2, 4, 8)
SWEEP_BUDGETS = (0, 1, 2, 5, 10, 15, 30)


def run_modes(
    model: Pi05, setting: Setting, modes: Sequence[str], rounds: int, frames: int
) -> dict[str, Any]:
    """Alternate the modes `rounds` times, `frames` frames each; warm-up apart."""
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise OxygenError(f'unknown modes {", ".join(unknown)}, allowed: {", ".join(MODES)}')
    sessions = {mode: Session(model, setting, mode) for mode in modes}
    engine = build_engine(model, setting, 'continuous', 'unlimited')
    rows = {1, setting.rows, min(8, engine.pool.rows)}
    phases = Phases(engine, model, setting, sorted(rows))
    for session in tqdm(sessions.values(), 'warm-up', disable=None):
        session.warm_up()
    phases.warm_up()
    compiled = compilations()
    samples = {mode: Samples() for mode in modes}
    for _ in tqdm(range(rounds), 'rounds', disable=None):
        phases.run()
        for mode, session in sessions.items():
            session.run(frames, samples[mode])
    result = _result(setting, model, sessions, samples, phases)
    return {**result, 'captures_after_ready': compilations() - compiled}


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
        'decode_tok_per_s': decode_rates(times),
        'chunk_ms': {mode: taken.chunk_ms for mode, taken in samples.items()},
        'kv_bytes_copied': sum(
            s.engine.stats.kv_bytes_copied_between_frames for s in sessions.values()
        ),
    }
    chip = chip_of(result['setting']['chip'])
    if chip is not None and setting.family == 'pi05':
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


def run_sweep(model: Pi05, setting: Setting, frames: int) -> list[dict[str, Any]]:
    """What `continuous` gives at other budgets, from no words to all of them at once."""
    points = []
    for budget in tqdm(SWEEP_BUDGETS, 'sweep', disable=None):
        point = replace(setting, budget=budget, tokens=setting.tokens if budget else 0)
        session, samples = Session(model, point, 'continuous'), Samples()
        session.warm_up()
        session.run(frames, samples)
        points.append({'budget': budget, **mode_numbers(samples, setting.horizon)})
    return points


def run_growth(model: Pi05, setting: Setting, rounds: int) -> list[dict[str, Any]]:
    """Phase times as one thing at a time grows, all in turn in the same run.

    The model is built for the longest horizon and prefix; a case may have less of each. Captured
    shapes have one length for all, so the layers run as they are.
    """
    if choose(setting.execution, model.device).captured:
        setting = replace(setting, execution='fused')
    cases: dict[str, Setting] = {}
    for name, values in GROWTH.items():
        for value in values:
            change: dict[str, Any] = {name: value}
            cases[f'{name} {value}'] = replace(setting, **change)
    measured = {}
    for name, case in tqdm(cases.items(), 'warm-up', disable=None):
        engine = build_engine(model, replace(case, budget=4), 'continuous', 'unlimited')
        measured[name] = Phases(engine, model, case, GROWTH_ROWS)
        measured[name].warm_up()
    for _ in tqdm(range(rounds), 'rounds', disable=None):
        for phases in measured.values():
            phases.run()
    return [{'case': name, **phase_medians(phases)} for name, phases in measured.items()]


def run_arrivals(
    model: Pi05, setting: Setting, frame_hz: float, request_hz: float, seconds: float
) -> dict[str, Any]:
    """Frames at a camera's rate, requests of every pattern; and how much words delay actions."""
    loop = OpenLoop(model, setting, 'continuous')
    loop.run('uniform', frame_hz, request_hz, min(seconds, 2.0))  # warm-up
    results = {
        pattern: loop.run(pattern, frame_hz, request_hz, seconds).numbers()
        for pattern in tqdm(PATTERNS, 'arrivals', disable=None)
    }
    quiet = results['none']['camera_to_chunk_ms_p99']
    worst = max(numbers['camera_to_chunk_ms_p99'] for numbers in results.values())
    return {
        'frame_hz': frame_hz,
        'request_hz': request_hz,
        'budget': setting.budget,
        'patterns': results,
        'camera_to_chunk_p99_ratio': worst / quiet,
    }


def record(model: Pi05, setting: Setting, seconds: float) -> Timeline:
    """A timeline of `continuous` at steady state, at least so long."""
    session = Session(model, setting, 'continuous')
    session.warm_up()
    with Timeline(session.engine) as timeline:
        samples = Samples()
        while sum(samples.frame_ms) < 1e3 * seconds:
            session.run(1, samples)
    return timeline
