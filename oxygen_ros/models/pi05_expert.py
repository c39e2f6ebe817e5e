"""pi0.5's action expert: a small Gemma with adaptive norms, and the flow time it is told.

Source: openpi gemma.py and pi0_pytorch.py, LeRobot modeling_pi05.py.
"""

from __future__ import annotations

import inspect
import math

import torch
from torch import nn
from transformers import GemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaAttention, GemmaMLP

from oxygen_ros.models.kv import PoolCache

# transformers renamed the argument after 5.17
CACHE = (
    'cache'
    if 'cache' in inspect.signature(GemmaAttention.forward).parameters
    else 'past_key_values'
)

# 1 + scale and shift in float32, gate in the model's dtype: each [W], of one flow time
Modulation = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class AdaRMSNorm(nn.Module):
    """RMSNorm whose scale, shift and gate come from the flow time (openpi gemma.py, RMSNorm)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(width, 3 * width)

    def modulations(self, condition: torch.Tensor) -> list[Modulation]:
        """What forward() needs for each flow time of condition [steps, W]."""
        scale, shift, gate = self.dense(condition).float().chunk(3, dim=-1)
        rows = zip(1 + scale, shift, gate.to(condition.dtype), strict=True)
        # Storage of its own for each: compiled layers tell views by where they begin.
        return [(scale.clone(), shift.clone(), gate.clone()) for scale, shift, gate in rows]

    def forward(self, hidden: torch.Tensor, modulation: Modulation) -> torch.Tensor:
        """Hidden [B, H, W] -> the same, normed; the caller applies the gate."""
        scale, shift, _ = modulation
        exact = hidden.float()
        normed = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return (normed * scale + shift).to(hidden.dtype)


class ExpertLayer(nn.Module):
    """One layer of the action expert; its attention reads the backbone's KV of the same layer."""

    def __init__(self, config: GemmaConfig, index: int) -> None:
        super().__init__()
        self.self_attn = GemmaAttention(config, index)
        self.mlp = GemmaMLP(config)
        self.input_layernorm = AdaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = AdaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden: torch.Tensor,
        modulations: tuple[Modulation, Modulation],
        rope: tuple[torch.Tensor, torch.Tensor],
        kv: PoolCache,
    ) -> torch.Tensor:
        """Hidden [B, H, W] -> the same; all H tokens see the prefix and each other."""
        (*_, attention_gate), (*_, mlp_gate) = modulations
        normed = self.input_layernorm(hidden, modulations[0])
        mixed, _ = self.self_attn(
            normed, attention_mask=kv.mask, position_embeddings=rope, **{CACHE: kv}
        )
        hidden = hidden + mixed * attention_gate
        normed = self.post_attention_layernorm(hidden, modulations[1])
        return hidden + self.mlp(normed) * mlp_gate


class Expert(nn.Module):
    """The action expert: layers and an adaptive final norm."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ExpertLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = AdaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def norms(self) -> list[AdaRMSNorm]:
        """All 2 * L + 1 adaptive norms, in the order forward() takes their modulations."""
        pairs = [(la.input_layernorm, la.post_attention_layernorm) for la in self.layers]
        return [norm for pair in pairs for norm in pair] + [self.norm]


def flow_times(steps: int, rule: str) -> torch.Tensor:
    """Times of the Euler steps, float32 [steps], as the checkpoint's maker computes them.

    'float32_of_step' (LeRobot): float32(1 + i * dt). 'accumulate_float32' (openpi) and
    'accumulate_all_float32' (StarVLA): t += dt.
    """
    step = -1.0 / steps
    if rule == 'float32_of_step':
        return torch.tensor([1.0 + index * step for index in range(steps)], dtype=torch.float32)
    assert rule in ('accumulate_float32', 'accumulate_all_float32'), rule
    times = [torch.tensor(1.0)]
    while len(times) < steps:
        times.append(times[-1] + torch.tensor(step))
    return torch.stack(times)


def time_embedding(
    times: torch.Tensor, width: int, min_period: float, max_period: float, rule: str
) -> torch.Tensor:
    """Sine and cosine of the flow time -> float32 [steps, width].

    Taken in float64, but in float32 by the rule 'accumulate_all_float32'.
    """
    exact = torch.float32 if rule == 'accumulate_all_float32' else torch.float64
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=exact)
    period = min_period * (max_period / min_period) ** fraction
    angle = times.to(exact)[:, None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).float()
