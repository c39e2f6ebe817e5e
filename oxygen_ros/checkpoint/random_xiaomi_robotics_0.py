"""Xiaomi-Robotics-0 checkpoints with random weights, for tests and benchmarks.

    python -m oxygen_ros.checkpoint.random_xiaomi_robotics_0 OUT --size tiny

Weights are scaled so that activations stay healthy: actions of about unit scale, words that vary.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oxygen_ros.checkpoint import random_qwen
from oxygen_ros.checkpoint.random_files import new_folder, write_json, write_weights
from oxygen_ros.checkpoint.xiaomi_robotics_0 import (
    FAMILY,
    MODEL_TYPE,
    NAMING,
    VIEWS,
    XiaomiLayout,
)
from oxygen_ros.types import OxygenError

ROBOT = 'random_robot'
WIDTH = 32  # of state and actions inside the network
DIT: dict[str, dict[str, int]] = {
    'tiny': {'hidden_size': 64, 'num_hidden_layers': 2, 'head_dim': 32, 'num_key_value_heads': 2},
    'small': {
        'hidden_size': 512,
        'num_hidden_layers': 16,
        'head_dim': 64,
        'num_key_value_heads': 8,
    },
    'full': {
        'hidden_size': 1024,
        'num_hidden_layers': 16,
        'head_dim': 128,
        'num_key_value_heads': 8,
    },
}
_FREQUENCIES = 256  # of the sine embedding of the flow time


def write_random_checkpoint(
    path: str | Path,
    size: str = 'tiny',
    seed: int = 0,
    cameras: Sequence[str] = tuple(VIEWS),
    state_dim: int = 8,
    action_dim: int = 7,
    horizon: int = 10,
) -> Path:
    """Write a checkpoint folder and return it; the same arguments write the same bytes.

    size: 'tiny', 'small' or 'full', see random_qwen.SIZES. Raises OxygenError on a size that
    cannot be, and if the folder holds files already.
    """
    vocab = random_qwen.vocabulary(random_qwen.checked(size)['text']['vocab_size'])
    if (
        not cameras
        or min(state_dim, action_dim, horizon) < 1
        or max(state_dim, action_dim) > WIDTH
    ):
        raise OxygenError(
            f'cameras {list(cameras)}, state_dim {state_dim}, action_dim {action_dim}, horizon '
            f'{horizon}: at least one of each is needed, and at most {WIDTH} joints'
        )
    folder = new_folder(path)
    config = _config(size, vocab, horizon)
    write_json(folder / 'config.json', config)
    write_json(folder / 'preprocessor_config.json', _preprocessor(size, seed, action_dim, horizon))
    views = {slot: VIEWS.get(slot, slot.replace('_', ' ').title()) for slot in cameras}
    own = {'views': views, 'state_dim': state_dim, 'action_dim': action_dim}
    write_json(folder / 'oxygen.json', own)
    random_qwen.write_tokenizer(folder, vocab)
    spoken, eos_id = random_qwen.spoken_ids(vocab), vocab['<|im_end|>']
    weights = XiaomiWeights(
        seed, random_qwen.DTYPES[size], spoken, eos_id, ending=random_qwen.ENDING
    )
    write_weights(folder, tensor_shapes(config), weights.tensor)
    return folder


def random_layout(
    size: str, cameras: int, image_tokens: int, text_tokens: int, horizon: int
) -> XiaomiLayout:
    """What a checkpoint of a size would be read as, without writing one: for benchmarks.

    cameras: how many, image_tokens of each; text_tokens: of all words. Raises OxygenError.
    """
    vocab = random_qwen.vocabulary(random_qwen.checked(size)['text']['vocab_size'])
    config = _config(size, vocab, horizon)
    views = tuple(f'View {number}' for number in range(cameras))
    return XiaomiLayout(
        path=Path('random'),
        format=MODEL_TYPE,
        family=FAMILY,
        cameras=views,
        state_dim=WIDTH,
        action_dim=WIDTH,
        horizon=horizon,
        max_prefix=cameras * image_tokens + text_tokens,
        dtype='bfloat16',
        weight_files=(),
        naming=NAMING,
        vlm=config['vlm_config'],
        dit=config['dit_config'],
        state_width=WIDTH,
        action_width=WIDTH,
        tied_head=True,
        image=random_qwen.image_rule(size),
        image_resize='pil',
        views=views,
        image_tokens=image_tokens,
        text_tokens=text_tokens,
        action_position_offset=0,
        local_window=None,
        prefix_length=0,
    )


def _config(size: str, vocab: dict[str, int], horizon: int) -> dict[str, Any]:
    return {
        'model_type': MODEL_TYPE,
        'architectures': ['MiBoTForActionGeneration'],
        'state_length': 1,
        'state_dim': WIDTH,
        'action_length': horizon,
        'action_dim': WIDTH,
        'dit_config': DIT[size],
        'vlm_config': random_qwen.vlm_config(size, vocab),
    }


def _preprocessor(size: str, seed: int, action_dim: int, horizon: int) -> dict[str, Any]:
    """Image rule, and statistics per step as of joints in radians; zeros are padding."""
    random = np.random.default_rng(seed)
    mean, std = np.zeros((2, horizon, WIDTH))
    mean[:, :action_dim] = random.uniform(-0.5, 0.5, (horizon, action_dim))
    std[:, :action_dim] = random.uniform(0.2, 0.6, (horizon, action_dim))
    robots = {ROBOT: {'mean': mean.round(6).tolist(), 'std': std.round(6).tolist()}}
    return {**random_qwen.image_rule(size), 'action_config': robots}


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a network of this config.json -> its shape."""
    shapes = random_qwen.backbone_shapes(config['vlm_config'], 'vlm.model.')
    return shapes | dict(_expert(config['dit_config']))


def _expert(dit: dict[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, head = dit['hidden_size'], dit['head_dim']
    for i in range(dit['num_hidden_layers']):
        layer = f'dit.layers.{i}.'
        yield layer + 'attn.qkv_proj.weight', (3 * width, width)
        yield layer + 'attn.qkv_proj.bias', (3 * width,)
        yield layer + 'attn.o_proj.weight', (width, width)
        yield from ((f'{layer}attn.{name}.weight', (head,)) for name in ('q_norm', 'k_norm'))
        yield from (
            (f'{layer}mlp.{name}_proj.weight', (4 * width, width)) for name in ('gate', 'up')
        )
        yield layer + 'mlp.down_proj.weight', (width, 4 * width)
        for place in ('input', 'middle', 'post', 'final'):
            yield f'{layer}{place}_layernorm.weight', (width,)
        yield layer + 'adaln_table', (6, width)
    ends = (('state_projector', WIDTH, width), ('action_projector', WIDTH, width))
    for name, narrow, wide in (*ends, ('action_output_layer', width, WIDTH)):
        yield f'{name}.layers.0.weight', (wide, narrow)
        yield f'{name}.layers.2.weight', (wide, wide)
    yield 't_embedder.mlp.0.weight', (width, _FREQUENCIES)
    yield 't_embedder.mlp.2.weight', (width, width)
    yield 't_projector.layers.0.weight', (6 * width, width)
    yield 't_projector.layers.0.bias', (6 * width,)
    yield 'sink.weight', (1, width)


class XiaomiWeights(random_qwen.QwenWeights):
    """Values by name, the action expert's included."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of a name."""
        if name.endswith('adaln_table'):
            table = self._normal(name, shape, 0.1)
            table[[2, 5]] += 1  # gates stand open
            return table
        if name == 'sink.weight':
            return self._normal(name, shape, 1.0)
        return super().tensor(name, shape)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a random checkpoint from the command line."""
    parser = argparse.ArgumentParser(
        description='Write a Xiaomi-Robotics-0 checkpoint with random weights.'
    )
    parser.add_argument('out', help='a new or empty folder')
    parser.add_argument('--size', choices=sorted(random_qwen.SIZES), default='tiny')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--cameras', nargs='+', default=list(VIEWS), help='slot names')
    parser.add_argument('--state-dim', type=int, default=8, help='joints of the state')
    parser.add_argument('--action-dim', type=int, default=7, help='joints of an action')
    parser.add_argument('--horizon', type=int, default=10, help='steps of a chunk')
    given = vars(parser.parse_args(arguments))
    try:
        folder = write_random_checkpoint(given.pop('out'), **given)
    except OxygenError as error:
        parser.error(str(error))
    print(f'wrote {folder}')


if __name__ == '__main__':
    main()
