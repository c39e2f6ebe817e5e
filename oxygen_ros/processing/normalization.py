"""State into the range the network knows, actions back into robot units: the one place for it.

Computed in the dtype of the statistics, as each maker does: float32 LeRobot, float64 openpi.
"""

from __future__ import annotations

import numpy as np

from oxygen_ros.checkpoint.info import Normalization


def normalize_state(state: np.ndarray, norm: Normalization) -> np.ndarray:
    """Robot units [D] -> about [-1, 1], not clipped."""
    low, high = norm.state_q01, norm.state_q99
    offset = state.astype(low.dtype) - low
    width = _width(low, high, norm)
    # The order of operations is each maker's own: it decides the last bit, and so a state bin.
    if norm.eps_rule == 'add_to_width':
        return offset / width * 2.0 - 1.0
    return 2.0 * offset / width - 1.0


def robot_actions(actions: np.ndarray, norm: Normalization) -> np.ndarray:
    """Network's [H, A_padded] -> float32 [H, A] in robot units, padding dropped."""
    low, high = norm.action_q01, norm.action_q99
    shifted = actions[..., : len(low)].astype(low.dtype) + 1.0
    width = _width(low, high, norm)
    if norm.eps_rule == 'add_to_width':
        robot = shifted / 2.0 * width + low
    else:
        robot = shifted * width / 2.0 + low
    return robot.astype(np.float32)


def _width(low: np.ndarray, high: np.ndarray, norm: Normalization) -> np.ndarray:
    eps = low.dtype.type(norm.eps)
    width = high - low
    return width + eps if norm.eps_rule == 'add_to_width' else np.where(width == 0, eps, width)
