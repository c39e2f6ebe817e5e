"""From samples to the numbers that are compared, printed and written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxygen_ros.bench.measure import Phases, Samples, median, quantile
from oxygen_ros.bench.setting import Setting


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
        },
    }


def ideal_speedup(times: Mapping[str, float], setting: Setting) -> float:
    """What sharing and batching can give on this chip, from the phase times of the same run.

    Isolated: 2 prefills, the action loop and T decode steps alone. Continuous: 1 prefill, the
    action loop and k steps of T / k rows. The engine does with T - 1 steps in both: an answer's
    first token comes from the prefill and costs a language head alone.
    """
    assert isinstance(setting.budget, int)
    prefill, act = times['prefill'], times['act']
    alone = 2 * prefill + act + setting.tokens * times['decode_1']
    together = prefill + act + setting.budget * times[f'decode_{setting.rows}']
    return alone / together


def decode_rates(times: Mapping[str, float]) -> dict[str, float]:
    """Rows -> tokens/s of decode steps alone."""
    rows = [name.removeprefix('decode_') for name in times if name.startswith('decode_')]
    return {count: 1e3 * int(count) / times[f'decode_{count}'] for count in rows}


def phase_medians(phases: Phases) -> dict[str, float]:
    """Median ms of every phase."""
    return {name: median(values) for name, values in phases.times.items()}


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows of text as aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return '\n'.join(lines)
