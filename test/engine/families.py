"""Tiny checkpoints of each family, and what tests of the engine must know of them."""

import copy
import math
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import transformers
from transformers import GemmaConfig, GemmaModel

from oxygen_ros.checkpoint.random_starvla import CAMERAS, write_random_checkpoint
from oxygen_ros.types import Observation

GOLDEN = Path(__file__).parents[1] / 'golden'


@dataclass(frozen=True)
class Pi05:
    """The golden LeRobot checkpoint: images of one size, a bidirectional prefix."""

    checkpoint: Path = GOLDEN / 'pi05_lerobot' / 'checkpoint'
    cameras: tuple = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
    state_dim: int = 8
    options: dict = field(default_factory=dict)
    executions: tuple = ('eager', 'fused', 'graphs')

    def image_size(self, number, camera):
        return 56, 56

    def spoiled_actions(self, model):
        """A context in which actions become NaN, beside NaN as noise."""
        return nullcontext()

    def count_encoded(self, model, seen):
        """Append to seen how many images each forward of the vision tower gets."""
        model.vision.embeddings.register_forward_pre_hook(
            lambda _, arguments: seen.append(len(arguments[0]))
        )

    def recompute(self, model, inputs):
        """A function of token ids [n] -> logits behind prefix and ids, without any cache of ours:
        transformers' Gemma with eager attention and the same weights.
        """
        config = GemmaConfig(**{**model.lm.config.to_dict(), 'attn_implementation': 'eager'})
        backbone = GemmaModel(config).eval()
        backbone.load_state_dict(model.lm.state_dict())
        prefix = torch.cat(
            [model.embed_images(inputs.pixel_values), backbone.embed_tokens(inputs.token_ids)]
        )

        def logits(ids):
            sequence = torch.cat([prefix, backbone.embed_tokens(ids)])
            seen = torch.ones(len(sequence), len(sequence), dtype=torch.bool).tril()
            seen[: len(prefix), : len(prefix)] = True
            mask = torch.zeros(seen.shape).masked_fill(~seen, -2.3819763e38)
            hidden = backbone(
                inputs_embeds=sequence[None],
                attention_mask=mask[None, None],
                position_ids=torch.arange(len(sequence))[None],
                use_cache=False,
            ).last_hidden_state
            return model.lm_head(hidden[0, -1])

        return logits


@dataclass(frozen=True)
class XiaomiRobotics0:
    """The golden checkpoint: images of many sizes, M-RoPE, an action suffix behind the prefix."""

    checkpoint: Path = GOLDEN / 'xr0' / 'checkpoint'
    cameras: tuple = ('base_view', 'left_wrist_view', 'right_wrist_view')
    state_dim: int = 32
    # its tokenizer has few words, and a request's are a turn of their own
    options: dict = field(
        default_factory=lambda: {'robot_tag': 'libero_tiny', 'max_prompt_tokens': 48}
    )
    executions: tuple = ('eager', 'graphs')  # it has plain layers only

    def image_size(self, number, camera):
        return 64 + 32 * ((number + camera) % 3), 64 + 32 * (number % 2)

    def spoiled_actions(self, model):
        return nullcontext()

    def count_encoded(self, model, seen):
        model.vlm.model.visual.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(len(kwargs['grid_thw'])), with_kwargs=True
        )

    def recompute(self, model, inputs):
        """transformers' whole Qwen-VL with its own positions, eager, and the same weights."""
        return plain_qwen(model.vlm, inputs)


def plain_qwen(vlm, inputs):
    """Logits of ids behind a prefix by transformers' own forward of the whole sequence."""
    config = copy.deepcopy(vlm.config)
    config.text_config._attn_implementation = 'eager'
    config.vision_config._attn_implementation = 'eager'
    backbone = getattr(transformers, type(vlm.model).__name__)(config).eval()
    backbone.load_state_dict(vlm.model.state_dict())

    def logits(ids):
        sequence = torch.cat([inputs.token_ids, ids])
        hidden = backbone(
            input_ids=sequence[None],
            pixel_values=inputs.pixel_values,
            image_grid_thw=inputs.grid,
            mm_token_type_ids=(sequence == config.image_token_id).int()[None],
            use_cache=False,
        ).last_hidden_state
        return vlm.logits(hidden[0, -1])

    return logits


@dataclass(frozen=True)
class StarVLA:
    """A random run of one head, written when it is first used; images of many sizes or of one."""

    head: str
    backbone: str = 'qwen3_vl'
    squeezed: bool = False
    cameras: tuple = CAMERAS
    state_dim: int = 8
    options: dict = field(default_factory=dict)
    executions: tuple = ('eager',)
    horizon: int = 8

    @cached_property
    def checkpoint(self):
        return write_random_checkpoint(
            Path(RUNS.name) / self.head,
            head=self.head,
            backbone=self.backbone,
            squeezed=self.squeezed,
            horizon=self.horizon,
            ends=False,
        )

    @contextmanager
    def spoiled_actions(self, model):
        """QwenOFT and QwenFast take no noise."""
        weights = {
            'QwenOFT': lambda: model.action_model.model['fc2'].bias,
            'QwenFast': lambda: model.vlm.model.language_model.norm.weight,
        }
        weight = weights.get(self.head, lambda: torch.zeros(1))()
        kept = weight.clone()
        weight.fill_(math.nan)
        yield
        weight.copy_(kept)

    def image_size(self, number, camera):
        return 64 + 32 * ((number + camera) % 3), 64 + 32 * (number % 2)

    def count_encoded(self, model, seen):
        model.vlm.model.visual.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(len(kwargs['grid_thw'])), with_kwargs=True
        )

    def recompute(self, model, inputs):
        return plain_qwen(model.vlm, inputs)


@dataclass(frozen=True)
class StarvlaPi05(Pi05):
    """The golden run with the PI05 head."""

    checkpoint: Path = GOLDEN / 'starvla_pi05' / 'run'
    executions: tuple = ('eager',)  # the others are those of Pi05


@dataclass(frozen=True)
class StarvlaPi0(Pi05):
    """A random run with the PI0 head."""

    executions: tuple = ('eager', 'fused', 'graphs')

    @cached_property
    def checkpoint(self):
        return write_random_checkpoint(
            Path(RUNS.name) / 'PI0', cameras=self.cameras, head='PI0', ends=False
        )


RUNS = TemporaryDirectory(prefix='starvla_runs_')
FAMILIES = {
    'pi05': Pi05(),
    'xiaomi_robotics_0': XiaomiRobotics0(),
    'starvla_pi05': StarvlaPi05(),
    'starvla_pi0': StarvlaPi0(),
    'starvla_qwenpi': StarVLA('QwenPI', 'qwen2_5_vl'),
    'starvla_qwenpi_v3': StarVLA('QwenPI_v3', squeezed=True, executions=('eager', 'graphs')),
    'starvla_qwengr00t': StarVLA('QwenGR00T'),
    'starvla_qwenoft': StarVLA('QwenOFT', 'qwen2_5_vl'),
    'starvla_qwenfast': StarVLA('QwenFast', horizon=2, executions=('eager', 'graphs')),
}
# One of each way in which actions come from a prefix.
WAYS = (
    'pi05',
    'xiaomi_robotics_0',
    'starvla_qwenpi_v3',
    'starvla_qwenoft',
    'starvla_qwenfast',
)


def observe(family, number=0, without=(), instruction=None):
    """Frame `number` of a family; `without` names the places of absent cameras."""
    random = np.random.default_rng(number)
    words = 'pick up the red cup ' + 'very ' * (3 * number) + 'slowly'
    return Observation(
        images={
            name: random.integers(0, 256, (*family.image_size(number, camera), 3), dtype=np.uint8)
            for camera, name in enumerate(family.cameras)
            if camera not in without
        },
        state=random.uniform(-0.5, 0.5, family.state_dim).astype(np.float32),
        instruction=instruction or words,
        stamp_ns=1_000_000 * (number + 1),
    )
