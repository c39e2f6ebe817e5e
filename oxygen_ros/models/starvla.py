"""StarVLA's Qwen heads: one backbone, and actions read off it in one of four ways.

The prefix is the whole chat up to where the assistant begins; language goes on from there. The
flow heads (QwenPI, QwenPI_v3, QwenGR00T) look at the prefix's hidden states and need no slots.
QwenOFT appends its own words behind its prefix, which ends with the task, and reads their hidden
states; QwenFast decodes its actions there. Language overwrites the slots that they take.
Source: starVLA 0ed0aad2, model/framework/VLM4A.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from oxygen_ros.checkpoint import check_tensors, iter_tensors, load_into
from oxygen_ros.checkpoint.starvla import VLM, StarvlaInfo, StarvlaLayout
from oxygen_ros.models.base import ModelSpec, NoChunk, Prefilled
from oxygen_ros.models.family import Family, Footprint, Parts, Progress
from oxygen_ros.models.guidance import Guide, guided_velocity
from oxygen_ros.models.kv import KVWindow
from oxygen_ros.models.qwen_vl import (
    BEHIND,
    HIDDEN,
    QwenVL,
    materialise,
    qwen_config,
    qwen_work_bytes,
    stored_parameters,
)
from oxygen_ros.models.starvla_dit import FlowHead, Moment, QueryHead
from oxygen_ros.processing.fast import FastActions
from oxygen_ros.processing.qwen import QwenTokenizer
from oxygen_ros.processing.starvla import (
    QUERY,
    StarvlaInputs,
    StarvlaProcessor,
    query_words,
    vocab_size,
)


class StarVLA(nn.Module):
    """The whole model on one device in one dtype; weights are uninitialised until loaded.

    Parameters have the names of the run. query_id: the token whose hidden states QwenOFT reads.
    decode: tokens of QwenFast's answer -> actions [H, A].
    """

    def __init__(
        self,
        layout: StarvlaLayout,
        device: torch.device,
        dtype: torch.dtype,
        eos_ids: frozenset[int] = frozenset(),
        query_id: int = 0,
        decode: Callable[[list[int]], np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        self.layout, self.device, self.dtype = layout, device, dtype
        self.query_id, self.decode = query_id, decode
        config = qwen_config(layout.vlm, str(layout.base_vlm))
        with torch.device('meta'):  # no memory and no random numbers for what is loaded next
            self.qwen_vl_interface = nn.ModuleDict({'model': QwenVL(config, layout.tied_head)})
            self.action_model = _action_model(layout)
            self.project_layers = _project_layers(layout)
        self.spec = _spec(layout, self.vlm, eos_ids)
        self.wanted = self._wanted()
        if device.type != 'meta':
            materialise(self, device, dtype)

    @property
    def vlm(self) -> QwenVL:
        """The backbone."""
        return self.qwen_vl_interface['model']

    def _wanted(self) -> dict[int, int]:
        """Block of a flow head -> the hidden state that it looks at, by the backbone's numbers."""
        head = self.action_model
        if not isinstance(head, FlowHead):
            return {}
        blocks, depth = len(head.model.transformer_blocks), self.vlm.depth
        looking = [block for block in range(blocks) if head.looks(block)]
        if self.layout.head.conditioned == 'last':
            return dict.fromkeys(looking, depth)
        return {block: depth - blocks + 1 + block for block in looking}

    # -- prefix and language

    def prefix_length(self, inputs: StarvlaInputs) -> int:
        """Prompt and QwenOFT's own words: nothing is padded."""
        return len(inputs.token_ids) + len(inputs.suffix_ids)

    def prefill(self, inputs: StarvlaInputs, kv: KVWindow) -> Prefilled:
        """Images and chat, with the hidden states that the head looks at.

        QwenOFT's own words behind them are computed along: alone they cost as much as a step.
        """
        words = inputs.suffix_ids
        prefilled = self.vlm.prefill(
            inputs.token_ids,
            inputs.pixel_values,
            inputs.grid,
            kv,
            set(self.wanted.values()),
            behind=words if len(words) else None,
        )
        state = None if inputs.state is None else inputs.state.to(self.device)
        queries = (words == self.query_id).to(self.device)
        prefilled.extras.update(state=state, queries=queries)
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
        """Actions [H, A] in float32; only a flow head takes noise, steps and a guide."""
        if isinstance(self.action_model, FlowHead):
            return self._flow(self.action_model, prefilled, noise, steps, guide)
        if isinstance(self.action_model, QueryHead):
            queries = prefilled.extras[BEHIND][prefilled.extras['queries']]
            return self.action_model(queries[-self.spec.horizon :])
        assert self.decode is not None, 'QwenFast decodes'
        try:
            return torch.from_numpy(self.decode(self.answer(prefilled, kv)))
        except ValueError as error:
            raise NoChunk(str(error)) from error

    def _flow(
        self,
        head: FlowHead,
        prefilled: Prefilled,
        noise: torch.Tensor,
        steps: int,
        guide: Guide | None,
    ) -> torch.Tensor:
        """Euler steps from noise at t = 0 to actions at t = 1."""
        states = prefilled.extras[HIDDEN]
        seen = head.seen({block: self._look(block, states[n]) for block, n in self.wanted.items()})
        state = prefilled.extras['state']
        actions = noise.to(self.device, torch.float32)[None]
        for step, moment in enumerate(head.moments(steps)):
            if guide is None:
                actions = actions + head.velocity(actions, state, moment, seen) / steps
            else:  # whose time runs the other way
                flow = partial(self._backward, head=head, state=state, moment=moment, seen=seen)
                back = guided_velocity(flow, actions, 1 - step / steps, guide.to(self.device))
                actions = actions - back / steps
        return actions[0]

    def _look(self, block: int, state: torch.Tensor) -> torch.Tensor:
        """A hidden state [S, W] as a block sees it, through its projection if there is one."""
        return self.project_layers[block](state) if len(self.project_layers) else state

    @staticmethod
    def _backward(
        actions: torch.Tensor,
        head: FlowHead,
        state: torch.Tensor | None,
        moment: Moment,
        seen: list,
    ) -> torch.Tensor:
        return -head.velocity(actions, state, moment, seen)

    def answer(self, prefilled: Prefilled, kv: KVWindow) -> list[int]:
        """Greedy tokens behind the prefix until one ends it or the window is full."""
        hidden, tokens = prefilled.last_hidden[None], []
        reach = torch.arange(kv.length, device=self.device)
        for slot in range(prefilled.length, kv.length):
            logits = self.logits(hidden)
            if not torch.isfinite(logits).all():
                raise RuntimeError('logits are not finite')
            token = int(logits.argmax())
            if token in self.spec.eos_ids:
                break
            tokens.append(token)
            word = torch.tensor([[token]], device=self.device)
            position = torch.full_like(word, slot + prefilled.position_offset)
            mask = (reach <= slot)[None, None, None]
            hidden = self.extend(word, position, mask, kv.starting_at(slot))[:, -1]
        return tokens


def _action_model(layout: StarvlaLayout) -> nn.Module | None:
    """The head, of the sizes that the run's configuration gives it."""
    head, sizes = layout.head, layout.sizes
    if head.conditioned == 'tokens':
        return None
    if head.conditioned == 'queries':
        return QueryHead(sizes)
    projected = head.conditioned == 'layers'
    return FlowHead(sizes, head.interleaved, layout.buckets, projected)


def _project_layers(layout: StarvlaLayout) -> nn.ModuleList:
    """From the backbone's width to the head's, one per block, where the two differ."""
    sizes = layout.sizes
    if layout.head.conditioned != 'layers' or sizes.width == sizes.seen:
        return nn.ModuleList()
    return nn.ModuleList(
        nn.Sequential(nn.LayerNorm(sizes.seen), nn.Linear(sizes.seen, sizes.width))
        for _ in range(sizes.blocks)
    )


def _spec(layout: StarvlaLayout, vlm: QwenVL, eos_ids: frozenset[int]) -> ModelSpec:
    text = vlm.config.text_config
    conditioned = layout.head.conditioned
    # a byte-level tokenizer never needs more tokens than a text has bytes
    words = len(query_words(layout.horizon).encode()) if conditioned == 'queries' else 0
    head_dim = getattr(text, 'head_dim', None) or text.hidden_size // text.num_attention_heads
    return ModelSpec(
        layers=text.num_hidden_layers,
        kv_heads=text.num_key_value_heads,
        head_dim=head_dim,
        horizon=layout.horizon,
        action_dim=layout.action_dim,
        vocab_size=text.vocab_size,
        max_prefix=layout.max_prefix + words,
        suffix_slots=layout.max_action_tokens if conditioned == 'tokens' else 0,
        eos_ids=eos_ids,
    )


def _load(
    info: StarvlaInfo, device: torch.device, dtype: torch.dtype, progress: Progress
) -> Family:
    check_tensors(info, _footprint(info, 1, 1).tensors)  # before memory is taken
    processor = StarvlaProcessor(info)
    words = processor.tokenizer
    (query_id,) = words.encode(QUERY)[:1]
    decode = FastActions(info, words) if info.head.conditioned == 'tokens' else None
    model = StarVLA(info, device, dtype, words.eos_ids, query_id, decode)
    load_into(stored_parameters(model, VLM), iter_tensors(info), progress, str(info.path))
    notes = {
        'family': info.family,
        'format': info.format,
        'head': info.name,
        'weights': info.weight_files[0].name,
        'interleaved': str(info.head.interleaved),
        'include_state': str(info.include_state),
        'image_size': str(info.image_size),
        'image_resize': info.image_resize,
        'state_normalization': info.normalization.state.mode,
        'action_normalization': info.normalization.action.mode,
        'eps_rule': info.normalization.eps_rule,
        'gripper': str(info.normalization.gripper),
        'tied_head': str(model.vlm.tie_if_equal(str(info.path))),
    }
    return Family(model, processor, info.head.steps, notes)


def _footprint(layout: StarvlaLayout, rows: int, value_bytes: int) -> Footprint:
    model = StarVLA(layout, torch.device('meta'), torch.float32)
    stored = stored_parameters(model, VLM)
    tensors = {name: tuple(value.shape) for name, value in stored.items()}
    values = sum(value.numel() for value in model.parameters())
    patches = len(layout.cameras) * layout.image_tokens * 4
    config = model.vlm.config
    work = qwen_work_bytes(config, patches, layout.max_prefix, rows, value_bytes)
    # each row's frame holds the hidden states that its head looked at
    states = len(set(model.wanted.values())) * config.text_config.hidden_size
    work += (rows + 1) * layout.max_prefix * states * value_bytes
    return Footprint(model.spec, tensors, values * value_bytes, work)


def _check_tokenizer(folder: Path, layout: StarvlaLayout) -> None:
    tokenizer = QwenTokenizer(folder, vocab_size(layout.vlm))
    tokenizer.chat([''])
    if layout.head.conditioned == 'tokens':
        FastActions(layout, tokenizer)


def _no_overlap(layout: StarvlaLayout) -> str:
    if layout.head.conditioned in ('layers', 'last'):
        return ''
    return (
        f'{layout.name} has no flow that could continue a running chunk: set merge to replace, '
        'blend or average'
    )


PARTS = Parts(_load, _footprint, _check_tokenizer, _no_overlap)
