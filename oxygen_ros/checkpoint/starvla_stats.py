"""dataset_statistics.json of a StarVLA run: how one robot's state and actions are scaled.

Source: starVLA 0ed0aad2, model/tools.py (actions), the dataloader's Normalizer (state), and
pi_libero_common.py of its LIBERO evaluation (openpi's rules for PI0 and PI05).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.checkpoint.files import read_json
from oxygen_ros.checkpoint.info import Normalization, Scale
from oxygen_ros.checkpoint.options import FILE
from oxygen_ros.checkpoint.run_options import RunOptions, read_run_options
from oxygen_ros.checkpoint.stats import MODES, NO_SPAN, Statistics, fitted
from oxygen_ros.types import OxygenError

STATISTICS = 'dataset_statistics.json'
_OPENPI = 'openpi_'  # before a mode: openpi's form of it, whose eps is added to every width
_EPS = 1e-6
_LIBERO = (8, 7)  # of its state and actions, to which openpi's statistics may be padded
_CLIPPED = ('quantiles', 'min_max')  # by StarVLA's own un-normaliser


def normalization(
    folder: Path,
    robot_tag: str,
    sees_state: bool,
    dims: tuple[int | None, int | None],
    openpi: str = '',
    lacking: int = 0,
) -> Normalization:
    """How StarVLA's tools scale one robot's state and actions. Raises OxygenError.

    sees_state: whether the network is told the state. dims: of state and actions, None for the
    statistics' own. openpi: see starvla_run.openpi_rule. lacking: width of a state that has no
    statistics and needs none, 0 where it is not known. Its training code scales the state in
    float32, its un-normaliser actions in float64, its LIBERO evaluation both in float32.
    """
    run = read_run_options(folder)
    path = run.statistics or folder / STATISTICS
    robot = _robot(path, robot_tag)
    state_mode = run.state_normalization or openpi or 'quantiles'
    action_mode = run.action_normalization or openpi or 'quantiles'
    if openpi:
        dims = dims[0] or _LIBERO[0], dims[1] or _LIBERO[1]
    state_mode = state_mode if sees_state else 'identity'
    if state_mode == 'identity':
        state = _unscaled(robot.get('state') or {}, dims[0], lacking, path)
    else:
        state = _state(robot, state_mode, dims[0], path)
        _check_moved(state, run.constant_dimensions.get('state', []), path)
    action = _scale(robot, 'action', action_mode, np.dtype(np.float64), path, dims[1])
    if action_mode in _CLIPPED:
        action = replace(action, limit=1.0)
    rule = 'add_to_width' if action_mode.startswith(_OPENPI) else 'keep_value'
    return Normalization(state, action, rule, _gripper(run, action_mode, folder))


def robot_tags(path: Path) -> dict[str, Any]:
    """Every robot of a statistics file -> its statistics. Raises OxygenError."""
    if not path.is_file():
        raise OxygenError(
            f'{path}: does not exist, and without it actions have no units; copy the complete '
            'run folder, or name a file under "statistics" in oxygen.json'
        )
    robots = {tag: entry for tag, entry in read_json(path).items() if isinstance(entry, dict)}
    if not robots:
        raise OxygenError(f'{path}: has no robot with statistics')
    return robots


def _robot(path: Path, robot_tag: str) -> Mapping[str, Any]:
    robots = robot_tags(path)
    if not robot_tag and len(robots) == 1:
        return next(iter(robots.values()))
    if robot_tag not in robots:
        raise OxygenError(
            f'{path}: robot_tag is {robot_tag!r}, the checkpoint knows {", ".join(robots)}; '
            'set robot_tag to one of these'
        )
    return robots[robot_tag]


def _gripper(run: RunOptions, mode: str, folder: Path) -> int:
    """The action that becomes 0 or 1, -1 for none."""
    if run.gripper is None:
        return 6 if mode in _CLIPPED else -1
    if run.gripper >= 0 and mode not in _CLIPPED:
        raise OxygenError(
            f'{folder / FILE}: gripper is {run.gripper}, but actions are normalised by {mode}, '
            f'where StarVLA makes none 0 or 1: remove it, or set it to -1'
        )
    return run.gripper


def _unscaled(entry: Mapping[str, Any], dim: int | None, lacking: int, path: Path) -> Scale:
    """A state that stays as it is."""
    known = next((entry[key] for key in ('q01', 'min', 'mean') if key in entry), ())
    width = dim or len(known) or lacking
    if not width:
        raise OxygenError(
            f'{path}: has no statistics of the state, and nothing else tells how wide it is: set '
            f'state_dim in {FILE}'
        )
    ones = np.ones(width, np.float32)
    return Scale('identity', np.zeros(width, np.float32), ones, ones)


def _state(robot: Mapping[str, Any], mode: str, dim: int | None, path: Path) -> Scale:
    """A state that the network is told by its statistics."""
    if not robot.get('state'):
        raise OxygenError(
            f'{path}: has no statistics of the state, which the network is told: copy the '
            'complete run folder; if it was trained with the state as it is, set '
            f'state_normalization to identity in {FILE}'
        )
    scale = _scale(robot, 'state', mode, np.dtype(np.float32), path, dim)
    return replace(scale, limit=2.2) if mode == 'quantiles' else scale


def _check_moved(scale: Scale, constant: list[int], path: Path) -> None:
    """Refuse what would be divided by next to nothing."""
    assert scale.mask is not None, 'a scale of StarVLA'
    still = np.flatnonzero(scale.mask & (scale.span_out < NO_SPAN)).tolist()
    if still == sorted(set(constant)):
        return
    zero = 'std = 0' if scale.mode == 'mean_std' else '{} = {}'.format(*MODES[scale.mode])
    if unmeant := sorted(set(still) - set(constant)):
        raise OxygenError(
            f'{path}: state has {zero} at {unmeant}, counted from 0: compute the statistics '
            'anew, set state_dim if these are padding, or list what never moves in '
            f'{FILE}: "constant_dimensions": {{"state": {still}}}'
        )
    raise OxygenError(
        f'{path}: {FILE} has constant_dimensions {sorted(set(constant))} of the state, but only '
        f'{still} have no range'
    )


def _scale(
    robot: Mapping[str, Any],
    what: str,
    mode: str,
    dtype: np.dtype[Any],
    path: Path,
    dim: int | None,
) -> Scale:
    """Of state or actions, masked as the file has it."""
    entry, by_openpi = robot.get(what) or {}, mode.startswith(_OPENPI)
    mode = mode.removeprefix(_OPENPI)
    dtype = np.dtype(np.float32) if by_openpi else dtype
    try:
        first, second = (np.asarray(entry[key], dtype).reshape(-1) for key in MODES[mode])
        # openpi's rules scale everything
        mask = np.asarray(True if by_openpi else entry.get('mask', True), dtype=bool)
        mask = np.broadcast_to(mask, first.shape)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OxygenError(
            f'{path}: {what} has no usable {" and ".join(MODES[mode])}, which it is normalised by'
        ) from error
    stats = Statistics(mode, first, second, 0.0, what, path)
    first, second = fitted(stats, dim, cut=dim is not None)
    span = second if mode == 'mean_std' else second - first
    span = span + dtype.type(_EPS) if by_openpi else span
    return Scale(mode, first, np.where(span == 0, dtype.type(1), span), span, mask[: len(first)])
