"""Colour arithmetic on raw images, to the last bit as OpenCV's. Arrays only, no messages."""

from __future__ import annotations

import numpy as np

# Where red lies in the repeated 2x2 square: (row, column). Blue is opposite, green beside both.
BAYER = {
    'bayer_rggb8': (0, 0),
    'bayer_grbg8': (0, 1),
    'bayer_gbrg8': (1, 0),
    'bayer_bggr8': (1, 1),
}
# Where two pixels' (Y0, U, Y1, V) lie in their four bytes.
YUV422 = {
    'yuv422': (1, 0, 3, 2),
    'uyvy': (1, 0, 3, 2),
    'yuv422_yuy2': (0, 1, 2, 3),
    'yuyv': (0, 1, 2, 3),
}
# ITU-R BT.601, limited range, in units of 2**-20.
_CY, _CUB, _CUG, _CVG, _CVR = 1220542, 2116026, -409993, -852492, 1673527
_HALF, _SHIFT = 1 << 19, 20


def eight_bits(values: np.ndarray) -> np.ndarray:
    """uint16 of either byte order -> uint8: 65535 becomes 255, rounded to the nearest."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def yuv422_to_rgb(pairs: np.ndarray, layout: tuple[int, ...]) -> np.ndarray:
    """uint8 [h, w / 2, 4] of two pixels each -> uint8 [h, w, 3] RGB."""
    y0, u, y1, v = (pairs[..., i].astype(np.int32) for i in layout)
    u, v = u - 128, v - 128
    red, green, blue = _CVR * v, _CVG * v + _CUG * u, _CUB * u
    rgb = np.empty((pairs.shape[0], pairs.shape[1], 2, 3), np.uint8)
    for pixel, luma in enumerate((y0, y1)):
        light = np.maximum(luma - 16, 0) * _CY + _HALF
        for channel, chroma in enumerate((red, green, blue)):
            rgb[:, :, pixel, channel] = np.clip((light + chroma) >> _SHIFT, 0, 255)
    return rgb.reshape(pairs.shape[0], -1, 3)


def bayer_to_rgb(mosaic: np.ndarray, red: tuple[int, int]) -> np.ndarray:
    """uint8 [h, w], both 3 or more -> uint8 [h, w, 3] RGB, bilinear; borders are their neighbours.

    red: row and column, 0 or 1, of the first red pixel.
    """
    wide = mosaic.astype(np.uint16)
    here = wide[1:-1, 1:-1]
    up, down, left, right = wide[:-2, 1:-1], wide[2:, 1:-1], wide[1:-1, :-2], wide[1:-1, 2:]
    corners = wide[:-2, :-2] + wide[:-2, 2:] + wide[2:, :-2] + wide[2:, 2:]
    cross, diagonal = (up + down + left + right + 2) >> 2, (corners + 2) >> 2
    rows, columns = (up + down + 1) >> 1, (left + right + 1) >> 1
    rgb = np.empty((*mosaic.shape, 3), np.uint8)
    inner = rgb[1:-1, 1:-1]
    # [row parity, column parity] of the inner pixels, which begin at (1, 1)
    for row, column in np.ndindex(2, 2):
        part = (slice(row, None, 2), slice(column, None, 2))
        at = ((row + 1 - red[0]) % 2, (column + 1 - red[1]) % 2)
        choices = {
            (0, 0): (here, cross, diagonal),
            (0, 1): (columns, here, rows),
            (1, 0): (rows, here, columns),
            (1, 1): (diagonal, cross, here),
        }[at]
        for channel, values in enumerate(choices):
            inner[..., channel][part] = values[part]
    rgb[:, 0], rgb[:, -1] = rgb[:, 1], rgb[:, -2]
    rgb[0], rgb[-1] = rgb[1], rgb[-2]
    return rgb
