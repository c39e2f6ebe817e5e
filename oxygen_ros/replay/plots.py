"""Plots of a replay as SVG, drawn so that the page's style sheet colours text and axes.

Needs matplotlib; imported only where a page is made.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oxygen_ros.replay.measured import Work
from oxygen_ros.replay.outcome import Outcome
from oxygen_ros.ros.contract import Contract

INK = '#0b0c0d'  # becomes the page's own colour of text
PREDICTED, STREAMED, SECOND = '#4a90d9', '#e0873a', '#9a6fd0'
PHASES = {'prefill': PREDICTED, 'act': STREAMED, 'admit': '#8a8f98', 'decode': SECOND}
MAX_CHUNKS, MAX_POINTS, MAX_ROWS = 40, 1500, 25  # drawn per joint
TIMELINE_S, BEFORE_WORDS_S = 1.0, 0.2
STYLE = {
    'svg.fonttype': 'none',
    'svg.hashsalt': 'oxygen',
    'font.size': 9,
    'text.color': INK,
    'axes.edgecolor': INK,
    'axes.labelcolor': INK,
    'xtick.color': INK,
    'ytick.color': INK,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.linewidth': 0.6,
    'legend.frameon': False,
}


def motion(outcome: Outcome, contract: Contract, joint: int) -> str:
    """Recorded motion of a joint, some of the predicted chunks over it, and what is streamed."""
    frames = outcome.answered
    begin_ns = frames[0].stamp_ns
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(7.0, 2.2)
        for segment in range(outcome.motion.segment + 1):
            times, values = outcome.motion.series(segment, joint)
            keep = _thin(len(times), MAX_POINTS)
            label = 'recorded' if segment == 0 else None
            axes.plot(_s(times[keep], begin_ns), values[keep], color=INK, lw=1.2, label=label)
        step_ns = round(contract.actions.step_period_s * 1e9)
        for index in _thin(len(frames), MAX_CHUNKS):
            chunk = frames[index].chunk
            assert chunk is not None
            rows = _thin(len(chunk.actions), MAX_ROWS)
            times = frames[index].stamp_ns + rows * step_ns
            values = chunk.actions[rows, joint]
            label = 'predicted chunks' if index == 0 else None
            axes.plot(_s(times, begin_ns), values, color=PREDICTED, lw=0.7, alpha=0.6, label=label)
        _stream(axes, outcome, joint, begin_ns)
        axes.set_xlabel('s')
        _legend(axes, 3)
        return _svg(figure)


def _stream(axes: Axes, outcome: Outcome, joint: int, begin_ns: int) -> None:
    steps = outcome.streamed
    keep = _thin(len(steps.times_ns), MAX_POINTS)
    if len(keep):
        times = np.array(steps.times_ns, np.int64)[keep]
        values = np.array(steps.values)[keep, joint]
        # a line over a pause would be motion that nobody asked for
        broken = np.where(np.diff(times, prepend=times[0]) > 1e9, np.nan, values)
        axes.plot(_s(times, begin_ns), broken, color=STREAMED, lw=1.0, label='streamed')


def horizon(errors: Mapping[str, Mapping[str, Any]], step_period_s: float) -> str:
    """Distance from the recorded motion over the rows of a chunk; errors: name -> by_step."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(3.4, 2.2)
        for colour, (name, steps) in zip((PREDICTED, STREAMED), errors.items(), strict=False):
            mean, p90 = (_floats(steps[key]) for key in ('mean', 'p90'))
            times = np.arange(len(mean)) * step_period_s
            axes.plot(times, mean, color=colour, lw=1.4, label=f'{name} mean'.strip())
            axes.plot(times, p90, color=colour, lw=0.9, ls='--', label=f'{name} p90'.strip())
        axes.set_ylim(bottom=0)
        axes.set_xlabel('s ahead')
        _legend(axes, 2)
        return _svg(figure)


def seams(frames: Sequence[Mapping[str, Any]], joint: int) -> str:
    """Jump from one chunk to the next over the bag."""
    known = [f for f in frames if f['seam'] is not None and f['seam'][joint] is not None]
    known = [known[index] for index in _thin(len(known), MAX_POINTS)]
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(3.4, 2.2)
        times = [(frame['stamp_ns'] - frames[0]['stamp_ns']) / 1e9 for frame in known]
        axes.vlines(times, 0, [f['seam'][joint] for f in known], color=SECOND, lw=0.8)
        axes.set_ylim(bottom=0)
        axes.set_xlabel('s')
        return _svg(figure)


def histogram(series: Mapping[str, Sequence[float]], label: str) -> str:
    """How often which value came, one outline a series."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(5.0, 2.2)
        for colour, (name, values) in zip((PREDICTED, STREAMED), series.items(), strict=False):
            top = float(np.percentile(values, 99.5)) if len(values) else 1.0
            clipped = np.minimum(values, top)
            axes.hist(clipped, bins=40, color=colour, alpha=0.7, label=name)
        axes.set_xlabel(label)
        axes.set_ylabel('frames')
        _legend(axes, 2)
        return _svg(figure)


def timeline(work: Sequence[Work]) -> str:
    """A second of the engine's work, a bar for each phase; numbers are rows decoded together.

    It begins shortly before the first words, if there are any.
    """
    words_ns = next((w.began_ns for w in work if w.phase == 'decode'), work[0].began_ns)
    begin_ns = words_ns - round(BEFORE_WORDS_S * 1e9)
    shown = [w for w in work if 0 <= w.began_ns - begin_ns < TIMELINE_S * 1e9]
    first_ns = shown[0].began_ns
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(10.0, 2.2)
        for level, (phase, colour) in enumerate(PHASES.items()):
            bars = [w for w in shown if w.phase == phase]
            spans = [
                ((w.began_ns - first_ns) / 1e6, (w.ended_ns - w.began_ns) / 1e6) for w in bars
            ]
            axes.broken_barh(spans, (level - 0.4, 0.8), color=colour)
            for (left, width), bar in zip(spans, bars, strict=True):
                if bar.rows > 1:
                    axes.text(left + width / 2, level, str(bar.rows), ha='center', va='center',
                              fontsize=6)  # fmt: skip
        axes.set_yticks(range(len(PHASES)), list(PHASES))
        axes.set_xlabel('ms of work')
        return _svg(figure)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout='constrained')
    return figure, figure.subplots()


def _legend(axes: Axes, columns: int) -> None:
    """In a row above the axes, where there is something to name."""
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(loc='lower left', bbox_to_anchor=(0, 1), ncols=columns, fontsize=8)


def _svg(figure: Figure) -> str:
    """The figure as an element that grows with the page and takes its colours from it."""
    out = io.StringIO()
    figure.savefig(out, format='svg', transparent=True, metadata={'Date': None, 'Creator': None})
    text = out.getvalue()
    text = text[text.index('<svg') :]
    text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[\d.]+pt" height="[\d.]+pt"', r'\1', text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[\d.]+pt"', r'\1', text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[\d.]+pt"', r'\1', text, count=1)
    return text.replace(INK, 'currentColor')


def _thin(count: int, most: int) -> np.ndarray:
    """Indices of at most so many of count entries, the first among them, evenly spread."""
    return np.arange(0, count, max(1, -(-count // most)))


def _s(times_ns: np.ndarray, begin_ns: int) -> np.ndarray:
    return (times_ns - begin_ns) / 1e9


def _floats(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values])
