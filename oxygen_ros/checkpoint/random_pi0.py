"""StarVLA's runs with the PI0 head and random weights, for tests: random_starvla writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from oxygen_ros.checkpoint.arch import EXPERT, VLM, Pi05Arch, tensor_shapes
from oxygen_ros.checkpoint.random_files import write_json
from oxygen_ros.checkpoint.random_pi05 import ATTENTION, DTYPES, SIZES
from oxygen_ros.checkpoint.random_tokenizer import spoken_ids, vocabulary, write_tokenizer
from oxygen_ros.checkpoint.random_weights import RandomWeights

_PADDED = 32  # width of state and action in the network


def write_pi0(
    folder: Path, size: str, seed: int, cameras: Sequence[str], horizon: int, ends: bool
) -> None:
    """Everything of a run but its statistics, into an empty folder. For arguments see there."""
    arch = Pi05Arch(**SIZES[size], horizon=horizon, state_dim_padded=_PADDED)
    vocab = vocabulary(arch.vocab_size)
    write_tokenizer(folder / 'tokenizer', vocab)
    config = {'framework': _framework(arch, cameras)}
    # YAML takes JSON as it is
    (folder / 'config.yaml').write_text(json.dumps(config, indent=2) + '\n', encoding='utf-8')
    own: dict[str, Any] = {'architecture': {'vision_heads': arch.vision_heads}, 'gripper': -1}
    write_json(folder / 'oxygen.json', own)
    spoken = spoken_ids(vocab)
    end = vocab['<eos>'] if ends else spoken[0]
    weights = RandomWeights(seed, DTYPES[size], spoken, end, ATTENTION[size])
    shapes = tensor_shapes(arch)
    tensors = {_stored(name): weights.tensor(name, shape) for name, shape in shapes.items()}
    file = folder / 'checkpoints' / 'steps_1000_model.safetensors'
    file.parent.mkdir()
    save_file(tensors, file)


def _framework(arch: Pi05Arch, cameras: Sequence[str]) -> dict[str, Any]:
    return {
        'name': 'PI0',
        'action_dim': arch.action_dim_padded,
        'action_horizon': arch.horizon,
        'max_state_dim': arch.state_dim_padded,
        'discrete_state_input': False,
        'max_token_len': 48,
        'image_resolution': [arch.image_size, arch.image_size],
        'image_keys': list(cameras),
        'paligemma_config': {'num_heads': arch.heads, 'num_kv_heads': arch.kv_heads},
    }


def _stored(name: str) -> str:
    """StarVLA's name of a tensor."""
    if name.startswith(VLM):
        return 'vlm.model.' + name.removeprefix(VLM)
    if name.startswith(EXPERT):
        return 'action_head.gemma_expert.model.' + name.removeprefix(EXPERT)
    return 'action_head.' + name.replace('time_mlp', 'action_time_mlp')
