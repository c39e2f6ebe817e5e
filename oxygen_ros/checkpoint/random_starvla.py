"""StarVLA's runs with random weights, for tests and benchmarks.

    python -m oxygen_ros.checkpoint.random_starvla OUT --head QwenPI_v3 --size tiny

Weights are scaled so that activations stay healthy; the base model lies within the run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLModel

from oxygen_ros.checkpoint import random_qwen
from oxygen_ros.checkpoint.random_files import new_folder, write_json
from oxygen_ros.checkpoint.random_pi0 import write_pi0
from oxygen_ros.checkpoint.starvla import VLM
from oxygen_ros.checkpoint.starvla_head import HEADS
from oxygen_ros.types import OxygenError

ROBOT = 'random_robot'
CAMERAS = ('base', 'left_wrist', 'right_wrist')
WRITTEN = (*HEADS, 'PI0')
BACKBONES = ('qwen3_vl', 'qwen2_5_vl')
# of the heads: width of the DiT where it is not the backbone's, of one attention head, of the
# MLPs; blocks of QwenGR00T; tokens before the actions; pixels that images are squeezed to
SIZES: dict[str, dict[str, int]] = {
    'tiny': dict(width=64, head_dim=16, mlp=96, blocks=4, future=4, positions=64, image=64),
    'small': dict(
        width=512, head_dim=64, mlp=512, blocks=16, future=32, positions=1024, image=224
    ),
}
_FREQUENCIES = 256
_ACTION_TOKENS = 64  # of QwenFast's vocabulary
_ACTION, _QUERY = '<robot_action_', '🔍'  # QwenFast's tokens, and where QwenOFT reads
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
)

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def write_random_checkpoint(
    path: str | Path,
    size: str = 'tiny',
    seed: int = 0,
    cameras: Sequence[str] = CAMERAS,
    state_dim: int = 8,
    action_dim: int = 7,
    horizon: int = 8,
    head: str = 'QwenPI_v3',
    backbone: str = 'qwen3_vl',
    squeezed: bool = True,
    ends: bool = True,
) -> Path:
    """Write a run folder and return it; the same arguments write the same bytes.

    size: see SIZES and random_qwen.SIZES; a PI0 has random_pi05's and no backbone to choose.
    squeezed: images are resized to one size. ends: answers end by themselves now and then.
    Raises OxygenError on what cannot be, and if the folder holds files already.
    """
    for what, given, allowed in (
        ('size', size, SIZES),
        ('head', head, WRITTEN),
        ('backbone', backbone, BACKBONES),
    ):
        if given not in allowed:
            raise OxygenError(f'{what} is {given!r}, allowed: {", ".join(allowed)}')
    folder = new_folder(path)
    _write_statistics(folder, seed, state_dim, action_dim)
    if head == 'PI0':
        write_pi0(folder, size, seed, cameras, horizon, ends)
        return folder
    vocab = _vocabulary(size, head)
    vlm = random_qwen.vlm_config(size, vocab)
    vlm = vlm if backbone == 'qwen3_vl' else qwen2_5(vlm)
    sizes = {**SIZES[size], 'action': action_dim, 'state': state_dim, 'horizon': horizon}
    _write_base(folder / 'base_vlm', vlm, vocab, size)
    _write_config(folder, head, sizes, squeezed)
    own: dict[str, Any] = {'cameras': list(cameras), 'gripper': -1}
    if head == 'QwenFast':
        _write_fast(folder / 'fast')
        own['max_action_tokens'] = horizon * action_dim
    write_json(folder / 'oxygen.json', own)
    spoken, end = random_qwen.spoken_ids(vocab), vocab['<|im_end|>']
    if head == 'QwenFast':  # says nothing but actions
        spoken = [i for token, i in vocab.items() if token.startswith(_ACTION)]
    if head == 'QwenFast' or not ends:
        end = spoken[0]
    weights = StarvlaWeights(seed, random_qwen.DTYPES[size], spoken, end)
    _write_weights(folder, weights, tensor_shapes(vlm, head, sizes))
    return folder


def qwen2_5(config: dict[str, Any]) -> dict[str, Any]:
    """A Qwen2.5-VL of the sizes of a Qwen3-VL's config.json."""
    text, vision = dict(config['text_config']), dict(config['vision_config'])
    heads = text['num_attention_heads']
    rotated = text['hidden_size'] // heads // 2
    part = rotated * 3 // 8
    text |= {
        'model_type': 'qwen2_5_vl_text',
        'rope_scaling': {'type': 'mrope', 'mrope_section': [rotated - 2 * part, part, part]},
        'rope_theta': 1e6,
    }
    del text['head_dim']
    last = vision['depth'] - 1
    vision |= {
        'model_type': 'qwen2_5_vl',
        'patch_size': 16,
        'window_size': 64,
        'fullatt_block_indexes': [last],
    }
    for key in ('num_position_embeddings', 'deepstack_visual_indexes'):
        del vision[key]
    return {**config, 'model_type': 'qwen2_5_vl', 'text_config': text, 'vision_config': vision}


def tensor_shapes(
    vlm: dict[str, Any], head: str, sizes: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    """Every tensor of a run -> its shape. The head for words is the embedding."""
    if vlm['model_type'] == 'qwen3_vl':
        shapes = random_qwen.backbone_shapes(vlm, VLM + 'model.')
    else:
        with torch.device('meta'):
            model = Qwen2_5_VLModel(Qwen2_5_VLConfig(**vlm))
        shapes = {f'{VLM}model.{n}': tuple(v.shape) for n, v in model.named_parameters()}
    text = vlm['text_config']
    wide, layers = text['hidden_size'], text['num_hidden_layers']
    if head == 'QwenOFT':
        return shapes | dict(_queries(wide, sizes))
    if head == 'QwenFast':
        return shapes
    if head == 'QwenGR00T':
        return shapes | dict(_flow(sizes['width'], sizes['blocks'], wide, sizes, True))
    width = sizes['width'] if head == 'QwenPI_v3' else wide
    shapes |= dict(_flow(width, layers, width, sizes, False))
    if head == 'QwenPI_v3':
        for i in range(layers):
            shapes[f'project_layers.{i}.0.weight'] = shapes[f'project_layers.{i}.0.bias'] = (wide,)
            shapes |= dict(_linear(f'project_layers.{i}.1', width, wide))
    return shapes


def _linear(name: str, rows: int, columns: int) -> Shapes:
    yield f'{name}.weight', (rows, columns)
    yield f'{name}.bias', (rows,)


def _flow(width: int, blocks: int, seen: int, sizes: dict[str, int], interleaved: bool) -> Shapes:
    """A flow head; interleaved: QwenGR00T's, with a projection behind its blocks."""
    name = 'action_model.'
    time = f'{name}model.timestep_encoder.timestep_embedder.'
    yield from _linear(f'{time}linear_1', width, _FREQUENCIES)
    yield from _linear(f'{time}linear_2', width, width)
    for i in range(blocks):
        block = f'{name}model.transformer_blocks.{i}.'
        yield from _linear(f'{block}norm1.linear', 2 * width, width)
        looked = width if interleaved and i % 2 else seen
        for part, columns in (('to_q', width), ('to_k', looked), ('to_v', looked)):
            yield from _linear(f'{block}attn1.{part}', width, columns)
        yield from _linear(f'{block}attn1.to_out.0', width, width)
        yield from _linear(f'{block}ff.net.0.proj', 4 * width, width)
        yield from _linear(f'{block}ff.net.2', width, 4 * width)
    yield from _linear(f'{name}model.proj_out_1', 2 * width, width)
    yield from _linear(f'{name}model.proj_out_2', width, width)
    mlp, action, state = sizes['mlp'], sizes['action'], sizes['state']
    for part, rows, columns in (
        ('state_encoder', width, state),
        ('action_decoder', action, width),
    ):
        yield from _linear(f'{name}{part}.layer1', mlp, columns)
        yield from _linear(f'{name}{part}.layer2', rows, mlp)
    for i, columns in ((1, action), (2, 2 * width), (3, width)):
        yield from _linear(f'{name}action_encoder.layer{i}', width, columns)
    yield f'{name}future_tokens.weight', (sizes['future'], width)
    yield f'{name}position_embedding.weight', (sizes['positions'], width)


def _queries(wide: int, sizes: dict[str, int]) -> Shapes:
    name = 'action_model.model.'
    yield from ((f'{name}layer_norm1.{part}', (wide,)) for part in ('weight', 'bias'))
    yield from _linear(f'{name}fc1', 2 * wide, wide)
    for i in range(2):
        block = f'{name}mlp_resnet_blocks.{i}.ffn.'
        yield from ((f'{block}0.{part}', (2 * wide,)) for part in ('weight', 'bias'))
        yield from _linear(f'{block}1', 2 * wide, 2 * wide)
    yield from ((f'{name}layer_norm2.{part}', (2 * wide,)) for part in ('weight', 'bias'))
    yield from _linear(f'{name}fc2', sizes['action'], 2 * wide)


class StarvlaWeights(random_qwen.QwenWeights):
    """Values by name, the action head's included."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of a name."""
        if name.startswith(VLM) or len(shape) > 1:
            return super().tensor(name, shape)
        value = 1.0 if name.endswith('.weight') else 0.0
        return torch.full(shape, value, dtype=self.dtype)


def _vocabulary(size: str, head: str) -> dict[str, int]:
    """Token -> id; some unused ones are QwenFast's actions, one is where QwenOFT reads."""
    vocab = random_qwen.vocabulary(random_qwen.checked(size)['text']['vocab_size'])
    unused = [token for token in vocab if token.startswith('<unused')]
    names = (
        [f'<robot_action_{i}>' for i in range(_ACTION_TOKENS)] if head == 'QwenFast' else ['🔍']
    )
    for token, name in zip(unused, names, strict=False):
        vocab[name] = vocab.pop(token)
    return vocab


def _write_base(folder: Path, vlm: dict[str, Any], vocab: dict[str, int], size: str) -> None:
    folder.mkdir()
    write_json(folder / 'config.json', vlm)
    write_json(folder / 'preprocessor_config.json', random_qwen.image_rule(size))
    random_qwen.write_tokenizer(folder, vocab)
    (folder / 'chat_template.jinja').write_text(_CHAT, encoding='utf-8')
    path = folder / 'tokenizer.json'
    stored = json.loads(path.read_text(encoding='utf-8'))
    for token, i in vocab.items():
        if token.startswith(_ACTION) or token == _QUERY:
            added = dict.fromkeys(
                ('single_word', 'lstrip', 'rstrip', 'normalized', 'special'), False
            )
            stored['added_tokens'].append({'id': i, 'content': token, **added})
    path.write_text(json.dumps(stored, ensure_ascii=False), encoding='utf-8')


def _write_statistics(folder: Path, seed: int, state_dim: int, action_dim: int) -> None:
    """Quantiles as of joints in radians."""
    random = np.random.default_rng(seed)
    robot: dict[str, Any] = {}
    for what, width in (('action', action_dim), ('state', state_dim)):
        centre, reach = random.uniform(-0.5, 0.5, width), random.uniform(0.5, 1.5, width)
        low, high = (centre - reach).round(6).tolist(), (centre + reach).round(6).tolist()
        robot[what] = {'q01': low, 'q99': high, 'min': low, 'max': high, 'mask': [True] * width}
    write_json(folder / 'dataset_statistics.json', {ROBOT: robot})


def action_model(head: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Of config.yaml: what StarVLA's defaults do not say."""
    dit: dict[str, Any] = {'attention_head_dim': sizes['head_dim']}
    if head == 'QwenGR00T':
        dit['num_attention_heads'] = sizes['width'] // sizes['head_dim']
        dit['num_layers'], dit['output_dim'] = sizes['blocks'], sizes['width']
    if head == 'QwenPI_v3':
        dit['action_dit_hidden_dim'] = sizes['width']
    return {
        'action_dim': sizes['action'],
        'state_dim': sizes['state'],
        'action_horizon': sizes['horizon'],
        'num_target_vision_tokens': sizes['future'],
        'max_seq_len': sizes['positions'],
        'diffusion_model_cfg': dit,
    }


def _write_config(folder: Path, head: str, sizes: dict[str, int], squeezed: bool) -> None:
    data: dict[str, Any] = {'include_state': HEADS[head].state != 'none'}
    if squeezed:
        data['obs_image_size'] = [sizes['image'], sizes['image']]
    config = {
        'framework': {
            'name': head,
            'qwenvl': {'base_vlm': './base_vlm'},
            'action_model': action_model(head, sizes),
        },
        'datasets': {'vla_data': data},
    }
    (folder / 'config.yaml').write_text(yaml.safe_dump(config, sort_keys=False), encoding='utf-8')


def _write_fast(folder: Path) -> None:
    """A FAST tokenizer whose every token is one coefficient."""
    least = -_ACTION_TOKENS // 2
    characters = {chr(i): i for i in range(_ACTION_TOKENS)}
    tokenizer = Tokenizer(models.BPE(characters, []))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    write_json(folder / 'processor_config.json', {'scale': 10, 'min_token': least})


def _write_weights(
    folder: Path, weights: StarvlaWeights, shapes: dict[str, tuple[int, ...]]
) -> None:
    """One file, as StarVLA writes it."""
    tensors = {name: weights.tensor(name, shape) for name, shape in shapes.items()}
    file = folder / 'checkpoints' / 'steps_1000_model.safetensors'
    file.parent.mkdir()
    save_file(tensors, file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a random run from the command line."""
    parser = argparse.ArgumentParser(description='Write a StarVLA run with random weights.')
    parser.add_argument('out', help='a new or empty folder')
    parser.add_argument('--head', choices=sorted(WRITTEN), default='QwenPI_v3')
    parser.add_argument('--backbone', choices=BACKBONES, default=BACKBONES[0])
    parser.add_argument('--size', choices=sorted(SIZES), default='tiny')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--cameras', nargs='+', default=list(CAMERAS), help='slot names')
    parser.add_argument('--state-dim', type=int, default=8, help='joints of the state')
    parser.add_argument('--action-dim', type=int, default=7, help='joints of an action')
    parser.add_argument('--horizon', type=int, default=8, help='steps of a chunk')
    given = vars(parser.parse_args(arguments))
    try:
        folder = write_random_checkpoint(given.pop('out'), **given)
    except OxygenError as error:
        parser.error(str(error))
    print(f'wrote {folder}')


if __name__ == '__main__':
    main()
