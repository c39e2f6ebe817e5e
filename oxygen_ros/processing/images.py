"""Camera pictures: which are there, and pi0.5's square of each, by either maker's rule.

The two rules differ by up to 0.3 (of a range of 2) on sharp pictures, so a checkpoint is served
with the rule it was trained with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from oxygen_ros.types import Observation, OxygenError


def present_cameras(observation: Observation, slots: Sequence[str]) -> list[str]:
    """Slots that have an image, in slot order. Raises OxygenError that lists what is allowed."""
    unknown = sorted(set(observation.images) - set(slots))
    if unknown:
        raise OxygenError(
            f'cameras {", ".join(unknown)} are unknown, allowed: {", ".join(slots)}; '
            'change the camera names in the contract'
        )
    present = [slot for slot in slots if slot in observation.images]
    if not present:
        raise OxygenError(f'no camera image, at least one is needed of: {", ".join(slots)}')
    return present


def checked_image(image: np.ndarray, slot: str) -> np.ndarray:
    """The image if it is uint8 [height, width, 3]; raises OxygenError if not."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise OxygenError(
            f'image of {slot} is {image.dtype} {list(image.shape)}, uint8 [height, width, 3] '
            'RGB is expected'
        )
    return image


def resize_with_pad(image: np.ndarray, height: int, width: int, rule: str) -> torch.Tensor:
    """uint8 [H, W, 3] -> float32 [3, height, width] in [-1, 1], aspect kept, centred on black.

    rule: 'float_bilinear' (LeRobot) or 'pil_bilinear' (openpi, antialiased on uint8).
    """
    resize = {'float_bilinear': _float_bilinear, 'pil_bilinear': _pil_bilinear}[rule]
    if image.shape[:2] == (height, width):
        return _unit(image) * 2.0 - 1.0
    ratio = max(image.shape[1] / width, image.shape[0] / height)
    # A very long picture would shrink to nothing on its short side.
    inner = max(1, int(image.shape[0] / ratio)), max(1, int(image.shape[1] / ratio))
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    canvas = torch.zeros((3, height, width))
    canvas[:, top : top + inner[0], left : left + inner[1]] = resize(image, *inner)
    return canvas * 2.0 - 1.0


def _unit(image: np.ndarray) -> torch.Tensor:
    """uint8 [H, W, 3] -> float32 [3, H, W] in [0, 1], a view of channels-last memory."""
    # Channels stay last in memory: the same bits as channels first, in a quarter of the time.
    whole = np.require(image, requirements=['C', 'W'])
    return torch.from_numpy(whole).permute(2, 0, 1).float().div_(255.0)


def _float_bilinear(image: np.ndarray, height: int, width: int) -> torch.Tensor:
    resized = functional.interpolate(
        _unit(image)[None], size=(height, width), mode='bilinear', align_corners=False
    )
    return resized[0].clamp(0.0, 1.0)


def _pil_bilinear(image: np.ndarray, height: int, width: int) -> torch.Tensor:
    from PIL import Image  # a machine that runs no such checkpoint does without

    resized = Image.fromarray(image).resize((width, height), resample=Image.Resampling.BILINEAR)
    return _unit(np.asarray(resized))
