"""The small model's checkpoint folder, in LeRobot's format, which the loader reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file as save_tensors

from oxygen_ros.checkpoint.arch import LM_HEAD, Pi05Arch
from oxygen_ros.checkpoint.weights import SINGLE
from oxygen_ros.tabletop.render import CAMERAS, SIZE
from oxygen_ros.tabletop.samples import HORIZON
from oxygen_ros.tabletop.vocabulary import vocabulary, write_tokenizer
from oxygen_ros.tabletop.world import JOINTS, LOWER, UPPER

_STATISTICS = 'statistics.safetensors'
_MAX_PROMPT = 64  # tokens


def architecture() -> Pi05Arch:
    """Sizes of the small model."""
    return Pi05Arch(
        lm_width=128, depth=3, lm_mlp=384, expert_width=96, expert_mlp=256, heads=4, kv_heads=1,
        head_dim=32, vocab_size=len(vocabulary()), vision_width=96, vision_layers=3,
        vision_heads=4, vision_mlp=256, patch=14, image_size=SIZE, horizon=HORIZON,
        action_dim_padded=len(JOINTS),
    )  # fmt: skip


def write_description(folder: Path, mean: np.ndarray, std: np.ndarray) -> None:
    """Everything but the weights. mean, std: of actions [4], as the processor makes them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    arch = architecture()
    _write(folder / 'config.json', _config(arch))
    normalize = {
        'eps': 1e-8,
        'norm_map': {'VISUAL': 'IDENTITY', 'STATE': 'MIN_MAX', 'ACTION': 'MEAN_STD'},
    }
    # x, y and lift count from where the arm is; how wide the gripper shall be does not.
    relative = {'enabled': True, 'exclude_joints': ['gripper'], 'action_names': list(JOINTS)}
    before = [
        _step('relative_actions_processor', relative),
        _step('normalizer_processor', normalize, _STATISTICS),
        _step('pi05_prepare_state_tokenizer_processor_step', {}),
        _step('tokenizer_processor', {'max_length': _MAX_PROMPT}),
    ]
    after = [
        _step('unnormalizer_processor', normalize, _STATISTICS),
        _step('absolute_actions_processor', {'enabled': True}),
    ]
    _write(folder / 'policy_preprocessor.json', {'steps': before})
    _write(folder / 'policy_postprocessor.json', {'steps': after})
    heads = {key: getattr(arch, key) for key in ('heads', 'kv_heads', 'vision_heads')}
    _write(folder / 'oxygen.json', {'architecture': heads})
    statistics = {
        'observation.state.min': LOWER,
        'observation.state.max': UPPER,
        'action.mean': mean,
        'action.std': std,
    }
    save_arrays({k: v.astype(np.float32) for k, v in statistics.items()}, folder / _STATISTICS)


def write_weights(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Canonical name -> tensor; the head is tied to the embedding and not stored."""
    kept = {
        f'model.{name}': tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in tensors.items()
        if name != LM_HEAD
    }
    save_tensors(kept, folder / SINGLE)


def _config(arch: Pi05Arch) -> dict[str, Any]:
    image = {'type': 'VISUAL', 'shape': [3, SIZE, SIZE]}
    inputs: dict[str, Any] = {f'observation.images.{camera}': image for camera in CAMERAS}
    inputs['observation.state'] = {'type': 'STATE', 'shape': [len(JOINTS)]}
    return {
        'type': 'pi05',
        'n_obs_steps': 1,
        'input_features': inputs,
        'output_features': {'action': {'type': 'ACTION', 'shape': [len(JOINTS)]}},
        'paligemma_variant': 'gemma_2b',
        'action_expert_variant': 'gemma_300m',
        'chunk_size': arch.horizon,
        'n_action_steps': arch.horizon,
        'max_state_dim': len(JOINTS),
        'max_action_dim': arch.action_dim_padded,
        'num_inference_steps': 10,
        'min_period': arch.min_period,
        'max_period': arch.max_period,
        'image_resolution': [SIZE, SIZE],
        'tokenizer_max_length': _MAX_PROMPT,
        'use_relative_actions': True,
    }


def _step(name: str, config: dict[str, Any], state_file: str | None = None) -> dict[str, Any]:
    step = {'registry_name': name, 'config': config}
    return step if state_file is None else {**step, 'state_file': state_file}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + '\n', encoding='utf-8')
