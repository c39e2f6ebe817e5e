"""Statistics of the training data, read from the files of either maker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.checkpoint.files import open_tensors, read_json
from oxygen_ros.types import OxygenError

# How a vector is normalised -> the two statistics that this takes, lower one first.
RANGES = {'quantiles': ('q01', 'q99'), 'quantile10': ('q10', 'q90'), 'min_max': ('min', 'max')}
MODES = {**RANGES, 'mean_std': ('mean', 'std'), 'identity': ()}
NO_SPAN = 1e-5  # in robot units; makers guard a span of zero with 1e-6 or less
_STATE_KEYS = ('state', 'observation.state')
_ACTION_KEYS = ('actions', 'action')


@dataclass(frozen=True, eq=False)
class Statistics:
    """Two statistics [D] of state or actions in robot units, and the file they are from.

    first, second: what MODES names for the mode; zeros and ones for 'identity'. eps: the maker's
    guard against a spread of zero.
    """

    mode: str
    first: np.ndarray
    second: np.ndarray
    eps: float
    what: str
    source: Path


def identity(dim: int, what: str, source: Path) -> Statistics:
    """Of a vector that is not normalised, float32."""
    zeros, ones = np.zeros(dim, np.float32), np.ones(dim, np.float32)
    return Statistics('identity', zeros, ones, 0.0, what, source)


def from_json(
    path: Path, dtype: type[np.floating[Any]], what: str, mode: str, eps: float
) -> Statistics:
    """Statistics of what, 'state' or 'actions', from norm_stats.json or a data set's stats.json.

    Raises OxygenError if the mode's two statistics are not there.
    """
    values = read_json(path)
    values = values.get('norm_stats', values)
    keys = _STATE_KEYS if what == 'state' else _ACTION_KEYS
    entry = next((values[key] for key in keys if key in values), None)
    if entry is None:
        raise OxygenError(f'{path}: has no {" or ".join(keys)}, only {", ".join(values)}')
    try:
        first, second = (np.asarray(entry[key], dtype=dtype).reshape(-1) for key in MODES[mode])
    except (KeyError, TypeError, ValueError) as error:
        raise OxygenError(
            f'{path}: {what} has no usable {" and ".join(MODES[mode])}, which the checkpoint '
            'normalises by; compute the statistics with them'
        ) from error
    return Statistics(mode, first, second, eps, what, path)


def from_safetensors(path: Path, feature: str, mode: str, eps: float) -> Statistics:
    """Statistics of one feature, float32, from a LeRobot processor's state file."""
    wanted = [f'{feature}.{name}' for name in MODES[mode]]
    with open_tensors(path, 'numpy') as handle:
        missing = sorted(set(wanted) - set(handle.keys()))
        if missing:
            raise OxygenError(
                f'{path}: statistics {", ".join(missing)} are missing; name a file that has them '
                'under "statistics" in oxygen.json'
            )
        first, second = (handle.get_tensor(key).astype(np.float32).reshape(-1) for key in wanted)
    return Statistics(mode, first, second, eps, feature, path)


def fitted(stats: Statistics, dim: int | None, cut: bool) -> tuple[np.ndarray, np.ndarray]:
    """Both statistics of the robot's own dimensions, checked. Raises OxygenError with the file.

    dim: of the robot, None to take the statistics' width. cut: wider statistics are cut to dim.
    """
    first, second = stats.first, stats.second
    where = f'{stats.source}: {stats.what}'
    width = len(first)
    if len(second) != width or (dim is not None and (width < dim or (width > dim and not cut))):
        raise OxygenError(
            f'{where} has statistics of width {width} and {len(second)}, '
            f'{width if dim is None else dim} expected'
        )
    first, second = first[:dim], second[:dim]
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise OxygenError(f'{where} has statistics that are not finite numbers')
    if stats.mode != 'identity':
        _check_spread(stats.mode, first, second, where)
    return first, second


def _check_spread(mode: str, first: np.ndarray, second: np.ndarray, where: str) -> None:
    low, high = MODES[mode]
    spread, zero = second - first, f'{low} = {high}'
    if mode == 'mean_std':
        spread, zero = second, 'std = 0'
    if (spread < 0).any():
        wrong = 'std below 0' if mode == 'mean_std' else f'{low} above {high}'
        raise OxygenError(f'{where} has {wrong} at {np.flatnonzero(spread < 0).tolist()}')
    if (spread == 0).all():
        raise OxygenError(f'{where} has {zero} in every dimension: there is no range')


def check_moved(
    stats: Statistics, first: np.ndarray, second: np.ndarray, part: str, meant: list[int]
) -> None:
    """Raise OxygenError if a dimension has no range to divide by, but for those that are meant.

    part: 'state' or 'action'. Divided by next to nothing, every value but that of the training
    data is far out of range.
    """
    if stats.mode not in RANGES:
        return
    still = np.flatnonzero(second - first < NO_SPAN).tolist()
    if unmeant := [i for i in still if i not in meant]:
        low, high = RANGES[stats.mode]
        raise OxygenError(
            f'{stats.source}: {stats.what} has {low} = {high} at {unmeant}, counted from 0: '
            f'compute the statistics anew; or, in oxygen.json, set {part}_dim if these are '
            f'padding, or list what never moves: "constant_dimensions": {{"{part}": {still}}}'
        )
