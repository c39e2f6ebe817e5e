"""StarVLA's heads as the benchmark runs them: random weights, and inputs of real lengths."""

from __future__ import annotations

from pathlib import Path

import torch

from oxygen_ros.bench.qwen import MERGED, check_prompt, fill, prefix
from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint import random_qwen
from oxygen_ros.checkpoint.random_starvla import (
    SIZES,
    StarvlaWeights,
    action_model,
    tensor_shapes,
)
from oxygen_ros.checkpoint.starvla import FAMILY, StarvlaLayout, naming
from oxygen_ros.checkpoint.starvla_head import HEADS, head_sizes, read_head
from oxygen_ros.models.starvla import StarVLA
from oxygen_ros.policy import DTYPES
from oxygen_ros.processing.starvla import StarvlaInputs
from oxygen_ros.types import OxygenError

# Patches of a camera in height and width: what Qwen's resize makes of the squeezed picture.
_GRIDS = {'tiny': (4, 4), 'small': (16, 16)}
_ACTIONS = 7  # of the robot, as its state


def network(setting: Setting, head: str = 'QwenPI_v3') -> StarVLA:
    """The network without weights; on the device 'meta' it takes no memory."""
    check_prompt(setting)
    layout = random_layout(setting, head)
    return StarVLA(layout, torch.device(setting.device), DTYPES[setting.dtype])


def build_model(setting: Setting, head: str = 'QwenPI_v3') -> StarVLA:
    """The network with random weights that never ends an answer by itself."""
    model = network(setting, head)
    words = range(model.spec.vocab_size)
    fill(model, StarvlaWeights(0, DTYPES[setting.dtype], spoken=words, eos_id=0))
    return model


def random_layout(setting: Setting, name: str) -> StarvlaLayout:
    """What a run of this size would be read as, without writing one. Raises OxygenError."""
    if setting.size not in SIZES:
        raise OxygenError(f'size is {setting.size!r}, allowed: {", ".join(SIZES)}')
    if name not in HEADS or not HEADS[name].flows:
        flows = [n for n, head in HEADS.items() if head.flows]
        raise OxygenError(f'head is {name!r}, measured are {", ".join(flows)}')
    vocab = random_qwen.vocabulary(random_qwen.checked(setting.size)['text']['vocab_size'])
    vlm = random_qwen.vlm_config(setting.size, vocab)
    own = {'action': _ACTIONS, 'state': _ACTIONS, 'horizon': setting.horizon}
    sizes = {**SIZES[setting.size], **own}
    action = action_model(name, sizes)
    head = read_head(name, action, 'random')
    rows, columns = _GRIDS[setting.size]
    tokens = rows * columns // MERGED
    shapes = tensor_shapes(vlm, name, sizes)
    state = _ACTIONS if head.state == 'embedded' else 0
    return StarvlaLayout(
        path=Path('random'),
        format='starvla',
        family=FAMILY,
        cameras=tuple(f'camera_{number}' for number in range(setting.cameras)),
        state_dim=_ACTIONS,
        action_dim=_ACTIONS,
        horizon=setting.horizon,
        max_prefix=setting.cameras * tokens + setting.prompt_tokens,
        dtype='bfloat16',
        weight_files=(),
        naming=naming(head, True, True),
        head=head,
        name=name,
        vlm=vlm,
        image=random_qwen.image_rule(setting.size),
        base_vlm=Path('random'),
        tied_head=True,
        buckets=1000,
        include_state=True,
        prompt='{instruction}',
        image_size=(sizes['image'], sizes['image']),
        image_resize='torchvision',
        image_tokens=tokens,
        text_tokens=setting.prompt_tokens,
        fast_tokenizer=None,
        max_action_tokens=1,
        sizes=head_sizes(name, head, action, vlm, shapes, state, 0, 'random'),
    )


def make_inputs(model: StarVLA, setting: Setting, number: int) -> StarvlaInputs:
    """One frame's inputs, different for each number."""
    random = torch.Generator().manual_seed(number)
    seen = prefix(model.vlm.config, _GRIDS[setting.size], setting, random)
    embedded = model.layout.head.state == 'embedded'
    return StarvlaInputs(
        token_ids=seen.token_ids,
        suffix_ids=torch.empty(0, dtype=torch.int64),
        pixel_values=seen.pixel_values,
        grid=seen.grid,
        state=torch.randn(1, _ACTIONS, generator=random) if embedded else None,
        truncated=False,
    )
