"""Pages: one self-contained HTML file, from the same data as the JSON.

Needs matplotlib and jinja2; check_libraries() says so before any work.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oxygen_ros.replay.evaluate import Evaluation
from oxygen_ros.replay.pictures import pictures
from oxygen_ros.replay.table import COLUMNS, row_of
from oxygen_ros.types import OxygenError

MAX_ANSWERS = 60  # shown with pictures
TEMPLATES = Path(__file__).parent / 'pages'


def check_libraries() -> None:
    """Raise OxygenError that says what to install if pages cannot be made."""
    for name in ('matplotlib', 'jinja2'):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise OxygenError(
                f'pages need {name}, which is not installed ({error}): rosdep install, or '
                f'apt install python3-{name}, or pip install -r requirements/base.txt; '
                'or leave --html and --out away'
            ) from error


def replay_page(evaluation: Evaluation) -> str:
    """The page of one replay."""
    report = evaluation.report
    shown = report['requests'][:MAX_ANSWERS]
    outcome = evaluation.outcome
    spoken_of = {answer['frame'] for answer in shown}
    seen = pictures(
        evaluation.path,
        evaluation.sources,
        [frame for frame in outcome.frames if frame.frame in spoken_of],
    )
    return render(
        'replay.html',
        r=report,
        m=evaluation.measured,
        row=row_of(report),
        seconds=report['bag']['duration_ns'] / 1e9,
        answers=[{**answer, 'pictures': seen.get(answer['frame'], {})} for answer in shown],
        **_plots(evaluation),
    )


def summary_page(report: Mapping[str, Any]) -> str:
    """The page of many bags."""
    return render(
        'summary.html', rows=report['bags'], columns=COLUMNS, parameters=report['parameters']
    )


def render(template: str, **values: Any) -> str:
    """A template with these values; everything that is not a plot is escaped."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters['n'] = number
    return environment.get_template(template).render(**values)


def number(value: Any) -> str:
    """Four digits for numbers, a dash for what is not known."""
    if value is None:
        return '–'
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def _plots(evaluation: Evaluation) -> dict[str, Any]:
    from oxygen_ros.replay import plots

    outcome, contract, scores = (
        evaluation.outcome,
        evaluation.contract,
        evaluation.report['scores'],
    )
    frames = evaluation.report['frames']
    joints = []
    for joint, name in enumerate(contract.actions.names if frames else ()):
        steps = scores['error'].get(name)
        joints.append(
            {
                'name': name,
                'motion': plots.motion(outcome, contract, joint),
                'horizon': plots.horizon(
                    {'': steps['by_step']} if steps else {}, contract.actions.step_period_s
                ),
                'seams': plots.seams(frames, joint),
            }
        )
    measured = outcome.measured
    return {
        'joints': joints,
        'latency': plots.histogram({'camera to chunk': measured.latency_ms}, 'ms')
        if measured.latency_ms
        else '',
        'timeline': plots.timeline(measured.work) if measured.work else '',
    }
