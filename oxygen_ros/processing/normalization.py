"""State into the range the network knows, actions back into robot units: the one place for it.

Computed in the dtype of the statistics, as each maker does: float32 LeRobot, float64 openpi.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen_ros.checkpoint.info import Normalization, Scale


def normalize_state(state: np.ndarray, norm: Normalization) -> np.ndarray:
    """Robot units [D] -> the network's, about [-1, 1] for ranges; clipped to the scale's limit."""
    scale = norm.state
    unit = _scaled(scale, state.astype(scale.origin.dtype), scale.span_in)
    return unit if scale.limit is None else np.clip(unit, -scale.limit, scale.limit)


def _scaled(scale: Scale, values: np.ndarray, span: np.ndarray) -> np.ndarray:
    unit = (values - scale.origin) / span
    unit = unit * 2.0 - 1.0 if scale.is_range else unit
    if scale.mask is None:
        return unit
    # StarVLA's training keeps what has no range as it is, or makes it 0
    still = np.zeros_like(values) if scale.mode == 'min_max' else values
    return np.where(scale.mask, np.where(scale.span_out != 0, unit, still), values)


def anchored(state: np.ndarray, relative: Sequence[bool]) -> np.ndarray:
    """What relative actions count from: float32 [A], the frame's state or 0; or just 0."""
    mask = np.asarray(relative, np.float32)
    return state[: len(mask)].astype(np.float32) * mask if relative else np.zeros(1, np.float32)


def network_actions(actions: np.ndarray, norm: Normalization) -> np.ndarray:
    """Robot units [n, A] -> the network's [n, A]: the way back of robot_actions()."""
    scale = norm.action
    # Where there is a mask, a span of 0 does not scale.
    span = scale.span_out if scale.mask is None else scale.span_in
    return _scaled(scale, actions.astype(scale.origin.dtype), span).astype(np.float32)


def robot_actions(actions: np.ndarray, norm: Normalization) -> np.ndarray:
    """Network's [H, A_padded] -> float32 [H, A] in robot units, padding dropped."""
    scale = norm.action
    own = actions[..., : len(scale.origin)]
    if scale.limit is not None:
        return clipped_actions(own, norm).astype(np.float32)
    own = own.astype(scale.origin.dtype)
    unit = (own + 1.0) / 2.0 if scale.is_range else own
    robot = (unit * scale.span_out + scale.origin).astype(np.float32)
    return robot if scale.mask is None else np.where(scale.mask, robot, own.astype(np.float32))


def clipped_actions(actions: np.ndarray, norm: Normalization) -> np.ndarray:
    """StarVLA's un-normaliser: float32 [H, A] -> float64 in robot units.

    Clipped first, then the gripper becomes 0 or 1, then what has a mask is scaled; the sum with 1
    is taken in float32 as there.
    """
    scale = norm.action
    assert scale.limit is not None and scale.mask is not None, 'a scale of StarVLA'
    own = np.clip(actions, -scale.limit, scale.limit)
    if 0 <= norm.gripper < own.shape[-1]:
        own[..., norm.gripper] = own[..., norm.gripper] >= 0.5
    scaled = 0.5 * (own + 1) * scale.span_out + scale.origin
    return np.where(scale.mask, scaled, own)
