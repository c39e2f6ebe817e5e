"""Xiaomi-Robotics-0: Qwen3-VL, and a DiT that reads the KV of its last layers.

The prefix ends where the assistant's turn begins. Language goes on from there. Behind it the
action branch has its own few words, then sink, state and actions: slots that language overwrites.
Source: the public modeling_mibot, configuration_mibot and processing_mibot.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from oxygen_ros.checkpoint import check_tensors, iter_tensors, load_into
from oxygen_ros.checkpoint.xiaomi_robotics_0 import VLM, XiaomiInfo, XiaomiLayout
from oxygen_ros.models.base import ModelSpec, Prefilled
from oxygen_ros.models.family import Family, Footprint, Parts, Progress
from oxygen_ros.models.guidance import Guide
from oxygen_ros.models.kv import KVWindow
from oxygen_ros.models.qwen_vl import (
    QwenVL,
    materialise,
    qwen_config,
    qwen_work_bytes,
    stored_parameters,
)
from oxygen_ros.models.xiaomi_dit import DiT, Modulation, Projector, TimeEmbedder, expert_mask
from oxygen_ros.processing.qwen import QwenTokenizer
from oxygen_ros.processing.xiaomi_robotics_0 import ACTION_SUFFIX, XiaomiInputs, XiaomiProcessor
from oxygen_ros.types import OxygenError

DENOISE_STEPS = 5
_OWN = 2  # sink and state, before the actions
# Most tokens of the action branch's own words: a byte-level tokenizer needs no more than bytes.
_WORDS = len(ACTION_SUFFIX.encode())


class XiaomiRobotics0(nn.Module):
    """The whole model on one device in one dtype; weights are uninitialised until loaded.

    Parameters have the names of the checkpoint.
    """

    def __init__(
        self,
        layout: XiaomiLayout,
        eos_ids: frozenset[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.layout, self.device, self.dtype = layout, device, dtype
        width = layout.dit['hidden_size']
        with torch.device('meta'):  # no memory and no random numbers for what is loaded next
            self.vlm = QwenVL(qwen_config(layout.vlm, str(layout.path)), tied=layout.tied_head)
            self.dit = DiT(layout.dit)
            self.state_projector = Projector(layout.state_width, width, 2)
            self.action_projector = Projector(layout.action_width, width, 2)
            self.action_output_layer = Projector(width, layout.action_width, 2)
            self.t_embedder = TimeEmbedder(width)
            self.t_projector = Projector(width, 6 * width, 1, bias=True)
            self.sink = nn.Embedding(1, width)
        self.spec = _spec(layout, self.vlm, eos_ids)
        self.action_mask = torch.empty(0)
        self._modulations: dict[int, list[list[Modulation]]] = {}
        if device.type != 'meta':
            materialise(self, device, dtype)

    def set_action_mask(self, mask: torch.Tensor) -> None:
        """Bool [H, A]: where a value is an action of this robot."""
        self.action_mask = mask.to(self.device, self.dtype)

    # -- prefix and language

    def prefix_length(self, inputs: XiaomiInputs) -> int:
        """Prompt and the action branch's own words: nothing is padded."""
        return len(inputs.token_ids) + len(inputs.suffix_ids)

    def prefill(self, inputs: XiaomiInputs, kv: KVWindow) -> Prefilled:
        """Images and prompt up to the assistant's turn, and the action branch's words behind it.

        Alone these few words would cost as much as a decode step.
        """
        prefilled = self.vlm.prefill(
            inputs.token_ids, inputs.pixel_values, inputs.grid, kv, behind=inputs.suffix_ids
        )
        state = self.state_projector(inputs.state.to(self.device, self.dtype))
        prefilled.extras.update(words=len(inputs.suffix_ids), state=state)
        return prefilled

    def extend(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, kv: KVWindow
    ) -> torch.Tensor:
        """Tokens [B, n] behind what the window's rows hold -> hidden [B, n, W]."""
        return self.vlm.extend(tokens, positions, mask, kv)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [B, W] -> logits [B, V] in float32."""
        return self.vlm.logits(hidden)

    # -- actions

    def act(
        self,
        prefilled: Prefilled,
        kv: KVWindow,
        noise: torch.Tensor,
        steps: int,
        guide: Guide | None = None,
    ) -> torch.Tensor:
        """Euler steps from noise at t = 0 to actions at t = 1, [H, A] in float32.

        guide: its first rows, as far as they are certain and the checkpoint was trained for it,
        stay as they are.
        """
        actions = noise.to(self.device, torch.float32)[None]
        clean = 0
        if guide is not None:
            certain = int((guide.mask.amax(1) == 1).sum())
            clean = min(self.layout.prefix_length, certain)
            actions[0, :clean] = guide.target[:clean].to(self.device)
        start = prefilled.length + prefilled.extras['words']
        window = kv.starting_at(start)
        rope = self._rope(start + prefilled.position_offset, len(noise), clean)
        mask = expert_mask(start, len(noise), self.layout.local_window, kv.length, self.device)
        own = torch.cat([self.sink.weight, prefilled.extras['state']])[None]  # [1, 2, W]
        for modulations in self._modulation(steps):
            tokens = self.action_projector(actions.to(self.dtype) * self.action_mask)
            hidden = torch.cat([own, tokens], dim=1)
            hidden = self.dit(hidden, modulations, rope, mask, window, self._first_layer)
            velocity = self.action_output_layer(hidden[:, _OWN:]).float()
            velocity[:, :clean] = 0
            actions = actions + velocity / steps
        return actions[0]

    @property
    def _first_layer(self) -> int:
        """Of the backbone, which the expert's first reads."""
        return self.vlm.depth - len(self.dit.layers)

    def _rope(self, first: int, actions: int, clean: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of sink, state and actions from position `first` on; all three axes are equal."""
        positions = torch.arange(first, first + _OWN + actions, device=self.device)
        positions[_OWN + clean :] += self.layout.action_position_offset
        likeness = self.sink.weight[None]  # for its dtype and device alone
        rotary = self.vlm.model.language_model.rotary_emb
        return rotary(likeness, position_ids=positions.expand(3, 1, -1))

    def _modulation(self, steps: int) -> list[list[Modulation]]:
        """Of each step and layer, computed once: they depend on the flow time alone."""
        if steps not in self._modulations:
            ones = torch.ones(steps, device=self.device, dtype=self.dtype)
            times = ones * torch.arange(steps, device=self.device) / steps
            embedded = self.t_projector(self.t_embedder(times.to(self.dtype) * 1000))
            self._modulations[steps] = [
                [layer.modulation(time) for layer in self.dit.layers]
                for time in embedded.view(steps, 6, -1)
            ]
        return self._modulations[steps]


def _spec(layout: XiaomiLayout, vlm: QwenVL, eos_ids: frozenset[int]) -> ModelSpec:
    text, dit = vlm.config.text_config, layout.dit
    heads = dit['hidden_size'] // dit['head_dim']
    if (heads, dit['head_dim']) != (text.num_key_value_heads, text.head_dim):
        raise OxygenError(
            f'{layout.path}: the action expert has {heads} heads of {dit["head_dim"]}, the '
            f'backbone {text.num_key_value_heads} key-value heads of {text.head_dim}: only equal '
            'ones are supported'
        )
    if dit['num_hidden_layers'] > text.num_hidden_layers:
        raise OxygenError(
            f'{layout.path}: the action expert has {dit["num_hidden_layers"]} layers, more than '
            f'the {text.num_hidden_layers} of the backbone'
        )
    return ModelSpec(
        layers=text.num_hidden_layers,
        kv_heads=heads,
        head_dim=dit['head_dim'],
        horizon=layout.horizon,
        action_dim=layout.action_width,
        vocab_size=text.vocab_size,
        max_prefix=layout.max_prefix + _WORDS,
        suffix_slots=_WORDS + _OWN + layout.horizon,
        eos_ids=eos_ids,
    )


def _load(
    info: XiaomiInfo, device: torch.device, dtype: torch.dtype, progress: Progress
) -> Family:
    check_tensors(info, _footprint(info, 1, 1).tensors)  # before memory is taken
    processor = XiaomiProcessor(info)
    model = XiaomiRobotics0(info, processor.tokenizer.eos_ids, device, dtype)
    model.set_action_mask(torch.from_numpy(info.normalization.mask))
    load_into(stored_parameters(model, VLM), iter_tensors(info), progress, str(info.path))
    notes = {
        'family': info.family,
        'format': info.format,
        'robot_tag': info.normalization.robot,
        'views': ', '.join(info.views),
        'max_image_tokens': str(info.image_tokens),
        'image_resize': info.image_resize,
        'action_position_offset': str(info.action_position_offset),
        'local_window': str(info.local_window),
        'prefix_length': str(info.prefix_length),
        'action_normalization': 'mean_std per time step',
        'state_normalization': 'identity',
        'tied_head': str(model.vlm.tie_if_equal(str(info.path))),
    }
    return Family(model, processor, DENOISE_STEPS, notes)


def _footprint(layout: XiaomiLayout, rows: int, value_bytes: int) -> Footprint:
    model = XiaomiRobotics0(layout, frozenset(), torch.device('meta'), torch.float32)
    stored = stored_parameters(model, VLM)
    tensors = {name: tuple(value.shape) for name, value in stored.items()}
    values = sum(value.numel() for value in model.parameters())
    patches = len(layout.cameras) * layout.image_tokens * 4
    work = qwen_work_bytes(model.vlm.config, patches, layout.max_prefix, rows, value_bytes)
    return Footprint(model.spec, tensors, values * value_bytes, work)


def _check_tokenizer(folder: Path, layout: XiaomiLayout) -> None:
    QwenTokenizer(folder, int(layout.vlm['text_config']['vocab_size']))


def _no_overlap(layout: XiaomiLayout) -> str:
    if layout.prefix_length:
        return ''
    return (
        'Xiaomi-Robotics-0 cannot continue a running chunk (prefix_length is 0): set merge to '
        'replace, blend or average, or prefix_length in oxygen.json to how many clean actions '
        'the checkpoint was trained with'
    )


PARTS = Parts(_load, _footprint, _check_tokenizer, _no_overlap)
