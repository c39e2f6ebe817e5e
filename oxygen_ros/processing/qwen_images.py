"""Qwen-VL's image processor: any picture -> the patches that the vision tower takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional

from oxygen_ros.types import OxygenError

_BICUBIC = 3  # as Pillow counts
_ALWAYS = ('do_resize', 'do_rescale', 'do_normalize')


@dataclass(frozen=True)
class Patches:
    """Images as the vision tower takes them.

    values: float32 [P, values of one]. grid: int64 [images, 3], patches in time, height, width.
    tokens: of each image in the prompt.
    """

    values: torch.Tensor
    grid: torch.Tensor
    tokens: list[int]


class QwenImages:
    """transformers' own processor bit for bit, in a fraction of its time, in either of its forms.

    The two resize by one grey level differently in places, which moves actions by up to 3e-3: a
    checkpoint is served with the one that its makers use.
    """

    def __init__(self, values: Mapping[str, Any], where: Path, resize: str) -> None:
        """values: of a preprocessor_config.json. resize: 'pil' or 'torchvision'. Raises
        OxygenError.
        """
        processor = getattr(transformers, 'Qwen2VLImageProcessorPil', None)
        if processor is None:
            raise OxygenError(
                f'transformers {transformers.__version__} has no Qwen2VLImageProcessorPil, which '
                'this checkpoint needs: 5.17 and newer have it; install the version in '
                'requirements/'
            )
        try:
            rule = processor(**values)  # knows the defaults
            self._limits = int(rule.size['shortest_edge']), int(rule.size['longest_edge'])
            self._patch, self._merge = int(rule.patch_size), int(rule.merge_size)
            self._frames, self._resample = int(rule.temporal_patch_size), int(rule.resample)
            levels, self._resize = _FORMS[resize]
            self._levels = levels(rule.rescale_factor, rule.image_mean, rule.image_std)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OxygenError(f'{where}: is no Qwen image processor ({error})') from error
        skipped = [key for key in _ALWAYS if not getattr(rule, key)]
        if skipped:
            raise OxygenError(f'{where}: {", ".join(skipped)} is false, only true is supported')
        if resize == 'torchvision' and self._resample != _BICUBIC:
            raise OxygenError(
                f'{where}: resample is {self._resample}, as torchvision only 3 (bicubic) is '
                'supported; if pictures were resized with Pillow, set image_resize to pil in '
                'oxygen.json'
            )

    def __call__(self, images: Sequence[np.ndarray]) -> Patches:
        """uint8 [H, W, 3] of any size each. Raises OxygenError on one that cannot be resized."""
        patches = [self._patches(self._resized(image)) for image in images]
        grid = np.array([[1, *sides] for _, sides in patches], np.int64)
        tokens = (grid.prod(-1) // self._merge**2).tolist()
        values = np.concatenate([values for values, _ in patches])
        return Patches(torch.from_numpy(values), torch.from_numpy(grid), tokens)

    def _resized(self, image: np.ndarray) -> np.ndarray:
        # Not above: no Pillow is needed elsewhere, and an old transformers is named before this.
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        height, width = image.shape[:2]
        least, most = self._limits
        try:
            sides = smart_resize(height, width, self._patch * self._merge, least, most)
        except ValueError as error:
            raise OxygenError(f'an image of {width}x{height} cannot be used: {error}') from error
        if sides == (height, width):
            return image
        return self._resize(image, sides, self._resample)

    def _patches(self, image: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
        """uint8 [H, W, 3] -> float32 [P, 3 * frames * patch * patch], merged ones together."""
        patch, merge = self._patch, self._merge
        rows, columns = image.shape[0] // patch, image.shape[1] // patch
        shape = (rows // merge, merge, patch, columns // merge, merge, patch, 3)
        # by block, place in it and channel, then the pixels of a patch
        cut = image.reshape(shape).transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, 3, patch * patch)
        values = np.empty((len(cut), 3, self._frames, patch * patch), np.float32)
        for channel in range(3):
            values[:, channel] = self._levels[channel][cut[:, channel]][:, None]
        return values.reshape(len(cut), -1), (rows, columns)


def _levels_apart(factor: float, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """What each grey level of each channel becomes: float32 [3, 256]."""
    from transformers.image_transforms import normalize, rescale

    grey = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
    scaled = rescale(grey, factor, data_format='channels_first')
    made = normalize(scaled, mean, std, data_format='channels_first')
    return np.ascontiguousarray(made[:, 0], np.float32)


def _levels_at_once(factor: float, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """The same as the other form computes it: mean and std in grey levels, float32."""
    grey = torch.arange(256, dtype=torch.float32)
    origin, span = (torch.tensor(value)[:, None] * (1.0 / factor) for value in (mean, std))
    return ((grey - origin) / span).numpy()


def _resize_pil(image: np.ndarray, sides: tuple[int, int], resample: int) -> np.ndarray:
    from PIL import Image

    made = Image.fromarray(image).resize(sides[::-1], resample=Image.Resampling(resample))
    return np.asarray(made)


def _resize_torchvision(image: np.ndarray, sides: tuple[int, int], _: int) -> np.ndarray:
    """torchvision hands uint8 to torch's own bicubic, antialiased; no torchvision is needed."""
    whole = torch.from_numpy(np.require(image, requirements=['C', 'W']))
    made = functional.interpolate(
        whole.permute(2, 0, 1)[None],
        size=sides,
        mode='bicubic',
        align_corners=False,
        antialias=True,
    )
    return made[0].permute(1, 2, 0).contiguous().numpy()


# how grey levels become numbers, and how pictures are resized
_FORMS = {
    'pil': (_levels_apart, _resize_pil),
    'torchvision': (_levels_at_once, _resize_torchvision),
}
