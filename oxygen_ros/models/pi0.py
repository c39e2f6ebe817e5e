"""pi0: PaliGemma with an expert of plain Gemma layers that reads the state as a token.

Source: openpi pi0_pytorch.py, StarVLA OpenPI_ActionHead.py. The flow time joins each noisy action
through an MLP. The state token sees neither actions nor time, so that its keys and values are
computed once per frame, into the slot behind the prefix. The expert always runs plain layers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from transformers import GemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaDecoderLayer, GemmaRMSNorm

from oxygen_ros.models.base import Prefilled
from oxygen_ros.models.guidance import Guide
from oxygen_ros.models.kv import KVWindow, PoolCache
from oxygen_ros.models.paligemma import PaliGemma
from oxygen_ros.models.pi05_expert import flow_times, time_embedding
from oxygen_ros.models.pi05_layers import Layers, Rope, run_layers
from oxygen_ros.processing.pi05 import Pi05Inputs

_STATE = 'state'


class Pi0Expert(nn.Module):
    """transformers' Gemma layers and final norm, without words."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            GemmaDecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Pi0(PaliGemma):
    """The whole model on one device in one dtype."""

    expert: Pi0Expert

    def _make_action_side(self, config: GemmaConfig) -> None:
        width = config.hidden_size
        self.expert = Pi0Expert(config)
        self.state_proj = nn.Linear(self.arch.state_dim_padded, width)
        self.time_mlp_in = nn.Linear(2 * width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def prefill(self, inputs: Pi05Inputs, kv: PoolCache) -> Prefilled:
        """See PaliGemma; the state waits for act()."""
        assert inputs.state is not None, 'a processor of a pi0 gives the state'
        return replace(super().prefill(inputs, kv), extras={_STATE: inputs.state})

    def act(
        self,
        prefilled: Prefilled,
        kv: KVWindow,
        noise: torch.Tensor,
        steps: int,
        guide: Guide | None = None,
    ) -> torch.Tensor:
        """Euler steps from noise at t = 1 to actions at t = 0, [H, A] in float32."""
        place = prefilled.length + prefilled.position_offset
        self._write_state(prefilled.extras[_STATE], place, kv.next_tokens(1))
        behind = torch.tensor([place + 1], device=self.device)
        return self._denoise(behind, kv.starting_at(kv.start + 1), noise, steps, guide)

    def _write_state(self, state: torch.Tensor, place: int, kv: PoolCache) -> None:
        """Keys and values of the state token [A_state] at its position, in every layer."""
        token = self.state_proj(state.to(self.device, self.dtype))[None, None]
        position = torch.tensor([[place]], device=self.device)
        rope = self.lm.rotary_emb(token, position_ids=position)
        run_layers(self.expert.layers, token, rope, None, kv)

    def _conditions(self, steps: int) -> list[torch.Tensor]:
        """Embedded flow time of each step, [W]."""
        arch, rule = self.arch, self.options.time_rule
        periods = (arch.min_period, arch.max_period)
        embedded = time_embedding(flow_times(steps, rule), arch.expert_width, *periods, rule)
        return list(embedded.to(self.device, self.dtype))

    def _velocity(
        self,
        actions: torch.Tensor,
        condition: torch.Tensor,
        rope: Rope,
        kv: PoolCache,
        layers: Layers,
    ) -> torch.Tensor:
        """See PaliGemma; condition: the embedded flow time [W]."""
        tokens = self.action_in_proj(actions.to(self.dtype))
        joined = torch.cat([tokens, condition.expand_as(tokens)], dim=-1)
        tokens = self.time_mlp_out(nn.functional.silu(self.time_mlp_in(joined)))
        hidden = run_layers(self.expert.layers, tokens, rope, None, kv)
        return self.action_out_proj(self.expert.norm(hidden)).float()
