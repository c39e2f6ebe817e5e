"""What checkpoints on a Qwen-VL share on disk: its config.json, its head, its image processor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oxygen_ros.checkpoint.files import read_json
from oxygen_ros.checkpoint.weights import FLOATS, StoredTensor
from oxygen_ros.types import OxygenError

EMBED, LM_HEAD = 'model.language_model.embed_tokens.weight', 'lm_head.weight'
PREPROCESSOR = 'preprocessor_config.json'
# Of the image processor: with Pillow, or as torchvision does it (see processing.qwen_images)
RESIZES = ('pil', 'torchvision')
# transformers' names of the one processor; which of its forms is built, they do not decide.
_TYPES = ('Qwen2VLImageProcessor', 'Qwen2VLImageProcessorFast', 'Qwen2VLImageProcessorPil')
_NOT_VALUES = ('action_config', 'auto_map', 'processor_class', 'image_processor_type')
# In preprocessor_config.json, in vision_config, default of the former
_PATCHES = (
    ('patch_size', 'patch_size', 14),
    ('merge_size', 'spatial_merge_size', 2),
    ('temporal_patch_size', 'temporal_patch_size', 2),
)
_PATCH = {'qwen3_vl': 16, 'qwen2_5_vl': 14}  # where vision_config does not say


def text_config(vlm: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json, in its newer or its older form."""
    return vlm.get('text_config') or vlm


def is_tied(vlm: Mapping[str, Any]) -> bool:
    """Whether the embedding may serve as the head: all but those that say it does not."""
    said = vlm.get('tie_word_embeddings', text_config(vlm).get('tie_word_embeddings'))
    return said is not False


def tied_names(prefix: str) -> dict[str, str]:
    """Head and embedding below a prefix of their names, for Naming.tied."""
    embed, head = prefix + EMBED, prefix + LM_HEAD
    return {embed: head, head: embed}


def word_dtype(index: Mapping[str, StoredTensor], prefix: str, where: str) -> str:
    """Precision of head or embedding, whichever is stored. Raises OxygenError if neither is."""
    stored = index.get(prefix + EMBED) or index.get(prefix + LM_HEAD)
    if stored is None:
        raise OxygenError(f'{where}, tensor {prefix}{EMBED} is missing')
    return FLOATS[stored.dtype]


def image_rule(folder: Path, vlm: Mapping[str, Any]) -> dict[str, Any]:
    """The image processor's own values. Raises OxygenError if it is none of Qwen-VL's, or cuts
    other patches than the vision tower of the config.json takes.
    """
    path = folder / PREPROCESSOR
    values = read_json(path)
    kind = values.get('image_processor_type', _TYPES[0])
    if kind not in _TYPES:
        raise OxygenError(
            f'{path}: image_processor_type is {kind!r}, supported: {", ".join(_TYPES)}'
        )
    vision, patch = vlm.get('vision_config') or {}, _PATCH.get(str(vlm.get('model_type')))
    for name, of_tower, default in _PATCHES:
        cut = values.get(name, default)
        taken = vision.get(of_tower, patch if name == 'patch_size' else default)
        if patch is not None and cut != taken:  # of another backbone, something else is said
            raise OxygenError(
                f'{path}: {name} is {cut!r}, the vision tower was made for {taken!r}; give the '
                'file that belongs to the backbone'
            )
    return {key: value for key, value in values.items() if key not in _NOT_VALUES}
