"""Sizes of a pi0.5 or pi0 network, and the tensors that a network of these sizes has.

Names are LeRobot's key tree without the leading `model.`. No torch here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oxygen_ros.types import OxygenError

VLM = 'paligemma_with_expert.paligemma.'
LANGUAGE = VLM + 'model.language_model.'
VISION = VLM + 'model.vision_tower.vision_model.'
PROJECTOR = VLM + 'model.multi_modal_projector.linear.'
EXPERT = 'paligemma_with_expert.gemma_expert.model.'
EMBED = LANGUAGE + 'embed_tokens.weight'
LM_HEAD = VLM + 'lm_head.weight'

# Head counts, which tensor shapes cannot tell, per variant that a config.json names.
_LM_VARIANTS = {'gemma_2b': {'heads': 8, 'kv_heads': 1}}
_SIGLIP_SO400M = {'vision_heads': 16}
# Name and size that tell a makers' variant -> its other sizes: a file that lacks a part is known.
_MADE: dict[tuple[str, str, int], dict[str, int]] = {
    ('gemma_2b', 'lm_width', 2048): {'depth': 18, 'lm_mlp': 16384, 'head_dim': 256},
    ('gemma_300m', 'expert_width', 1024): {'depth': 18, 'expert_mlp': 4096, 'head_dim': 256},
    ('SigLIP so400m', 'vision_width', 1152): {'vision_layers': 27, 'vision_mlp': 4304},
}


@dataclass(frozen=True)
class Pi05Arch:
    """Sizes of one network. heads, kv_heads and head_dim hold for LM and expert alike.

    image_size: pixels of the square input; a camera takes (image_size / patch) ** 2 tokens.
    horizon: action steps H. action_dim_padded: width of an action inside the network.
    min_period, max_period: of the sine embedding of the flow time. state_dim_padded: width of the
    state that pi0 embeds; 0 is pi0.5, which reads it in the prompt.
    """

    lm_width: int
    depth: int
    lm_mlp: int
    expert_width: int
    expert_mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    vision_width: int
    vision_layers: int
    vision_heads: int
    vision_mlp: int
    patch: int
    image_size: int
    horizon: int
    action_dim_padded: int = 32
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    min_period: float = 4e-3
    max_period: float = 4.0
    state_dim_padded: int = 0

    @property
    def tokens_per_camera(self) -> int:
        """Prefix tokens that one present camera takes."""
        return (self.image_size // self.patch) ** 2


REAL_NUMBERS = ('rms_eps', 'rope_theta', 'min_period', 'max_period')
ARCH_KEYS = tuple(field.name for field in dataclasses.fields(Pi05Arch))


def variant_heads(config: Mapping[str, Any]) -> dict[str, int]:
    """Head counts of the variants a config.json names; the vision tower is always SigLIP's."""
    return {**_SIGLIP_SO400M, **_LM_VARIANTS.get(str(config.get('paligemma_variant')), {})}


def arch_from_shapes(
    shapes: Mapping[str, tuple[int, ...]], stated: Mapping[str, Any], where: str
) -> Pi05Arch:
    """Read the sizes off tensor shapes; `stated` gives the rest and must not contradict them.

    stated: any fields of Pi05Arch; heads, kv_heads, vision_heads and horizon are needed.
    where: names the checkpoint in messages. Raises OxygenError.
    """
    unstated = [key for key in ('heads', 'kv_heads', 'vision_heads') if key not in stated]
    if unstated:
        raise OxygenError(
            f'{where}: config.json names no known variant ({", ".join(_LM_VARIANTS)}), so state '
            f'{", ".join(unstated)} under "architecture" in oxygen.json'
        )
    sizes = _measured(shapes, where)
    q_rows = _shape(shapes, LANGUAGE + 'layers.0.self_attn.q_proj.weight', 2, where)[0]
    k_rows = _shape(shapes, LANGUAGE + 'layers.0.self_attn.k_proj.weight', 2, where)[0]
    sizes['head_dim'] = q_rows // int(stated['heads'])
    if (q_rows, k_rows) != tuple(
        sizes['head_dim'] * int(stated[key]) for key in ('heads', 'kv_heads')
    ):
        raise OxygenError(
            f'{where}: {stated["heads"]} heads and {stated["kv_heads"]} key-value heads do not '
            f'divide a query projection of {q_rows} and a key projection of {k_rows} rows alike; '
            'state heads and kv_heads under "architecture" in oxygen.json'
        )
    _check_sizes(sizes, stated, where)
    arch = Pi05Arch(**{**stated, **sizes})
    if arch.vision_width % arch.vision_heads:
        raise OxygenError(
            f'{where}: {arch.vision_heads} vision heads do not divide a vision width of '
            f'{arch.vision_width}; state vision_heads under "architecture" in oxygen.json'
        )
    return arch


def _check_sizes(sizes: Mapping[str, int], stated: Mapping[str, Any], where: str) -> None:
    """Of what is stated nowhere, a variant that makers name must have its own sizes."""
    for key, value in sizes.items():
        if key in stated and stated[key] != value:
            raise OxygenError(
                f'{where}: {key} is stated as {stated[key]}, but the tensors have {value}: the '
                'weights are not complete, or config.json or oxygen.json is not theirs'
            )
    for (variant, mark, width), others in _MADE.items():
        wrong = [key for key in others if key not in stated and sizes[key] != others[key]]
        if sizes[mark] == width and wrong:
            had = ', '.join(f'{key} {sizes[key]} instead of {others[key]}' for key in wrong)
            raise OxygenError(
                f'{where}: {mark} {width} is that of {variant}, but the tensors have {had}: the '
                'weights are not complete; if the network was made so, state it under '
                '"architecture" in oxygen.json'
            )


def _measured(shapes: Mapping[str, tuple[int, ...]], where: str) -> dict[str, int]:
    """Everything but head_dim that shapes alone tell."""
    vocab_name = EMBED if EMBED in shapes else LM_HEAD
    vocab_size, lm_width = _shape(shapes, vocab_name, 2, where)
    expert_width, action_dim = _shape(shapes, 'action_in_proj.weight', 2, where)
    vision_width, _, patch, _ = _shape(
        shapes, VISION + 'embeddings.patch_embedding.weight', 4, where
    )
    patches = _shape(shapes, VISION + 'embeddings.position_embedding.weight', 2, where)[0]
    side = round(patches**0.5)
    if side * side != patches:
        raise OxygenError(f'{where}: {patches} image positions are not a square image')
    depth, expert = (_layers(shapes, f'{part}layers.', where) for part in (LANGUAGE, EXPERT))
    if depth != expert:
        raise OxygenError(
            f'{where}: the language model has {depth} layers and the expert {expert}, as many are '
            'needed: the weights are not complete'
        )
    return {
        'lm_width': lm_width,
        'depth': depth,
        'lm_mlp': _shape(shapes, LANGUAGE + 'layers.0.mlp.gate_proj.weight', 2, where)[0],
        'expert_width': expert_width,
        'expert_mlp': _shape(shapes, EXPERT + 'layers.0.mlp.gate_proj.weight', 2, where)[0],
        'vocab_size': vocab_size,
        'vision_width': vision_width,
        'vision_layers': _layers(shapes, VISION + 'encoder.layers.', where),
        'vision_mlp': _shape(shapes, VISION + 'encoder.layers.0.mlp.fc1.weight', 2, where)[0],
        'patch': patch,
        'image_size': side * patch,
        'action_dim_padded': action_dim,
        'state_dim_padded': _state_dim(shapes, where),
    }


def _state_dim(shapes: Mapping[str, tuple[int, ...]], where: str) -> int:
    name = 'state_proj.weight'
    return _shape(shapes, name, 2, where)[1] if name in shapes else 0


def _shape(
    shapes: Mapping[str, tuple[int, ...]], name: str, dims: int, where: str
) -> tuple[int, ...]:
    shape = shapes.get(name)
    if shape is None:
        raise OxygenError(f'{where}: not a complete pi0.5 checkpoint, tensor {name} is missing')
    if len(shape) != dims:
        raise OxygenError(f'{where}: {name} has shape {list(shape)}, {dims} dimensions expected')
    return shape


def _layers(shapes: Mapping[str, tuple[int, ...]], prefix: str, where: str) -> int:
    """How many, numbered from 0 without a gap."""
    numbers = {n[len(prefix) :].split('.')[0] for n in shapes if n.startswith(prefix)}
    wanted = {str(i) for i in range(len(numbers))}
    if numbers != wanted:
        raise OxygenError(
            f'{where}: has layers {", ".join(sorted(numbers - wanted))} of {prefix} without '
            f'{", ".join(sorted(wanted - numbers))}: the weights are not complete'
        )
    return len(numbers)


def tensor_shapes(arch: Pi05Arch) -> dict[str, tuple[int, ...]]:
    """Every tensor of a network of these sizes -> its shape, head and embedding both."""
    return dict(_tensors(arch))


def _tensors(a: Pi05Arch) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBED, (a.vocab_size, a.lm_width)
    yield LM_HEAD, (a.vocab_size, a.lm_width)
    yield LANGUAGE + 'norm.weight', (a.lm_width,)
    for i in range(a.depth):
        layer = f'{LANGUAGE}layers.{i}.'
        yield layer + 'input_layernorm.weight', (a.lm_width,)
        yield layer + 'post_attention_layernorm.weight', (a.lm_width,)
        yield from _block(layer, a, a.lm_width, a.lm_mlp)
    yield from _vision(a)
    yield from _linear(PROJECTOR, a.lm_width, a.vision_width)
    for i in range(a.depth):
        layer = f'{EXPERT}layers.{i}.'
        yield from _expert_norm(layer + 'input_layernorm.', a)
        yield from _expert_norm(layer + 'post_attention_layernorm.', a)
        yield from _block(layer, a, a.expert_width, a.expert_mlp)
    yield from _expert_norm(EXPERT + 'norm.', a)
    yield from _linear('action_in_proj.', a.expert_width, a.action_dim_padded)
    yield from _linear('action_out_proj.', a.action_dim_padded, a.expert_width)
    joined = 2 if a.state_dim_padded else 1  # pi0's takes action and time
    yield from _linear('time_mlp_in.', a.expert_width, joined * a.expert_width)
    yield from _linear('time_mlp_out.', a.expert_width, a.expert_width)
    if a.state_dim_padded:
        yield from _linear('state_proj.', a.expert_width, a.state_dim_padded)


def _expert_norm(name: str, a: Pi05Arch) -> Iterator[tuple[str, tuple[int, ...]]]:
    """pi0.5's are adaptive, pi0's are Gemma's."""
    if a.state_dim_padded:
        yield name + 'weight', (a.expert_width,)
    else:
        yield from _linear(name + 'dense.', 3 * a.expert_width, a.expert_width)


def _linear(prefix: str, rows: int, columns: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield prefix + 'weight', (rows, columns)
    yield prefix + 'bias', (rows,)


def _block(layer: str, a: Pi05Arch, width: int, mlp: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Attention and gated MLP of one Gemma layer, without its norms."""
    yield layer + 'self_attn.q_proj.weight', (a.heads * a.head_dim, width)
    yield layer + 'self_attn.k_proj.weight', (a.kv_heads * a.head_dim, width)
    yield layer + 'self_attn.v_proj.weight', (a.kv_heads * a.head_dim, width)
    yield layer + 'self_attn.o_proj.weight', (width, a.heads * a.head_dim)
    yield layer + 'mlp.gate_proj.weight', (mlp, width)
    yield layer + 'mlp.up_proj.weight', (mlp, width)
    yield layer + 'mlp.down_proj.weight', (width, mlp)


def _vision(a: Pi05Arch) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = a.vision_width
    yield VISION + 'embeddings.patch_embedding.weight', (width, 3, a.patch, a.patch)
    yield VISION + 'embeddings.patch_embedding.bias', (width,)
    yield VISION + 'embeddings.position_embedding.weight', (a.tokens_per_camera, width)
    for i in range(a.vision_layers):
        layer = f'{VISION}encoder.layers.{i}.'
        for name in ('q_proj', 'k_proj', 'v_proj', 'out_proj'):
            yield from _linear(f'{layer}self_attn.{name}.', width, width)
        yield from _linear(layer + 'mlp.fc1.', a.vision_mlp, width)
        yield from _linear(layer + 'mlp.fc2.', width, a.vision_mlp)
        for name in ('layer_norm1', 'layer_norm2'):
            yield from ((f'{layer}{name}.{part}', (width,)) for part in ('weight', 'bias'))
    yield from ((f'{VISION}post_layernorm.{part}', (width,)) for part in ('weight', 'bias'))
