"""Numbers as reports hold them: percentiles, and as many digits as mean something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 99)
DIGITS = 6


def spread(values: Iterable[float] | np.ndarray) -> dict[str, Any] | None:
    """Count, mean, p50, p90, p99 and max of finite values; None if there are none."""
    found = np.asarray(values if isinstance(values, np.ndarray) else list(values), np.float64)
    found = found[np.isfinite(found)]
    if not found.size:
        return None
    percentiles = np.percentile(found, PERCENTILES)
    numbers = {f'p{p}': rounded(v) for p, v in zip(PERCENTILES, percentiles, strict=True)}
    return {
        'count': int(found.size),
        'mean': rounded(found.mean()),
        **numbers,
        'max': rounded(found.max()),
    }


def rounded(value: float) -> float:
    """Six significant digits: more would be noise of the arithmetic."""
    return float(f'{value:.{DIGITS}g}')


def rounded_or_none(values: np.ndarray) -> list[float | None]:
    """A list with None for what is not finite, because JSON has no NaN."""
    return [rounded(float(v)) if np.isfinite(v) else None for v in values]
