"""Runs a preset: modes in turn, phases, growth, arrivals in open loop.

Each fills in the result it is given as it goes, so that an error in the middle loses nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from tqdm import tqdm

from oxygen_ros.bench.arrivals import PATTERNS, OpenLoop
from oxygen_ros.bench.families import FIXED_HORIZON
from oxygen_ros.bench.measure import Phases, Samples, Session
from oxygen_ros.bench.report import decode_rates, mode_numbers, phase_medians
from oxygen_ros.bench.roofline import chip_of, roofline_ms
from oxygen_ros.bench.setting import Setting, build_engine
from oxygen_ros.bench.timeline import Timeline
from oxygen_ros.engine.execution import choose, compilations, start
from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.policy import DTYPES

# one thing at a time, from the setting's own value down or up
GROWTH: dict[str, tuple[int, ...]] = {
    'cameras': (1, 2, 3),
    'prompt_tokens': (25, 100, 200),
    'horizon': (10, 25, 50),
    'denoise_steps': (5, 10, 20),
}
GROWTH_ROWS = (1, 2, 4, 8)


def run_modes(
    result: dict[str, Any],
    model: Pi05,
    setting: Setting,
    modes: Sequence[str],
    rounds: int,
    frames: int,
) -> None:
    """Alternate the modes `rounds` times, `frames` frames each; warm-up apart."""
    (sessions, phases), way, result['fallback'] = start(
        lambda way: _warmed_up(model, replace(setting, execution=way.name), modes),
        choose(setting.execution, model.device),
    )
    result['setting']['execution_used'] = way.name
    compiled = compilations()
    samples = {mode: Samples() for mode in modes}
    for _ in tqdm(range(rounds), 'rounds', disable=None):
        phases.run()
        for mode, session in sessions.items():
            session.run(frames, samples[mode])
        result |= _numbers(setting, sessions, samples, phases)
        result['captures_after_ready'] = compilations() - compiled
    chip = chip_of(result['setting']['chip'])
    if chip is not None and setting.family == 'pi05':
        item = DTYPES[setting.dtype].itemsize
        result['roofline_ms'] = roofline_ms(chip, model.arch, setting, item, phases.rows)


def _warmed_up(
    model: Pi05, setting: Setting, modes: Sequence[str]
) -> tuple[dict[str, Session], Phases]:
    sessions = {mode: Session(model, setting, mode) for mode in modes}
    engine = build_engine(model, setting, 'continuous', 'unlimited')
    phases = Phases(engine, model, setting, sorted({1, setting.rows, min(8, engine.pool.rows)}))
    for session in tqdm(sessions.values(), 'warm-up', disable=None):
        session.warm_up()
    phases.warm_up()
    return sessions, phases


def _numbers(
    setting: Setting,
    sessions: Mapping[str, Session],
    samples: Mapping[str, Samples],
    phases: Phases,
) -> dict[str, Any]:
    times = phase_medians(phases)
    copied = (s.engine.stats.kv_bytes_copied_between_frames for s in sessions.values())
    return {
        'modes': {mode: mode_numbers(taken, setting.horizon) for mode, taken in samples.items()},
        'phases_ms': times,
        'frame_without_language_ms': times['prefill'] + times['act'],
        'decode_tok_per_s': decode_rates(times),
        'chunk_ms': {mode: taken.chunk_ms for mode, taken in samples.items()},
        'kv_bytes_copied': sum(copied),
    }


def describe(setting: Setting) -> dict[str, Any]:
    """A setting and the machine it runs on, as in the JSON."""
    return {**asdict(setting), 'rows': setting.rows, **_machine(setting)}


def _machine(setting: Setting) -> dict[str, Any]:
    if setting.device.startswith('cuda'):
        chip = torch.cuda.get_device_name(setting.device)
    else:
        chip = platform.processor() or platform.machine()
    return {'chip': chip, 'threads': torch.get_num_threads(), 'torch': torch.__version__}


def growth_cases(setting: Setting) -> list[tuple[str, int]]:
    """What grows and how far, a case each."""
    fixed = setting.family in FIXED_HORIZON
    things = {name: values for name, values in GROWTH.items() if name != 'horizon' or not fixed}
    return [(name, value) for name, values in things.items() for value in values]


def growth_room(setting: Setting) -> Setting:
    """What a model and an engine must have room for: the largest of every case, and 8 rows."""
    most: dict[str, Any] = {}
    for name, value in growth_cases(setting):
        most[name] = max(value, most.get(name, getattr(setting, name)))
    most['denoise_steps'] = setting.denoise_steps  # takes no room
    tokens = max(setting.tokens, *GROWTH_ROWS)
    return replace(setting, **most, tokens=tokens, budget=tokens // max(GROWTH_ROWS))


def run_growth(result: dict[str, Any], model: Pi05, setting: Setting, rounds: int) -> None:
    """Phase times as one thing at a time grows, all in turn in the same run.

    The model is built for the longest horizon and prefix; a case may have less of each. Captured
    shapes have one length for all, so the layers run as they are.
    """
    if choose(setting.execution, model.device).captured:
        setting = replace(setting, execution='fused')
    result['setting']['execution_used'] = choose(setting.execution, model.device).name
    measured = {}
    room = growth_room(setting)
    for name, value in tqdm(growth_cases(setting), 'warm-up', disable=None):
        change: dict[str, Any] = {name: value}
        engine = build_engine(model, replace(room, **change), 'continuous', 'unlimited')
        measured[name, value] = Phases(engine, model, replace(setting, **change), GROWTH_ROWS)
        measured[name, value].warm_up()
    for _ in tqdm(range(rounds), 'rounds', disable=None):
        for phases in measured.values():
            phases.run()
        result['growth'] = [
            {'case': f'{name} {value}', **phase_medians(phases)}
            for (name, value), phases in measured.items()
        ]


def run_arrivals(
    result: dict[str, Any],
    model: Pi05,
    setting: Setting,
    frame_hz: float,
    request_hz: float,
    seconds: float,
) -> None:
    """Frames at a camera's rate, requests of every pattern; and how much words delay actions."""
    patterns: dict[str, dict[str, float]] = {}
    found = result['arrivals'] = {
        'frame_hz': frame_hz,
        'request_hz': request_hz,
        'budget': setting.budget,
        'patterns': patterns,
    }
    loop = OpenLoop(model, setting, 'continuous')
    loop.run('uniform', frame_hz, request_hz, min(seconds, 2.0))  # warm-up
    for pattern in tqdm(PATTERNS, 'arrivals', disable=None):
        patterns[pattern] = loop.run(pattern, frame_hz, request_hz, seconds).numbers()
    worst = max(numbers['camera_to_chunk_ms_p99'] for numbers in patterns.values())
    found['camera_to_chunk_p99_ratio'] = worst / patterns['none']['camera_to_chunk_ms_p99']


def record(model: Pi05, setting: Setting, seconds: float) -> Timeline:
    """A timeline of `continuous` at steady state, at least so long and of two frames."""
    session = Session(model, setting, 'continuous')
    session.warm_up()
    with Timeline(session.engine) as timeline:
        samples = Samples()
        while len(samples.frame_ms) < 2 or sum(samples.frame_ms) < 1e3 * seconds:
            session.run(1, samples)
    return timeline
