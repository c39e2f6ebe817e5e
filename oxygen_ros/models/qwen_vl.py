"""Qwen3-VL and Qwen2.5-VL as backbones: transformers' own modules, our layer loop over the pool.

Nothing is kept between calls: positions, offsets and hidden states belong to the frame. Letters
beside those of base.py: P patches, I image tokens, N layers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
import transformers
from torch import nn

from oxygen_ros.checkpoint.qwen import EMBED, LM_HEAD
from oxygen_ros.models.base import Prefilled
from oxygen_ros.models.kv import ATTENTION, KVWindow
from oxygen_ros.types import OxygenError

# Of Prefilled.extras: layer number -> [S, W], and [n, W] of what is computed behind the prefix
HIDDEN, BEHIND = 'hidden_states', 'behind'
# model_type -> its class, its configuration, the first transformers that has them
_CLASSES = {
    'qwen3_vl': ('Qwen3VLModel', 'Qwen3VLConfig', '4.57'),
    'qwen2_5_vl': ('Qwen2_5_VLModel', 'Qwen2_5_VLConfig', '4.52'),
}


def qwen_config(values: Mapping[str, Any], where: str) -> Any:
    """A config.json's Qwen-VL part as transformers' configuration. Raises OxygenError.

    where: names the file in messages.
    """
    kind = values.get('model_type')
    if kind not in _CLASSES:
        raise OxygenError(f'{where}: model_type is {kind!r}, supported: {", ".join(_CLASSES)}')
    make = _of_transformers(kind, 1)
    try:
        config = make(**copy.deepcopy(dict(values)))
    except Exception as error:  # validation raises classes of its own, without a common base
        raise OxygenError(
            f'{where}: is no configuration of {kind} that transformers '
            f'{transformers.__version__} understands ({error})'
        ) from error
    config.text_config._attn_implementation = ATTENTION
    config.vision_config._attn_implementation = 'sdpa'
    return config


def _of_transformers(kind: str, which: int) -> Any:
    name, first = _CLASSES[kind][which], _CLASSES[kind][2]
    found = getattr(transformers, name, None)
    if found is None:
        raise OxygenError(
            f'transformers {transformers.__version__} has no {name}, which this checkpoint needs: '
            f'{first} and newer have it; install the version in requirements/'
        )
    return found


class QwenVL(nn.Module):
    """One Qwen-VL with the names of its own checkpoints: model.visual, model.language_model.

    Build it under torch.device('meta'), then call materialise(). tied: the embedding is the head
    too, and there is no lm_head.
    """

    def __init__(self, config: Any, tied: bool) -> None:
        super().__init__()
        self.config = config
        self.model = _of_transformers(config.model_type, 0)(config)
        width, vocab = config.text_config.hidden_size, config.text_config.vocab_size
        self.lm_head = None if tied else nn.Linear(width, vocab, bias=False)
        self._cache = _cache_argument(self.model.language_model.layers[0])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.language_model.embed_tokens.weight.device

    def tie_if_equal(self, where: str) -> bool:
        """Keep one matrix where a checkpoint stores the same twice; returns whether it is one.

        Raises OxygenError, with the checkpoint's name, on two that its configuration says are one.
        """
        embedding = self.model.language_model.embed_tokens.weight
        if self.lm_head is None:
            return True
        if torch.equal(self.lm_head.weight, embedding):
            self.lm_head = None
            return True
        if self.config.tie_word_embeddings:
            raise OxygenError(
                f'{where}: stores {LM_HEAD} and {EMBED} with different values, but its backbone '
                'has one matrix for both (tie_word_embeddings): remove the one that is not meant'
            )
        return False

    @property
    def depth(self) -> int:
        """N, layers of the language model."""
        return len(self.model.language_model.layers)

    def restore_buffers(self) -> None:
        """Rotary frequencies, which no checkpoint holds and which stay in float32."""
        language, visual = self.model.language_model, self.model.visual
        device, text, vision = self.device, self.config.text_config, self.config.vision_config
        language.rotary_emb = type(language.rotary_emb)(text).to(device)
        visual.rotary_pos_emb = type(visual.rotary_pos_emb)(vision).to(device)

    # -- prefix

    def positions(self, token_ids: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, int]:
        """M-RoPE positions [3, 1, S] of token ids [S] on the CPU, and the next token's minus S.

        grid: int64 [images, 3], patches of each image in time, height and width.
        """
        is_image = (token_ids == self.config.image_token_id).int()[None]
        grids = grid if len(grid) else None
        positions, delta = self.model.get_rope_index(
            token_ids[None], mm_token_type_ids=is_image, image_grid_thw=grids
        )
        return positions, int(delta)

    def prefill(
        self,
        token_ids: torch.Tensor,
        pixels: torch.Tensor,
        grid: torch.Tensor,
        kv: KVWindow,
        wanted: Collection[int] = (),
        behind: torch.Tensor | None = None,
    ) -> Prefilled:
        """Images and words [S], causally, into a window that starts at slot 0.

        token_ids, grid: on the CPU, one placeholder per image token. pixels: [P, values of one].
        wanted: layers whose hidden states go into extras[HIDDEN], see layers(). behind: ids [n] of
        the action branch alone, on the CPU; they are computed along, into the slots behind the
        prefix, and the raw output of the last layer goes into extras[BEHIND].
        """
        length = len(token_ids)
        if behind is not None:
            token_ids = torch.cat([token_ids, behind])
        positions, offset = self.positions(token_ids, grid)
        (places,) = torch.nonzero(token_ids == self.config.image_token_id, as_tuple=True)
        places = places.to(self.device)
        hidden = self.model.language_model.embed_tokens(token_ids.to(self.device))[None]
        deepstack: list[torch.Tensor] = []
        if len(grid):
            features, deepstack = self.embed_images(pixels, grid)
            assert len(features) == len(places), f'{len(features)} for {len(places)} image tokens'
            hidden[0, places] = features
        slots = torch.arange(len(token_ids), device=self.device)
        mask = (slots[None] <= slots[:, None])[None, None]
        last, kept = self.layers(hidden, positions, mask, kv, wanted, places, deepstack)
        extras: dict[str, Any] = {}
        if wanted:
            extras[HIDDEN] = {layer: state[0, :length] for layer, state in kept.items()}
        if behind is not None:
            extras[BEHIND] = last[0, length:].clone()  # a view would keep all alive
        final = self.model.language_model.norm(last[0, length - 1])
        return Prefilled(length, offset, final, extras)

    def embed_images(
        self, pixels: torch.Tensor, grid: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Patches of all images -> [I, W], and what deepstack adds behind the first layers."""
        visual = self.model.visual
        dtype = self.model.language_model.embed_tokens.weight.dtype
        output = visual(pixels.to(self.device, dtype), grid_thw=grid.to(self.device))
        return output.pooler_output, list(getattr(output, 'deepstack_features', None) or ())

    # -- any tokens

    def layers(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        kv: KVWindow,
        wanted: Collection[int] = (),
        places: torch.Tensor | None = None,
        deepstack: Collection[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Embedded tokens [B, n, W] at positions [3, B, n] -> raw output of the last layer.

        wanted: numbers 1 .. N of hidden states to keep [B, n, W], as transformers 4.57 numbers
        them: i is what enters layer i, deepstack added; N is the raw output, not normed.
        """
        language = self.model.language_model
        rope = language.rotary_emb(hidden, position_ids=positions.to(self.device))
        kept: dict[int, torch.Tensor] = {}
        features = iter(deepstack)
        for number, layer in enumerate(language.layers, start=1):
            hidden = layer(
                hidden, position_embeddings=rope, attention_mask=mask, **{self._cache: kv}
            )
            feature = next(features, None)
            if feature is not None:
                hidden[0, places] += feature
            if number in wanted:
                kept[number] = hidden
        return hidden, kept

    def extend(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, kv: KVWindow
    ) -> torch.Tensor:
        """Words [B, n] at positions [B, n] -> hidden [B, n, W] after the final norm.

        mask: bool [B, 1, n, window length].
        """
        hidden, _ = self.extend_raw(tokens, positions, mask, kv)
        return self.model.language_model.norm(hidden)

    def extend_raw(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        kv: KVWindow,
        wanted: Collection[int] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """As extend(), before the final norm, with hidden states: see layers()."""
        embedded = self.model.language_model.embed_tokens(tokens)
        return self.layers(embedded, positions.expand(3, -1, -1), mask, kv, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [B, W] -> logits [B, V] in float32."""
        if self.lm_head is None:
            weight = self.model.language_model.embed_tokens.weight
            return nn.functional.linear(hidden, weight).float()
        return self.lm_head(hidden).float()


def stored_parameters(module: nn.Module, prefix: str) -> dict[str, nn.Parameter]:
    """Parameters by stored name; an embedding that is the head as well has both names.

    prefix: of the backbone's names.
    """
    named = dict(module.named_parameters())
    named.setdefault(prefix + LM_HEAD, named[prefix + EMBED])
    return named


def qwen_work_bytes(config: Any, patches: int, prefix: int, rows: int, value_bytes: int) -> int:
    """About the bytes that the longest forward holds beside weights and KV.

    What a gated MLP makes and a few copies of the hidden state, of vision tower (patches) and
    language model (prefix tokens); attention scores in float32; logits with their sorted copies.
    """
    text, vision = config.text_config, config.vision_config
    seen = patches * (2 * vision.intermediate_size + 8 * vision.hidden_size) * value_bytes
    read = prefix * (3 * text.intermediate_size + 8 * text.hidden_size) * value_bytes
    scores = text.num_attention_heads * prefix**2 * 4
    return seen + read + scores + rows * text.vocab_size * (value_bytes + 4 * 4)


def materialise(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Give a model built under torch.device('meta') its memory, for inference; not its weights."""
    module.to_empty(device=device)
    module.to(dtype)
    module.requires_grad_(False).eval()
    for part in module.modules():
        if isinstance(part, QwenVL):
            part.restore_buffers()


def _cache_argument(layer: nn.Module) -> str:
    """transformers renamed it after 5.17."""
    return 'cache' if 'cache' in inspect.signature(layer.forward).parameters else 'past_key_values'
