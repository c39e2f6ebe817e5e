"""StarVLA's heads: what config.yaml, being allowed to be short, and the framework's defaults say.

Source: starVLA 0ed0aad2, the default configurations in model/framework/VLM4A, share_tools.py
(populate_layerwise_dit_cfg) and model/modules/action_model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oxygen_ros.checkpoint.options import FILE
from oxygen_ros.checkpoint.qwen import text_config
from oxygen_ros.types import OxygenError

# DiT heads by their type: heads, width of one
_DIT_TYPES = {'DiT-B': (12, 64), 'DiT-L': (32, 48)}
_HEAD_DIM = 64
_DIT_WIDTH = 1024  # of QwenPI_v3, where diffusion_model_cfg.action_dit_hidden_dim is not there
# What else diffusion_model_cfg may say; whatever is built, its layers have biases.
_DIT_KNOWN: dict[str, Any] = {
    'norm_type': 'ada_norm',
    'positional_embeddings': None,
    'activation_fn': 'gelu-approximate',
    'attention_bias': True,
    'norm_elementwise_affine': False,
}


@dataclass(frozen=True)
class Head:
    """What StarVLA's default configuration says of a head.

    conditioned: what it reads: 'layers' (every layer's hidden state), 'last' (that of the last),
    'queries' (of its own words) or 'tokens' (it is decoded). state: whether the prompt holds the
    robot's state in digits, or the head embeds it, or never sees it. steps: of the flow.
    """

    conditioned: str
    state: str
    horizon: int
    steps: int = 4
    interleaved: bool = True

    @property
    def flows(self) -> bool:
        """Whether actions come of noise."""
        return self.conditioned in ('layers', 'last')


HEADS = {
    'QwenPI': Head('layers', 'embedded', 16),
    'QwenFM': Head('layers', 'embedded', 16),
    'QwenPI_v3': Head('layers', 'prompt', 16, interleaved=False),
    'QwenGR00T': Head('last', 'embedded', 8),
    'QwenOFT': Head('queries', 'prompt', 9),
    'QwenFast': Head('tokens', 'none', 16),
}


@dataclass(frozen=True)
class HeadSizes:
    """What a head is built of, complete: the weights must have these tensors and no other.

    seen: width of the backbone's hidden states. actions, state: of the robot, state 0 where the
    head does not embed it. The rest is of flow heads. width: of the DiT's tokens, in `heads`
    heads and `blocks` blocks. hidden: of the MLPs around it. future: tokens before the actions.
    positions: rows of the actions' embedding, 0 where there is none. output: of the projection
    behind the blocks, 0 where there is none.
    """

    seen: int
    actions: int
    state: int = 0
    width: int = 0
    heads: int = 1
    blocks: int = 0
    hidden: int = 0
    future: int = 0
    positions: int = 0
    output: int = 0


def read_head(name: str, action: Mapping[str, Any], where: str) -> Head:
    """A head as this run's action_model changes it. Raises OxygenError on what is unknown."""
    head, dit = HEADS[name], action.get('diffusion_model_cfg') or {}
    for key, known in _DIT_KNOWN.items():
        if dit.get(key, known) != known:
            raise OxygenError(
                f'{where}: diffusion_model_cfg.{key} is {dit[key]!r}, supported: {known!r}'
            )
    horizon = action.get('action_horizon')
    if horizon is None and 'future_action_window_size' in action:
        horizon = int(action['future_action_window_size']) + 1
    interleaved = dit.get('interleave_self_attention', head.interleaved)
    if dit.get('use_canonical_forward') is not None:  # an older name of the same switch
        interleaved = dit['use_canonical_forward']
    return replace(
        head,
        horizon=int(head.horizon if horizon is None else horizon),
        steps=int(action.get('num_inference_timesteps') or head.steps),
        interleaved=bool(interleaved),
    )


def head_sizes(
    name: str,
    head: Head,
    action: Mapping[str, Any],
    vlm: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    state: int,
    attention_heads: int,
    where: str,
) -> HeadSizes:
    """Of a run. Raises OxygenError on what cannot be.

    shapes: stored name -> shape, for the two widths that config.yaml need not tell. state: of the
    robot, 0 where the head does not embed it. attention_heads: as oxygen.json states it, or 0.
    """
    text = text_config(vlm)
    seen, actions = int(text['hidden_size']), int(action.get('action_dim', 7))
    if not head.flows:
        return HeadSizes(seen, actions)
    dit = action.get('diffusion_model_cfg') or {}
    layered = head.conditioned == 'layers'
    width = _width(name, seen, dit, shapes, where)
    positions = int(action.get('max_seq_len', 1024)) if action.get('add_pos_embed', True) else 0
    if positions and head.horizon > positions:
        raise OxygenError(
            f'{where}: the horizon is {head.horizon}, but the head has positions for '
            f'{positions} actions (max_seq_len)'
        )
    return HeadSizes(
        seen=seen,
        actions=actions,
        state=state,
        width=width,
        heads=_attention_heads(width, layered, action, attention_heads, where),
        blocks=int(text['num_hidden_layers'] if layered else dit.get('num_layers', 16)),
        hidden=_stored('action_model.action_decoder.layer1.weight', name, shapes, where)[0],
        future=int(action.get('num_target_vision_tokens', 32)),
        positions=positions,
        output=0 if layered else int(dit.get('output_dim', 1024)),
    )


def _width(
    name: str,
    seen: int,
    dit: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
) -> int:
    """Of a DiT: the backbone's, unless it is compressed; QwenGR00T's is its type's."""
    if name == 'QwenGR00T':
        return _stored('action_model.future_tokens.weight', name, shapes, where)[1]
    if name == 'QwenPI_v3':
        return int(dit.get('action_dit_hidden_dim', _DIT_WIDTH) or seen)
    return seen


def _stored(
    tensor: str, name: str, shapes: Mapping[str, tuple[int, ...]], where: str
) -> tuple[int, ...]:
    shape = shapes.get(tensor, ())
    if len(shape) != 2:
        raise OxygenError(
            f'{where}: not a complete {name}, '
            + (f'{tensor} has shape {list(shape)}' if shape else f'tensor {tensor} is missing')
        )
    return shape


def _attention_heads(
    width: int, layered: bool, action: Mapping[str, Any], stated: int, where: str
) -> int:
    """Heads of the DiT, which no shape tells."""
    dit = action.get('diffusion_model_cfg') or {}
    heads, each = _DIT_TYPES.get(str(action.get('action_model_type')), (0, _HEAD_DIM))
    each = int(dit.get('attention_head_dim') or each)
    heads = width // each if layered else int(dit.get('num_attention_heads') or heads)
    heads = stated or heads or width // each
    if width % heads or (not stated and heads * each != width):
        split = f'{heads} heads' + ('' if stated else f' of {each}')
        raise OxygenError(
            f'{where}: {split} are not a width of {width}, which the action head has; state '
            f'"attention_heads" in {FILE}'
        )
    return heads
