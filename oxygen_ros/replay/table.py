"""Many bags at once: one row each, one table, the same wherever the rows were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxygen_ros.replay.numbers import rounded

COLUMNS = {
    'bag': 'bag',
    'status': 'result',
    'seconds': 's',
    'chunks': 'chunks',
    'dropped': 'dropped',
    'error': 'error',
    'against_still': 'of still',
    'seam_p99': 'seam p99',
    'age_p50_ms': 'age ms',
    'tokens': 'tokens',
    'answers': 'answers',
}
SCHEMA = 3


def row_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one report. error: mean over joints of the mean distance, robot units.

    against_still: mean over joints of that distance to the one of a robot that stands still; a
    policy that is worth anything is below 1.
    """
    scores, totals = report['scores'], report['totals']
    errors = list(scores['error'].values())
    ratios = [e['mean'] / e['standing_still'] for e in errors if e['standing_still']]
    seams = [s['p99'] for s in scores['seams']['joints'].values() if s]
    age = scores['chunk_age_ms']
    return {
        'bag': report['bag']['name'],
        'status': 'ok' if report['complete'] else 'partial',
        'problem': report['problem'],
        'seconds': rounded(report['bag']['duration_ns'] / 1e9),
        'chunks': totals['chunks'],
        'frames': totals['frames'],
        'dropped': sum(report['counters']['dropped'].values()),
        'error': _mean([error['mean'] for error in errors]),
        'against_still': _mean(ratios),
        'seam_p99': max(seams, default=None),
        'age_p50_ms': age['p50'] if age else None,
        'tokens': totals['tokens'],
        'answers': scores['language']['answers_done'],
    }


def failed_row(bag: str, problem: str) -> dict[str, Any]:
    """A bag of which nothing could be used."""
    return {**dict.fromkeys(COLUMNS), 'bag': bag, 'status': 'failed', 'problem': problem}


def summary(
    rows: Sequence[Mapping[str, Any]], values: Mapping[str, Any], made_by: Mapping[str, Any]
) -> dict[str, Any]:
    """All rows as one report, in the order of the bags."""
    return {
        'schema': SCHEMA,
        'kind': 'summary',
        'complete': all(row['status'] == 'ok' for row in rows),
        'parameters': dict(values),
        'made_by': dict(made_by),
        'bags': [dict(row) for row in rows],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows in columns, with what went wrong below."""
    cells = [list(COLUMNS.values()), *([_cell(row.get(key)) for key in COLUMNS] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = [_line(line, widths) for line in cells]
    lines += [f'{row["bag"]}: {row["problem"]}' for row in rows if row['problem']]
    return '\n'.join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    texts = [f'{c:<{w}}' for c, w in zip(cells[:2], widths[:2], strict=True)]
    texts += [f'{c:>{w}}' for c, w in zip(cells[2:], widths[2:], strict=True)]
    return '  '.join(texts).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return '-'
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def _mean(values: Sequence[float]) -> float | None:
    return rounded(sum(values) / len(values)) if values else None
