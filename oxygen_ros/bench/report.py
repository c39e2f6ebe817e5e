"""From samples to the numbers that are compared, printed and written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxygen_ros.bench.measure import Phases, Samples, median, quantile
from oxygen_ros.bench.setting import Setting

_EQUAL = 0.02  # delivered tokens a frame may differ from T by this share


def mode_numbers(samples: Samples, horizon: int) -> dict[str, Any]:
    """One mode's medians. actions_per_s counts every step of a chunk as delivered."""
    frame_ms = median(samples.frame_ms)
    frames_per_s = 1e3 / frame_ms
    seconds = sum(samples.frame_ms) / 1e3
    return {
        'frame_ms': frame_ms,
        'frame_ms_spread': [quantile(samples.frame_ms, 0.1), quantile(samples.frame_ms, 0.9)],
        'frames_per_s': frames_per_s,
        'actions_per_s': frames_per_s * horizon,
        'tok_per_s': samples.tokens / seconds,
        'tokens_per_frame': samples.tokens / len(samples.frame_ms),
        'ttft_ms': median(samples.ttft_ms),
        'camera_to_chunk_ms': {
            'p50': quantile(samples.chunk_ms, 0.5),
            'p99': quantile(samples.chunk_ms, 0.99),
            'n': len(samples.chunk_ms),
        },
    }


def mode_costs(times: Mapping[str, float], setting: Setting) -> dict[str, float]:
    """Mode -> ms of a frame by the times of its phases alone.

    Isolated: 2 prefills, the action loop and T decode steps alone; shared_kv: 1 prefill less;
    continuous: 1 prefill, the action loop and k steps of T / k rows. The engine does with T - 1
    steps in each: an answer's first token comes from the prefill and costs a language head alone.
    """
    frame = times['prefill'] + times['act']
    alone = setting.tokens * times['decode_1']
    together = setting.steps_per_frame * times[f'decode_{setting.rows}']
    return {
        'isolated': frame + times['prefill'] + alone,
        'shared_kv': frame + alone,
        'continuous': frame + together,
    }


def speed_ups(result: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Measured, ideal, and their quotient; or why there is none. Empty without both modes."""
    modes = result['modes']
    if not {'isolated', 'continuous'} <= set(modes):
        return {}
    delivered = {mode: modes[mode]['tokens_per_frame'] for mode in ('isolated', 'continuous')}
    if any(abs(tokens / setting.tokens - 1) > _EQUAL for tokens in delivered.values()):
        told = ', '.join(f'{mode} {tokens:.2f}' for mode, tokens in delivered.items())
        return {'no_speedup': f'the work is not equal: tokens per frame {told}'}
    speedup = modes['isolated']['frame_ms'] / modes['continuous']['frame_ms']
    costs = mode_costs(result['phases_ms'], setting)
    ideal = costs['isolated'] / costs['continuous']
    return {'speedup': speedup, 'ideal': ideal, 'realised_over_ideal': speedup / ideal}


def decode_rates(times: Mapping[str, float]) -> dict[str, float]:
    """Rows -> tokens/s of decode steps alone."""
    rows = [name.removeprefix('decode_') for name in times if name.startswith('decode_')]
    return {count: 1e3 * int(count) / times[f'decode_{count}'] for count in rows}


def phase_medians(phases: Phases) -> dict[str, float]:
    """Median ms of every phase."""
    return {name: median(values) for name, values in phases.times.items()}


def print_result(result: dict[str, Any]) -> None:
    """The setting, a line per mode, a line per phase, and the aims."""
    _print_setting(result)
    roof = result.get('roofline_ms', {})
    lines = [_mode_line(mode, numbers, roof) for mode, numbers in result['modes'].items()]
    print(table([_HEAD, *lines]))
    print('p99 of fewer than 100 frames is the largest; ttft and chunk in ms')
    whole = {'frame without language': result['frame_without_language_ms']}
    for phase, ms in {**result['phases_ms'], **whole}.items():
        print(f'{phase}: {ms:.2f} ms{_ceiling(roof, phase)}')
    if 'speedup' in result:
        print(
            f'speed-up {result["speedup"]:.2f}, ideal {result["ideal"]:.2f}, realised '
            f'{result["realised_over_ideal"]:.3f}'
        )
    if 'no_speedup' in result:
        print(f'no speed-up: {result["no_speedup"]}')


def print_growth(result: dict[str, Any]) -> None:
    """The setting, and a line of phases for each case."""
    _print_setting(result)
    phases = [name for name in result['growth'][0] if name != 'case']
    lines = [('ms', *phases)]
    lines += [
        (case['case'], *(f'{case[name]:.1f}' for name in phases)) for case in result['growth']
    ]
    print(table(lines))


def _print_setting(result: dict[str, Any]) -> None:
    print('setting: ' + ', '.join(f'{key} {value}' for key, value in result['setting'].items()))
    because = f' because {result["fallback"]}' if result.get('fallback') else ''
    print(f'execution that ran: {result["setting"]["execution_used"]}{because}')


_HEAD = ('mode', 'frame ms', 'frames/s', 'actions/s', 'tok/s', 'ttft', 'chunk p50/p99 of n')


def _mode_line(mode: str, n: dict[str, Any], roof: Mapping[str, float]) -> tuple[str, ...]:
    chunk = n['camera_to_chunk_ms']
    return (
        mode,
        f'{n["frame_ms"]:.1f}{_ceiling(roof, mode)}',
        f'{n["frames_per_s"]:.2f}',
        f'{n["actions_per_s"]:.1f}',
        f'{n["tok_per_s"]:.1f}',
        f'{n["ttft_ms"]:.1f}',
        f'{chunk["p50"]:.1f}/{chunk["p99"]:.1f} of {chunk["n"]}',
    )


def _ceiling(roof: Mapping[str, float], name: str) -> str:
    return f' (roofline {roof[name]:.2f})' if name in roof else ''


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows of text as aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return '\n'.join(lines)
