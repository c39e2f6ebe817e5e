"""Numbers out of episodes and answers."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from oxygen_ros.tabletop.episode import Run


def score(runs: Sequence[Run]) -> dict[str, Any]:
    """What some episodes came to. success: a push beyond its line; near: NEAR_LINE too early."""
    times = [run.reached_s for run in runs if run.reached_s is not None]
    at_seams, elsewhere = zip(*(_jolts_mm(run) for run in runs), strict=True)
    digest = hashlib.sha256()
    for run in runs:
        digest.update(np.asarray(run.commands).tobytes())
    spoken = [spoken for run in runs for spoken in run.spoken]
    return {
        'episodes': len(runs),
        'success': share(run.reached_s is not None for run in runs),
        'success_near': share(run.near_s is not None for run in runs),
        'by_kind': by_kind((run.task.kind, run.reached_s is not None) for run in runs),
        'by_kind_near': by_kind((run.task.kind, run.near_s is not None) for run in runs),
        'not_reached': [n for n, run in enumerate(runs) if run.reached_s is None],
        'time_to_success_s': percentiles(times),
        'jolt_at_seams_mm': percentiles(np.concatenate(at_seams)),
        'jolt_elsewhere_mm': percentiles(np.concatenate(elsewhere)),
        'language_while_moving': share(s.right for s in spoken),
        'language_while_moving_best': share(s.best for s in spoken),
        'language_while_moving_asked': len(spoken),
        'actions_sha256': digest.hexdigest(),
    }


def _jolts_mm(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """How much the commanded step changes from one tick to the next, at seams and elsewhere."""
    places = np.asarray(run.commands)[:, :3] * 1e3
    jolts = np.abs(np.diff(places, 2, axis=0)).max(1)
    seams = np.zeros(len(jolts), bool)
    # A jump between two ticks is a jolt into it and one out of it.
    at = np.add.outer(run.seams[1:], [-2, -1]).flatten().astype(int)
    seams[at[(at >= 0) & (at < len(jolts))]] = True
    return jolts[seams], jolts[~seams]


def share(right: Iterable[bool]) -> float:
    """Part of them that is true, 0 for none."""
    values = list(right)
    return round(sum(values) / len(values), 4) if values else 0.0


def by_kind(pairs: Iterable[tuple[str, bool]]) -> dict[str, Any]:
    """Kind -> share that is right, and of how many."""
    found = defaultdict(list)
    for kind, right in pairs:
        found[kind].append(right)
    return {kind: {'right': share(v), 'of': len(v)} for kind, v in sorted(found.items())}


def percentiles(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """The middle, the 95th and the largest."""
    if not len(values):
        return {}
    p50, p95, most = np.percentile(values, [50, 95, 100])
    return {'p50': round(float(p50), 3), 'p95': round(float(p95), 3), 'max': round(float(most), 3)}
