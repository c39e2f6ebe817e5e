"""State into the range the network knows, actions back into robot units: the one place for it.

Computed in the dtype of the statistics, as each maker does: float32 LeRobot, float64 openpi.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen_ros.checkpoint.info import Normalization


def normalize_state(state: np.ndarray, norm: Normalization) -> np.ndarray:
    """Robot units [D] -> the network's, about [-1, 1] for ranges; not clipped."""
    scale = norm.state
    unit = (state.astype(scale.origin.dtype) - scale.origin) / scale.span_in
    return unit * 2.0 - 1.0 if scale.is_range else unit


def anchored(state: np.ndarray, relative: Sequence[bool]) -> np.ndarray:
    """What relative actions count from: float32 [A], the frame's state or 0; or just 0."""
    mask = np.asarray(relative, np.float32)
    return state[: len(mask)].astype(np.float32) * mask if relative else np.zeros(1, np.float32)


def network_actions(actions: np.ndarray, norm: Normalization) -> np.ndarray:
    """Robot units [n, A] -> the network's [n, A]: the way back of robot_actions()."""
    scale = norm.action
    unit = (actions.astype(scale.origin.dtype) - scale.origin) / scale.span_out
    return (unit * 2.0 - 1.0 if scale.is_range else unit).astype(np.float32)


def robot_actions(actions: np.ndarray, norm: Normalization) -> np.ndarray:
    """Network's [H, A_padded] -> float32 [H, A] in robot units, padding dropped."""
    scale = norm.action
    own = actions[..., : len(scale.origin)].astype(scale.origin.dtype)
    unit = (own + 1.0) / 2.0 if scale.is_range else own
    return (unit * scale.span_out + scale.origin).astype(np.float32)
