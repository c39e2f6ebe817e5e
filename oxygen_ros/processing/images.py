"""Camera pictures -> the square the vision tower sees, by either maker's rule.

The two rules differ by up to 0.3 (of a range of 2) on sharp pictures, so a checkpoint is served
with the rule it was trained with.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch.nn import functional


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
    resized = Image.fromarray(image).resize((width, height), resample=Image.Resampling.BILINEAR)
    return _unit(np.asarray(resized))
