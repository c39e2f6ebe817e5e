"""Pictures of a result, made with matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from oxygen_ros.bench.timeline import PHASES, Span, Timeline

COLOURS = {'prefill': '#4477aa', 'act': '#228833', 'admit': '#998800', 'decode': '#ee6677'}
TIMELINE_MS, TIMELINE_FRAMES = 1000, 2  # the longer of both is shown
_NUMBERS = 80  # of two digits that fit side by side into a timeline
_MARKERS = 'osvDP^X'


def draw(result: dict[str, Any], timeline: Timeline | None, folder: Path) -> list[Path]:
    """Every picture that the result has numbers for; returns the files written."""
    matplotlib.use('Agg')
    drawn = []
    if 'modes' in result:
        drawn += [_bars(result, folder / 'modes.png'), _histogram(result, folder / 'latency.png')]
    if 'sweep' in result:
        drawn.append(_trade_off(result, folder / 'trade_off.png'))
    if 'growth' in result:
        drawn.append(_growth(result, folder / 'growth.png'))
    if timeline is not None:
        drawn.append(_timeline(timeline, result, folder / 'timeline.png'))
    return drawn


def _figure(title: str, result: dict[str, Any], rows: int = 1, columns: int = 1) -> Any:
    """A figure with its setting in the title, and its axes [rows, columns]."""
    size = (8 if columns < 3 else 12, 1 + 3 * rows)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=size, layout='constrained', squeeze=False
    )
    setting = result['setting']
    where = ', '.join(str(setting[key]) for key in ('family', 'size', 'dtype', 'chip'))
    figure.suptitle(f'{title}\n{where}, {setting["execution_used"]}', fontsize=10)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _bars(result: dict[str, Any], path: Path) -> Path:
    """Time of a frame with all its work, by mode."""
    figure, ((axes,),) = _figure('one frame: a chunk and an answer', result)
    modes = result['modes']
    bars = axes.bar(list(modes), [numbers['frame_ms'] for numbers in modes.values()])
    axes.bar_label(bars, fmt='%.1f ms')
    axes.set_ylabel('ms per frame')
    return _save(figure, path)


def _trade_off(result: dict[str, Any], path: Path) -> Path:
    """Action rate and time to first token against token rate, a row for each denoise count."""
    points = result['sweep']
    counts = sorted({point['denoise_steps'] for point in points})
    figure, axes = _figure(
        'action rate and token rate; numbers: k of continuous, T of the others',
        result, len(counts), 2,
    )  # fmt: skip
    for (rate, first), count in zip(axes, counts, strict=True):
        for label, curve in _curves([p for p in points if p['denoise_steps'] == count]):
            across = [point['tok_per_s'] for point in curve]
            look = {'marker': _MARKERS[len(rate.lines) % len(_MARKERS)], 'ms': 4, 'label': label}
            (line,) = rate.plot(across, [point['actions_per_s'] for point in curve], **look)
            spoken = [point for point in curve if point['tokens']]
            across = [point['tok_per_s'] for point in spoken]
            first.plot(across, [point['ttft_ms'] for point in spoken], **look)
            for point in curve:
                at = (point['tok_per_s'], point['actions_per_s'])
                text = str(point.get('budget', point['tokens']))
                rate.annotate(text, at, (3, 3), textcoords='offset points', size=6,
                              color=line.get_color())  # fmt: skip
        rate.set(ylabel=f'{count} denoise steps\nactions/s', ylim=(0, None))
        first.set(ylabel='ms to the first token', ylim=(0, None))
    axes[0][0].legend(fontsize=7)
    for each in axes[-1]:
        each.set_xlabel('tokens/s')
    return _save(figure, path)


def _curves(points: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """One of each mode over T; of `continuous` one of each T over k, from no words on."""
    for mode in dict.fromkeys(point['mode'] for point in points):
        own = [point for point in points if point['mode'] == mode]
        if mode != 'continuous':
            yield mode, own
            continue
        silent = [point for point in own if not point['tokens']]
        for tokens in sorted({point['tokens'] for point in own} - {0}):
            yield f'{mode}, T {tokens}', silent + [p for p in own if p['tokens'] == tokens]


def _histogram(result: dict[str, Any], path: Path) -> Path:
    """Camera to chunk, by mode."""
    figure, ((axes,),) = _figure('camera to chunk', result)
    for mode, values in result['chunk_ms'].items():
        axes.hist(values, bins=40, histtype='step', label=f'{mode}, {len(values)} frames')
    axes.set(xlabel='ms', ylabel='frames')
    axes.legend()
    return _save(figure, path)


def _growth(result: dict[str, Any], path: Path) -> Path:
    """Phase times as one thing grows, a picture for each thing."""
    cases = [(*case['case'].rsplit(' ', 1), case) for case in result['growth']]
    things = list(dict.fromkeys(name for name, *_ in cases))
    figure, axes = _figure('phases as one thing grows', result, 1, len(things))
    for place, thing in zip(axes[0], things, strict=True):
        own = [(int(value), case) for name, value, case in cases if name == thing]
        for phase in (name for name in own[0][1] if name != 'case'):
            place.plot([v for v, _ in own], [case[phase] for _, case in own], 'o-', label=phase)
        place.set(xlabel=thing.replace('_', ' '), ylim=(0, None), xticks=[v for v, _ in own])
    axes[0][0].set_ylabel('ms')
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc='outside right center', fontsize=8)
    return _save(figure, path)


def _timeline(timeline: Timeline, result: dict[str, Any], path: Path) -> Path:
    """The first second of what was recorded, or two frames."""
    figure, ((axes,),) = _figure(
        'phases of continuous (numbers: rows decoded together)', result, columns=1
    )
    figure.set_size_inches(14, 3)
    first = min(span.began_ns for span in timeline.spans)
    frames = [_ms(s.began_ns, first) for s in timeline.spans if s.phase == 'prefill']
    ends = frames[TIMELINE_FRAMES:] or [_ms(max(s.ended_ns for s in timeline.spans), first)]
    end = max(TIMELINE_MS, ends[0])
    shown = [s for s in timeline.spans if _ms(s.began_ns, first) < end]
    for level, phase in enumerate(PHASES):
        bars = [(_ms(s.began_ns, first), _ms(s.ended_ns, s.began_ns)) for s in shown
                if s.phase == phase]  # fmt: skip
        # An edge of the bar's own colour: what is shorter than a pixel is a line, not nothing.
        colour = COLOURS[phase]
        axes.broken_barh(bars, (level - 0.4, 0.8), facecolor=colour, edgecolor=colour, lw=0.6)
    for at, rows in _numbers([s for s in shown if s.phase == 'decode'], first, end / _NUMBERS):
        axes.text(at, list(PHASES).index('decode'), rows, ha='center', va='center', size=7)
    axes.set_yticks(range(len(PHASES)), list(PHASES))
    axes.set(xlabel='ms', xlim=(0, end), ylim=(len(PHASES) - 0.5, -0.5))
    return _save(figure, path)


def _numbers(steps: Sequence[Span], first: int, apart: float) -> Iterator[tuple[float, int]]:
    """Where, in ms, to write how many rows: in the middle of steps, so many ms apart."""
    free = 0.0
    for step in steps:
        middle = _ms((step.began_ns + step.ended_ns) // 2, first)
        if middle >= free:
            yield middle, step.rows
            free = middle + apart


def _ms(at: int, since: int) -> float:
    return (at - since) / 1e6
