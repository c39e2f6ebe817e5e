"""Two reports of one bag side by side: two checkpoints, two settings or two versions."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.replay.files import to_json, write_json, write_text
from oxygen_ros.replay.numbers import rounded
from oxygen_ros.replay.report import SCHEMA
from oxygen_ros.replay.table import row_of
from oxygen_ros.types import OxygenError

# Where a difference is better: -1 down, 1 up, 0 neither.
NUMBERS: tuple[tuple[str, str, int], ...] = (
    ('error', 'error, mean over joints', -1),
    ('against_still', 'error / error of standing still', -1),
    ('seam_p99', 'seam p99 of the worst joint', -1),
    ('age_p50_ms', 'chunk age p50, ms', -1),
    ('chunks', 'chunks', 1),
    ('dropped', 'dropped', -1),
    ('tokens', 'tokens', 0),
    ('answers', 'answers finished', 1),
)
MEASURED: tuple[tuple[str, str, int], ...] = (
    ('frame_ms', 'frame p50, ms', -1),
    ('camera_to_chunk_ms', 'camera to chunk p50, ms', -1),
    ('first_token_ms', 'request to first token p50, ms', -1),
    ('tok_per_s', 'tokens/s', 1),
)
_SECTIONS = ('bag', 'made_by', 'settings', 'scores', 'totals', 'counters', 'frames', 'requests')


def compare_command(paths: Sequence[str], json_out: str | None, html_out: str | None) -> int:
    """Print the table, write what is asked for; returns the exit code. Raises OxygenError."""
    reports = [read_report(Path(path).expanduser()) for path in paths]
    found = compare(reports[0], reports[1], distinct_names(paths))
    if json_out == '-':
        sys.stdout.write(to_json(found))
    elif json_out is not None:
        write_json(found, Path(json_out).expanduser())
    if html_out is not None:
        from oxygen_ros.replay.compare_page import compare_page

        write_text(compare_page(found, *reports), Path(html_out).expanduser(), '--html')
    print(compare_table(found), file=sys.stderr if json_out == '-' else sys.stdout)
    return 0


def distinct_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that differ; the file's name where all are one file."""
    parts = [Path(path).expanduser().resolve().parts for path in paths]
    count = 1
    while len({part[-count:] for part in parts}) < len(set(parts)):
        count += 1
    return [str(Path(*part[-count:])) for part in parts]


def read_report(path: Path) -> dict[str, Any]:
    """A report of a replay. Raises OxygenError that says why a file is none."""
    try:
        report = json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise OxygenError(f'report {path} cannot be read: {error.strerror}') from error
    except ValueError as error:
        raise OxygenError(f'report {path} is no JSON: {error}') from error
    if isinstance(report, dict) and report.get('kind') == 'summary':
        raise OxygenError(f'report {path} is a table of several bags: give the report of one bag')
    schema = report.get('schema') if isinstance(report, dict) else None
    if schema != SCHEMA:
        given = f'has schema {schema}' if isinstance(schema, int) else 'is no report of a replay'
        raise OxygenError(
            f'report {path} {given}, this version of oxygen_ros reads schema {SCHEMA}: replay '
            'the bag again'
        )
    missing = [key for key in _SECTIONS if key not in report]
    if missing:
        raise OxygenError(f'report {path} lacks {", ".join(missing)}: replay the bag again')
    return report


def check_fit(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Refuse reports that say nothing about each other. Raises OxygenError."""
    a, b = first['bag'], second['bag']
    if any(a[key] != b[key] for key in ('start_ns', 'duration_ns', 'messages')):
        raise OxygenError(
            f'the reports are of two bags: {a["name"]} ({a["messages"]} messages, '
            f'{a["duration_ns"] / 1e9:.1f} s) and {b["name"]} ({b["messages"]} messages, '
            f'{b["duration_ns"] / 1e9:.1f} s). Replay one bag twice'
        )
    a, b = (report['settings']['contract'] for report in (first, second))
    if a['action_joints'] != b['action_joints']:
        ours, theirs = (set(c['action_joints']) for c in (a, b))
        only = [', '.join(sorted(names)) or 'none' for names in (ours - theirs, theirs - ours)]
        raise OxygenError(
            'the reports are of other joints, or in another order: only in the first '
            f'{only[0]}; only in the second {only[1]}. Replay both with one contract'
        )
    if a['step_period_s'] != b['step_period_s']:
        raise OxygenError(
            f'step_period_s is {a["step_period_s"]:g} and {b["step_period_s"]:g}: rows of the '
            'chunks are due at other times. Replay both with one contract'
        )


def compare(
    first: Mapping[str, Any], second: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """All differences as plain data. Raises OxygenError if the two do not fit."""
    check_fit(first, second)
    return {
        'schema': SCHEMA,
        'kind': 'comparison',
        'names': list(names),
        'bag': first['bag']['name'],
        'complete': [first['complete'], second['complete']],
        'settings': _settings(first, second),
        'numbers': _numbers(first, second),
        'joints': _joints(first, second),
        'chunks': _chunks(first, second),
        'answers': _answers(first, second),
    }


def _settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> both values, of every setting that differs: as it really was, where that is known.

    A parameter says what was asked for, so those that have an effective value are left out.
    """
    a, b = (_named_settings(report) for report in (first, second))
    return {name: [a.get(name), b.get(name)] for name in {**a, **b} if a.get(name) != b.get(name)}


def _named_settings(report: Mapping[str, Any]) -> dict[str, Any]:
    settings = report['settings']
    effective = settings['effective']
    return {
        **report['made_by'],
        **{f'model.{name}': value for name, value in settings['model'].items()},
        **{f'contract.{name}': value for name, value in settings['contract'].items()},
        **{k: v for k, v in settings['parameters'].items() if k not in effective},
        **effective,
        'timeline': settings['timeline'],
    }


def _numbers(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = [row_of(first), row_of(second)]
    found = [_line(title, [row[key] for row in rows], better) for key, title, better in NUMBERS]
    measured = [report.get('measured') for report in (first, second)]
    if all(measured):
        for key, title, better in MEASURED:
            both = [_p50(report[key]) for report in measured if report]
            found.append(_line(title, both, better))
    return found


def _p50(value: Any) -> Any:
    return value['p50'] if isinstance(value, dict) else value


def _line(title: str, both: Sequence[Any], better: int) -> dict[str, Any]:
    """One number of both. verdict: 'better' or 'worse' of the second, '' where there is none."""
    a, b = both
    if a is None or b is None:
        return {'what': title, 'values': [a, b], 'difference': None, 'verdict': ''}
    difference = rounded(b - a)
    good = {0.0: ''}.get(difference * better, 'better' if difference * better > 0 else 'worse')
    return {'what': title, 'values': [a, b], 'difference': difference, 'verdict': good}


def _joints(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Mean error of each joint that both have."""
    a, b = (report['scores']['error'] for report in (first, second))
    names = first['settings']['contract']['action_joints']
    both = [name for name in names if name in a and name in b]
    return [_line(name, [a[name]['mean'], b[name]['mean']], -1) for name in both]


def _chunks(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Chunks of the same frame against each other."""
    a, b = ({f['stamp_ns']: f['actions'] for f in r['frames']} for r in (first, second))
    both = [stamp for stamp in a if stamp in b]
    joints = first['settings']['contract']['action_joints']
    largest = np.zeros(len(joints))
    equal = 0
    for stamp in both:
        equal += a[stamp] == b[stamp]
        rows = min(len(a[stamp]), len(b[stamp]))
        here, there = (np.array(c[stamp][:rows], np.float64) for c in (a, b))
        largest = np.maximum(largest, np.abs(here - there).max(axis=0))
    return {
        'in_both': len(both),
        'only': [len(a) - len(both), len(b) - len(both)],
        'equal': equal,
        'largest_difference': {n: rounded(float(v)) for n, v in zip(joints, largest, strict=True)},
    }


def _answers(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Both texts of every request that both answered."""
    a, b = ({answer['id']: answer for answer in r['requests']} for r in (first, second))
    return [
        {
            'id': name,
            'task': a[name]['task'],
            'prompt': a[name]['prompt'],
            'texts': [a[name]['text'], b[name]['text']],
            'equal': a[name]['tokens'] == b[name]['tokens'],
        }
        for name in a
        if name in b
    ]


def compare_table(found: Mapping[str, Any]) -> str:
    """What differs, in columns."""
    lines = [f'{found["bag"]}: {found["names"][0]} against {found["names"][1]}']
    lines += [f'  {name}: {a} -> {b}' for name, (a, b) in found['settings'].items()]
    lines += [''] + _columns('what', found['names'], found['numbers'])
    lines += [''] + _columns('mean error of', found['names'], found['joints'])
    chunks, answers = found['chunks'], found['answers']
    same = sum(answer['equal'] for answer in answers)
    lines += [
        '',
        f'{chunks["equal"]} of {chunks["in_both"]} chunks are equal to the last bit, '
        f'{same} of {len(answers)} answers word for word',
    ]
    if not all(found['complete']):
        lines.append('PARTIAL: at least one of the reports does not cover its whole bag')
    return '\n'.join(lines)


def _columns(what: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [[what, *names, 'difference', '']]
    for row in rows:
        numbers = ['-' if v is None else f'{v:.4g}' for v in (*row['values'], row['difference'])]
        cells.append([row['what'], *numbers, row['verdict']])
    widths = [max(len(line[i]) for line in cells) for i in range(5)]
    return [
        f'{c[0]:<{widths[0]}}  {c[1]:>{widths[1]}}  {c[2]:>{widths[2]}}  {c[3]:>{widths[3]}}  '
        f'{c[4]}'.rstrip()
        for c in cells
    ]
