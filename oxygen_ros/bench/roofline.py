"""The least time a phase can take: its arithmetic and its bytes, for chips that are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oxygen_ros.bench.report import mode_costs
from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint import Pi05Arch, tensor_shapes
from oxygen_ros.checkpoint.arch import EMBED, EXPERT, LANGUAGE, LM_HEAD, VISION


@dataclass(frozen=True)
class Chip:
    """Dense bf16 FLOP/s and bytes/s that large kernels reach."""

    name: str
    flops: float
    bandwidth: float


CHIPS = {
    'RTX 4090': Chip('RTX 4090', 165e12, 1.0e12),
    'Thor': Chip('Thor', 250e12, 273e9),
    'H200': Chip('H200', 790e12, 4.3e12),
}


def chip_of(device_name: str) -> Chip | None:
    """The chip whose name is in a device's name."""
    return next((chip for key, chip in CHIPS.items() if key in device_name), None)


def roofline_ms(
    chip: Chip, arch: Pi05Arch, setting: Setting, item: int, rows: Sequence[int]
) -> dict[str, float]:
    """Phase or mode -> ms, the larger of arithmetic and memory time.

    item: bytes of a weight. rows: of decode steps, 1 and the setting's beside them.
    """
    sizes = _parameters(arch)
    image_tokens = setting.cameras * arch.tokens_per_camera
    prefix = image_tokens + setting.prompt_tokens
    kv_token = 2 * arch.depth * arch.kv_heads * arch.head_dim * item
    heads = arch.heads * arch.head_dim

    def phase(parameters: int, tokens: int, attended: int, layers: int, width: int) -> float:
        attention = 4 * tokens * attended * width * layers
        arithmetic = (2 * parameters * tokens + attention) / chip.flops
        return 1e3 * max(arithmetic, parameters * item / chip.bandwidth)

    def decode(rows: int) -> float:
        read = (sizes['lm'] + sizes['head']) * item + rows * prefix * kv_token
        return 1e3 * read / chip.bandwidth

    vision = phase(
        sizes['vision'],
        image_tokens,
        arch.tokens_per_camera,
        arch.vision_layers,
        arch.vision_width,
    )
    prefill = phase(sizes['lm'], prefix, prefix, arch.depth, heads)
    step = phase(sizes['expert'], setting.horizon, prefix, arch.depth, heads)
    phases = {
        'vision': vision,
        'prefill': vision + prefill,
        'act': setting.denoise_steps * step,
        **{f'decode_{count}': decode(count) for count in sorted({1, setting.rows, *rows})},
    }
    frame = phases['prefill'] + phases['act']
    return {**phases, 'frame without language': frame, **mode_costs(phases, setting)}


def _parameters(arch: Pi05Arch) -> dict[str, int]:
    """Weights that each phase multiplies by; adaptive norms are computed once and left out."""
    sizes = {'vision': 0, 'lm': 0, 'head': 0, 'expert': 0}
    for name, shape in tensor_shapes(arch).items():
        count = 1
        for extent in shape:
            count *= extent
        if name == LM_HEAD:
            sizes['head'] += count
        elif name.startswith(VISION):
            sizes['vision'] += count
        elif name.startswith(LANGUAGE) and name != EMBED:
            sizes['lm'] += count
        elif name.startswith(EXPERT) and '.dense.' not in name:
            sizes['expert'] += count
    return sizes
