"""openpi's converted PyTorch folder: config.json, model.safetensors, assets/<id>/norm_stats.json.

Source: openpi examples/convert_jax_model_to_pytorch.py and shared/normalize.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.checkpoint.arch import variant_heads
from oxygen_ros.checkpoint.info import EPS_RULES, Described
from oxygen_ros.checkpoint.options import Options, count
from oxygen_ros.checkpoint.stats import Statistics, from_json
from oxygen_ros.types import OxygenError

CAMERAS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')


def describe(folder: Path, config: dict[str, Any], options: Options) -> Described:
    """Read what an openpi checkpoint states of itself. Raises OxygenError."""
    path = folder / 'config.json'
    horizon = config.get('action_horizon', options.architecture.get('horizon'))
    if horizon is None:
        raise OxygenError(
            f'{folder}: the action horizon is stated nowhere; put action_horizon into config.json '
            'or "architecture": {"horizon": N} into oxygen.json'
        )
    sizes = {'horizon': count(horizon, f'{path}: action_horizon'), **variant_heads(config)}
    if 'action_dim' in config:
        sizes['action_dim_padded'] = count(config['action_dim'], f'{path}: action_dim')
    return Described(
        format='openpi',
        cameras=CAMERAS,
        state_dim=None,
        action_dim=None,
        relative_actions=(),
        sizes=sizes,
        image_resolution=None,
        tokenizer_dirs=(folder / 'tokenizer', folder),
        tokenizer_max_length=200,
        time_rule='accumulate_float32',
        image_resize='pil_bilinear',
        eps_rule='add_to_width',
    )


def statistics(folder: Path, options: Options) -> tuple[Statistics, Statistics]:
    """Quantiles of state and actions, from norm_stats.json. Raises OxygenError."""
    path, eps = options.statistics or _norm_stats(folder), EPS_RULES['add_to_width']
    return (
        from_json(path, np.float64, 'state', 'quantiles', eps),
        from_json(path, np.float64, 'actions', 'quantiles', eps),
    )


def _norm_stats(folder: Path) -> Path:
    found = sorted((folder / 'assets').rglob('norm_stats.json'))
    if len(found) != 1:
        what = 'no norm_stats.json' if not found else f'{len(found)} norm_stats.json'
        raise OxygenError(
            f'{folder / "assets"}: {what}, one expected; name it under "statistics" in oxygen.json'
        )
    return found[0]
