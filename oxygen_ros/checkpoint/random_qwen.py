"""A Qwen-VL with random weights: configuration, tokenizer and values, for its families."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLModel

from oxygen_ros.checkpoint.random_tokenizer import WORDS
from oxygen_ros.checkpoint.random_weights import RandomWeights
from oxygen_ros.types import OxygenError

SPECIAL = (
    '<|endoftext|>',
    '<|im_start|>',
    '<|im_end|>',
    '<|vision_start|>',
    '<|vision_end|>',
    '<|image_pad|>',
    '<|video_pad|>',
)
_SAID_IN_PROMPTS = """
The following observations are captured from multiple views Base View Left Right Wrist Ego
Generate robot actions for the task user assistant no cot State Action system You helpful
"""
# fmt: off
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    # For tests: 1 M parameters, 4 tokens for a picture of 64 x 64.
    'tiny': {
        'text': dict(hidden_size=128, intermediate_size=256, num_hidden_layers=4,
                     num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=1024),
        'vision': dict(hidden_size=64, intermediate_size=128, depth=3, num_heads=2,
                       num_position_embeddings=64, deepstack_visual_indexes=[0, 1]),
    },
    # The real token counts and depth with a quarter of the width.
    'small': {
        'text': dict(hidden_size=640, intermediate_size=2432, num_hidden_layers=36,
                     num_attention_heads=16, num_key_value_heads=8, head_dim=64,
                     vocab_size=37984),
        'vision': dict(hidden_size=256, intermediate_size=1024, depth=24, num_heads=4,
                       num_position_embeddings=2304, deepstack_visual_indexes=[5, 11, 17]),
    },
    # Qwen3-VL-4B's real dimensions.
    'full': {
        'text': dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                     num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                     vocab_size=151936),
        'vision': dict(hidden_size=1024, intermediate_size=4096, depth=24, num_heads=16,
                       num_position_embeddings=2304, deepstack_visual_indexes=[5, 11, 17]),
    },
}
# fmt: on
DTYPES = {'tiny': torch.float32, 'small': torch.bfloat16, 'full': torch.bfloat16}
ENDING = 1.2  # size of <|im_end|>'s row: answers of a dozen or two tokens
_HEAD_GAIN = 4.0  # spread of the logits: a clear best word at temperature 0, variety at 1
_ATTENTION = 1.5  # how sharply queries, which are normed, pick
_NORM = re.compile(r'(norm\d?|ln_q)\.weight$')
# Standard deviation of a product's output per unit of input, first match wins.
_GAINS = (
    (re.compile(r'pos_embed\.weight$'), 0.3),
    (re.compile(r'(o_proj|down_proj|attn\.proj|linear_fc2)\.weight$'), 0.5),
    (re.compile(r''), 1.0),
)


def vlm_config(size: str, vocab: dict[str, int]) -> dict[str, Any]:
    """Qwen3-VL's part of a config.json. Raises OxygenError on an unknown size."""
    text, vision = checked(size)['text'], checked(size)['vision']
    rotated = text['head_dim'] // 2
    sections = [rotated - 2 * (rotated * 5 // 16), rotated * 5 // 16, rotated * 5 // 16]
    return {
        'model_type': 'qwen3_vl',
        'text_config': {
            'model_type': 'qwen3_vl_text',
            **text,
            'max_position_embeddings': 262144,
            'rms_norm_eps': 1e-6,
            'rope_theta': 5e6,
            'rope_scaling': {
                'rope_type': 'default',
                'mrope_interleaved': True,
                'mrope_section': sections,
            },
            'tie_word_embeddings': True,
        },
        'vision_config': {
            'model_type': 'qwen3_vl',
            **vision,
            'patch_size': 16,
            'temporal_patch_size': 2,
            'spatial_merge_size': 2,
            'out_hidden_size': text['hidden_size'],
        },
        'image_token_id': vocab['<|image_pad|>'],
        'video_token_id': vocab['<|video_pad|>'],
        'vision_start_token_id': vocab['<|vision_start|>'],
        'vision_end_token_id': vocab['<|vision_end|>'],
        'tie_word_embeddings': True,
    }


def checked(size: str) -> dict[str, dict[str, Any]]:
    """Sizes of a size. Raises OxygenError."""
    if size not in SIZES:
        raise OxygenError(f'size is {size!r}, allowed: {", ".join(SIZES)}')
    return SIZES[size]


def backbone_shapes(config: dict[str, Any], prefix: str) -> dict[str, tuple[int, ...]]:
    """Tensors of the backbone without a head, under a prefix of their names."""
    with torch.device('meta'):
        model = Qwen3VLModel(Qwen3VLConfig(**config))
    return {prefix + name: tuple(value.shape) for name, value in model.named_parameters()}


def image_rule(size: str) -> dict[str, Any]:
    """preprocessor_config.json of the image processor; tiny pictures stay tiny."""
    least, most = (1024, 65536) if size == 'tiny' else (65536, 16777216)
    return {
        'size': {'shortest_edge': least, 'longest_edge': most},
        'image_processor_type': 'Qwen2VLImageProcessor',
        'patch_size': 16,
        'temporal_patch_size': 2,
        'merge_size': 2,
        'image_mean': [0.5, 0.5, 0.5],
        'image_std': [0.5, 0.5, 0.5],
    }


def vocabulary(size: int) -> dict[str, int]:
    """Token -> id of a byte-level vocabulary, filled up so that ids have no holes."""
    said = dict.fromkeys([*_SAID_IN_PROMPTS.split(), *WORDS])
    words = [word for word in (*said, *(f'Ġ{word}' for word in said)) if len(word) > 1]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words, *SPECIAL]
    if size < len(tokens):
        raise OxygenError(f'vocab_size is {size}, at least {len(tokens)} are needed')
    tokens += [f'<unused{i}>' for i in range(size - len(tokens))]
    return {token: i for i, token in enumerate(tokens)}


def spoken_ids(vocab: dict[str, int]) -> list[int]:
    """Ids a random network shall say: words and the two marks that end a phrase."""
    return [vocab[f'Ġ{word}'] for word in WORDS] + [vocab['.'], vocab[',']]


def write_tokenizer(folder: Path, vocab: dict[str, int]) -> None:
    """Write tokenizer.json and its configuration: words are looked up, the rest are bytes."""
    tokenizer = Tokenizer(models.BPE(vocab, [], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token='<|endoftext|>',
        eos_token='<|im_end|>',
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


class QwenWeights(RandomWeights):
    """Values by name for a backbone whose tensors lie under `vlm.` or any other prefix."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of a name."""
        if name.endswith(('embed_tokens.weight', 'lm_head.weight')):
            return self._words(shape)
        if name.endswith('language_model.norm.weight'):
            # Random signs, or a tied head would mostly say the last word again.
            return self._normal(name, shape, 1.0).sign() * _HEAD_GAIN
        if len(shape) == 1:
            value = 1.0 if _NORM.search(name) else 0.0
            value = _ATTENTION if name.endswith('q_norm.weight') else value
            return torch.full(shape, value, dtype=self.dtype)
        gain = next(gain for pattern, gain in _GAINS if pattern.search(name))
        fan_in = 1 if 'pos_embed' in name else math.prod(shape[1:])
        return self._normal(name, shape, gain / math.sqrt(fan_in))
