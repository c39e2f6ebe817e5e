"""Quantiles of the training data, read from the files of either maker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.checkpoint.files import open_tensors, read_json
from oxygen_ros.types import OxygenError

_STATE_KEYS = ('state', 'observation.state')
_ACTION_KEYS = ('actions', 'action')


@dataclass(frozen=True, eq=False)
class Quantiles:
    """q01 and q99 [D] of state or actions in robot units, and the file they are from."""

    low: np.ndarray
    high: np.ndarray
    what: str
    source: Path


def from_json(path: Path, dtype: type[np.floating[Any]]) -> tuple[Quantiles, Quantiles]:
    """Quantiles of (state, actions) from norm_stats.json or a data set's stats.json."""
    values = read_json(path)
    values = values.get('norm_stats', values)
    return _json_entry(values, _STATE_KEYS, path, dtype), _json_entry(
        values, _ACTION_KEYS, path, dtype
    )


def _json_entry(
    values: dict[str, Any], keys: tuple[str, ...], path: Path, dtype: type[np.floating[Any]]
) -> Quantiles:
    entry = next((values[key] for key in keys if key in values), None)
    if entry is None:
        raise OxygenError(f'{path}: has no {" or ".join(keys)}, only {", ".join(values)}')
    try:
        low, high = (np.asarray(entry[q], dtype=dtype).reshape(-1) for q in ('q01', 'q99'))
    except (KeyError, TypeError, ValueError) as error:
        raise OxygenError(
            f'{path}: {keys[0]} has no usable q01 and q99; compute the statistics with quantiles'
        ) from error
    return Quantiles(low, high, keys[0], path)


def from_safetensors(path: Path, feature: str) -> Quantiles:
    """Quantiles of one feature, float32, from a LeRobot processor's state file."""
    wanted = [f'{feature}.q01', f'{feature}.q99']
    with open_tensors(path, 'numpy') as handle:
        missing = sorted(set(wanted) - set(handle.keys()))
        if missing:
            raise OxygenError(
                f'{path}: statistics {", ".join(missing)} are missing; name a file that has them '
                'under "statistics" in oxygen.json'
            )
        low, high = (handle.get_tensor(key).astype(np.float32).reshape(-1) for key in wanted)
    return Quantiles(low, high, feature, path)


def fitted(quantiles: Quantiles, dim: int | None, cut: bool) -> tuple[np.ndarray, np.ndarray]:
    """q01 and q99 of the robot's own dimensions, checked. Raises OxygenError naming the file.

    dim: of the robot, None to take the statistics' width. cut: wider statistics are cut to dim.
    """
    low, high = quantiles.low, quantiles.high
    where = f'{quantiles.source}: {quantiles.what}'
    width = len(low)
    if len(high) != width or (dim is not None and (width < dim or (width > dim and not cut))):
        raise OxygenError(
            f'{where} has {width} (q01) and {len(high)} (q99) quantiles, '
            f'{width if dim is None else dim} expected'
        )
    low, high = low[:dim], high[:dim]
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise OxygenError(f'{where} has quantiles that are not finite numbers')
    if (low > high).any():
        raise OxygenError(f'{where} has q01 above q99 at {np.flatnonzero(low > high).tolist()}')
    # Single joints that never moved are common, and both makers allow them.
    if (low == high).all():
        raise OxygenError(f'{where} has q01 = q99 in every dimension: there is no range')
    return low, high
