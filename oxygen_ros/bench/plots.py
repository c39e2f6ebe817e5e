"""Pictures of a result, made with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oxygen_ros.bench.timeline import PHASES, Timeline
from oxygen_ros.types import OxygenError

COLOURS = {'prefill': '#4477aa', 'act': '#228833', 'admit': '#ccbb44', 'decode': '#ee6677'}


def draw(result: dict[str, Any], timeline: Timeline | None, folder: Path) -> list[Path]:
    """Every picture that the result has numbers for; returns the files written."""
    try:
        import matplotlib
    except ImportError as error:
        raise OxygenError(
            'pictures need matplotlib: pip install -r requirements/base.txt'
        ) from error
    matplotlib.use('Agg')
    drawn = [_bars(result, folder / 'modes.png')]
    if result.get('sweep'):
        drawn.append(_trade_off(result, folder / 'trade_off.png'))
    if result.get('chunk_ms'):
        drawn.append(_histogram(result, folder / 'latency.png'))
    if timeline is not None:
        drawn.append(_timeline(timeline, folder / 'timeline.png'))
    return drawn


def _figure(title: str, result: dict[str, Any] | None = None) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout='constrained')
    setting = result['setting'] if result else {}
    where = ', '.join(str(setting[key]) for key in ('size', 'dtype', 'chip') if key in setting)
    axes.set_title(f'{title}\n{where}' if where else title, fontsize=10)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _bars(result: dict[str, Any], path: Path) -> Path:
    """Time of a frame with all its work, by mode."""
    figure, axes = _figure('one frame: a chunk and an answer', result)
    modes = result['modes']
    bars = axes.bar(list(modes), [numbers['frame_ms'] for numbers in modes.values()])
    axes.bar_label(bars, fmt='%.1f ms')
    axes.set_ylabel('ms per frame')
    return _save(figure, path)


def _trade_off(result: dict[str, Any], path: Path) -> Path:
    """Action rate against token rate as the budget grows."""
    figure, axes = _figure('action rate and token rate, by decode steps per frame', result)
    points = result['sweep']
    across = [point['tok_per_s'] for point in points]
    axes.plot(across, [point['actions_per_s'] for point in points], 'o-')
    for point in points:
        axes.annotate(f'k {point["budget"]}', (point['tok_per_s'], point['actions_per_s']))
    axes.set_xlabel('tokens/s')
    axes.set_ylabel('actions/s')
    return _save(figure, path)


def _histogram(result: dict[str, Any], path: Path) -> Path:
    """Camera to chunk, by mode."""
    figure, axes = _figure('camera to chunk', result)
    for mode, values in result['chunk_ms'].items():
        axes.hist(values, bins=40, histtype='step', label=mode)
    axes.set_xlabel('ms')
    axes.set_ylabel('frames')
    axes.legend()
    return _save(figure, path)


def _timeline(timeline: Timeline, path: Path) -> Path:
    """The first second of what was recorded."""
    figure, axes = _figure('one second of the engine (numbers: rows decoded together)')
    first = timeline.spans[0].began_ns
    for span in timeline.spans:
        left = (span.began_ns - first) / 1e6
        if left > 1000:
            break
        width = (span.ended_ns - span.began_ns) / 1e6
        level = PHASES.index(span.phase)
        axes.barh(level, width, left=left, color=COLOURS[span.phase], edgecolor='white')
        if span.phase == 'decode':
            axes.text(left + width / 2, level, str(span.rows), ha='center', va='center', size=6)
    axes.set_yticks(range(len(PHASES)), PHASES)
    axes.set_xlabel('ms')
    return _save(figure, path)
