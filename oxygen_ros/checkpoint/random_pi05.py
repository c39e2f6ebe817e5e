"""Checkpoints with random weights, in LeRobot's format, for tests, demos and benchmarks.

    python -m oxygen_ros.checkpoint.random_pi05 OUT --size tiny

Weights are scaled so that activations stay healthy: actions of about unit scale, words that vary.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file as save_arrays

from oxygen_ros.checkpoint.arch import EMBED, Pi05Arch, tensor_shapes
from oxygen_ros.checkpoint.random_files import (
    SHARD_VALUES,
    new_folder,
    write_json,
    write_weights,
)
from oxygen_ros.checkpoint.random_tokenizer import spoken_ids, vocabulary, write_tokenizer
from oxygen_ros.checkpoint.random_weights import RandomWeights
from oxygen_ros.types import OxygenError

CAMERAS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
# fmt: off
SIZES = {
    # For tests and the demo: 1.2 M parameters, 16 tokens a camera.
    'tiny': dict(
        lm_width=128, depth=2, lm_mlp=512, expert_width=96, expert_mlp=256, heads=4, kv_heads=1,
        head_dim=32, vocab_size=768, vision_width=64, vision_layers=2, vision_heads=4,
        vision_mlp=128, patch=14, image_size=56,
    ),
    # The real token counts and depth with about an eighth of the parameters.
    'small': dict(
        lm_width=768, depth=18, lm_mlp=4096, expert_width=512, expert_mlp=1024, heads=8,
        kv_heads=1, head_dim=64, vocab_size=65536, vision_width=512, vision_layers=27,
        vision_heads=16, vision_mlp=1536, patch=14, image_size=224,
    ),
    # The real dimensions: 3.3 G parameters, 6.7 GB.
    'full': dict(
        lm_width=2048, depth=18, lm_mlp=16384, expert_width=1024, expert_mlp=4096, heads=8,
        kv_heads=1, head_dim=256, vocab_size=257152, vision_width=1152, vision_layers=27,
        vision_heads=16, vision_mlp=4304, patch=14, image_size=224,
    ),
}
# fmt: on
DTYPES = {'tiny': torch.float32, 'small': torch.bfloat16, 'full': torch.bfloat16}
ATTENTION = {'tiny': 4.0, 'small': 1.5, 'full': 1.5}
_TIED_ABOVE = 2**20  # values of a matrix that is stored once
_SHARD_VALUES = SHARD_VALUES
_PRE_STATE = 'policy_preprocessor_step_1_normalizer_processor.safetensors'
_POST_STATE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'


def write_random_checkpoint(
    path: str | Path,
    size: str = 'tiny',
    seed: int = 0,
    cameras: Sequence[str] = CAMERAS,
    state_dim: int = 8,
    action_dim: int = 7,
    horizon: int = 10,
) -> Path:
    """Write a checkpoint folder and return it; the same arguments write the same bytes.

    size: 'tiny', 'small' (both see SIZES) or 'full', which is written shard by shard.
    Raises OxygenError on a size that cannot be, and if the folder holds files already.
    """
    arch = _checked_arch(size, cameras, state_dim, action_dim, horizon)
    folder = new_folder(path)
    vocab = vocabulary(arch.vocab_size)
    write_tokenizer(folder / 'tokenizer', vocab)
    _write_descriptions(folder, arch, cameras, state_dim, action_dim)
    _write_statistics(folder, seed, state_dim, action_dim)
    weights = RandomWeights(seed, DTYPES[size], spoken_ids(vocab), vocab['<eos>'], ATTENTION[size])
    _write_weights(folder, arch, weights)
    return folder


def _checked_arch(
    size: str, cameras: Sequence[str], state_dim: int, action_dim: int, horizon: int
) -> Pi05Arch:
    if size not in SIZES:
        raise OxygenError(f'size is {size!r}, allowed: {", ".join(SIZES)}')
    if not cameras or min(state_dim, action_dim, horizon) < 1:
        raise OxygenError(
            f'cameras {list(cameras)}, state_dim {state_dim}, action_dim {action_dim}, horizon '
            f'{horizon}: at least one of each is needed'
        )
    arch = Pi05Arch(**SIZES[size], horizon=horizon)
    if action_dim > arch.action_dim_padded:
        raise OxygenError(f'action_dim is {action_dim}, allowed: up to {arch.action_dim_padded}')
    return arch


def _write_descriptions(
    folder: Path, arch: Pi05Arch, cameras: Sequence[str], state_dim: int, action_dim: int
) -> None:
    """config.json, the two processor files and oxygen.json."""
    image = {'type': 'VISUAL', 'shape': [3, arch.image_size, arch.image_size]}
    inputs = {f'observation.images.{camera}': image for camera in cameras}
    inputs['observation.state'] = {'type': 'STATE', 'shape': [state_dim]}
    config = {
        'type': 'pi05',
        'n_obs_steps': 1,
        'input_features': inputs,
        'output_features': {'action': {'type': 'ACTION', 'shape': [action_dim]}},
        'paligemma_variant': 'gemma_2b',
        'action_expert_variant': 'gemma_300m',
        'chunk_size': arch.horizon,
        'n_action_steps': arch.horizon,
        'max_state_dim': arch.action_dim_padded,
        'max_action_dim': arch.action_dim_padded,
        'num_inference_steps': 10,
        'min_period': arch.min_period,
        'max_period': arch.max_period,
        'image_resolution': [arch.image_size, arch.image_size],
        'tokenizer_max_length': 200,
    }
    write_json(folder / 'config.json', config)
    normalize = {
        'eps': 1e-8,
        'norm_map': {'VISUAL': 'IDENTITY', 'STATE': 'QUANTILES', 'ACTION': 'QUANTILES'},
    }
    before = [
        _step('relative_actions_processor', {'enabled': False}),
        _step('normalizer_processor', normalize, _PRE_STATE),
        _step('pi05_prepare_state_tokenizer_processor_step', {}),
        _step('tokenizer_processor', {'max_length': 200}),
    ]
    after = [_step('unnormalizer_processor', normalize, _POST_STATE)]
    write_json(folder / 'policy_preprocessor.json', {'steps': before})
    write_json(folder / 'policy_postprocessor.json', {'steps': after})
    sizes = ('heads', 'kv_heads', 'vision_heads', 'depth', 'vision_layers')
    stated = {key: getattr(arch, key) for key in sizes}
    write_json(folder / 'oxygen.json', {'architecture': stated})


def _step(name: str, config: dict[str, Any], state_file: str | None = None) -> dict[str, Any]:
    step = {'registry_name': name, 'config': config}
    return step if state_file is None else {**step, 'state_file': state_file}


def _write_statistics(folder: Path, seed: int, state_dim: int, action_dim: int) -> None:
    """Quantiles as of joints in radians: a centre within +-0.5, a reach of 0.5 to 1.5."""
    random = np.random.default_rng(seed)
    statistics = {}
    for feature, width in (('observation.state', state_dim), ('action', action_dim)):
        centre, reach = random.uniform(-0.5, 0.5, width), random.uniform(0.5, 1.5, width)
        statistics[f'{feature}.q01'] = (centre - reach).astype(np.float32)
        statistics[f'{feature}.q99'] = (centre + reach).astype(np.float32)
    for name in (_PRE_STATE, _POST_STATE):
        save_arrays(statistics, folder / name)


def _write_weights(folder: Path, arch: Pi05Arch, weights: RandomWeights) -> None:
    """Large files hold the tied matrix once, as released ones do."""
    shapes = {
        name: shape
        for name, shape in tensor_shapes(arch).items()
        if name != EMBED or math.prod(shape) <= _TIED_ABOVE
    }
    write_weights(folder, shapes, weights.tensor, _SHARD_VALUES, 'model.')


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a random checkpoint from the command line."""
    parser = argparse.ArgumentParser(description='Write a pi0.5 checkpoint with random weights.')
    parser.add_argument('out', help='a new or empty folder')
    parser.add_argument('--size', choices=sorted(SIZES), default='tiny')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--cameras', nargs='+', default=list(CAMERAS), help='slot names')
    parser.add_argument('--state-dim', type=int, default=8, help='joints of the state')
    parser.add_argument('--action-dim', type=int, default=7, help='joints of an action')
    parser.add_argument('--horizon', type=int, default=10, help='steps of a chunk')
    given = parser.parse_args(arguments)
    try:
        folder = write_random_checkpoint(
            given.out,
            given.size,
            given.seed,
            given.cameras,
            given.state_dim,
            given.action_dim,
            given.horizon,
        )
    except OxygenError as error:
        parser.error(str(error))
    print(f'wrote {folder}')


if __name__ == '__main__':
    main()
