"""ROS messages to what the policy takes. No rclpy: any object with a message's fields will do.

The same functions read messages from rclpy and messages deserialised from a bag. A message that
cannot be used raises ConversionError, whose `reason` is the word under which it is counted.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from oxygen_ros.ros.pixels import BAYER, YUV422, bayer_to_rgb, eight_bits, yuv422_to_rgb
from oxygen_ros.types import LanguageRequest, OxygenError

# Longer texts are refused; shorter ones are cut to the model's token limit by the processor.
MAX_TEXT_CHARS = 10_000
# Larger pictures would hold up the executor, a PNG of 16 million for 0.2 to 0.7 s.
MAX_PIXELS = 16_000_000

# encoding -> (channels, where red, green and blue lie)
_ORDERS = {
    'rgb8': (3, (0, 1, 2)),
    'bgr8': (3, (2, 1, 0)),
    'rgba8': (4, (0, 1, 2)),
    'bgra8': (4, (2, 1, 0)),
    'mono8': (1, (0, 0, 0)),
}
_WIDE = {name.replace('8', '16'): order for name, order in _ORDERS.items()}
ENCODINGS = (*_ORDERS, *_WIDE, *BAYER, *YUV422)
# Other colour pictures, read where cv_bridge is installed.
_CV_BRIDGE = re.compile(r'bayer_\w+16|nv21|nv24')
_TASK = re.compile(r'[A-Za-z][A-Za-z0-9_]{0,62}')
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error, zlib.error)


class ConversionError(OxygenError):
    """A message that cannot be used. reason: snake_case word under which it is counted."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def time_ns(time: Any) -> int:
    """Nanoseconds of a builtin_interfaces Time or Duration."""
    return int(time.sec) * 1_000_000_000 + int(time.nanosec)


def stamp_ns(header: Any) -> int:
    """Nanoseconds of a std_msgs/Header's stamp."""
    return time_ns(header.stamp)


def image_to_rgb(msg: Any) -> np.ndarray:
    """sensor_msgs/Image -> uint8 [height, width, 3] RGB; rgb8 is a view of msg.data.

    Raises ConversionError naming the encoding, size, step or length and what is allowed.
    """
    encoding = msg.encoding
    _refuse_large(f'{encoding} image', int(msg.width), int(msg.height))
    if encoding in _ORDERS:
        channels, order = _ORDERS[encoding]
        pixels = _pixels(msg, channels)
        return pixels if encoding == 'rgb8' else _reorder(pixels, order)
    if encoding in _WIDE:
        channels, order = _WIDE[encoding]
        wide = _pixels(msg, channels, '>u2' if msg.is_bigendian else '<u2')
        return _reorder(eight_bits(wide), order)
    if encoding in BAYER:
        return bayer_to_rgb(_pixels(msg, 1, least=3)[..., 0], BAYER[encoding])
    if encoding in YUV422:
        pixels = _pixels(msg, 2, even=True)
        return yuv422_to_rgb(pixels.reshape(msg.height, -1, 4), YUV422[encoding])
    if _CV_BRIDGE.fullmatch(msg.encoding):
        return _by_cv_bridge(msg)
    hints = {
        '16UC1': ': it is a depth image; name a colour camera topic',
        '32FC1': ': it is a depth image; name a colour camera topic',
        '8UC1': ': it does not say that it is a picture; set the camera driver to mono8',
        '8UC3': ': it does not say the order of its channels; set the driver to rgb8 or bgr8',
    }
    raise ConversionError(
        'bad_encoding',
        f'encoding {msg.encoding!r} cannot be used as a colour picture'
        f'{hints.get(msg.encoding, "")}. Allowed are {", ".join(ENCODINGS)}',
    )


def _refuse_large(what: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ConversionError(
            'bad_size',
            f'{what} is {width}x{height}: at most {MAX_PIXELS} pixels are allowed, '
            'set the camera driver to a smaller picture',
        )


def _pixels(
    msg: Any, channels: int, dtype: str = 'u1', *, least: int = 1, even: bool = False
) -> np.ndarray:
    """[height, width, channels] of dtype, a view of the data, rows cropped to the width."""
    height, width, step = int(msg.height), int(msg.width), int(msg.step)
    if height < least or width < least or (even and width % 2):
        need = f'at least {least}x{least}' + (' and of even width' if even else '')
        raise ConversionError(
            'bad_size', f'{msg.encoding} image is {width}x{height}: must be {need}'
        )
    row_bytes = width * channels * np.dtype(dtype).itemsize
    if step < row_bytes:
        raise ConversionError(
            'bad_step',
            f'step is {step} bytes: {width} pixels of {msg.encoding} need at least {row_bytes}',
        )
    data = np.frombuffer(msg.data, np.uint8)
    if data.size != step * height:
        raise ConversionError(
            'bad_length',
            f'data has {data.size} bytes: {height} rows of step {step} are {step * height}',
        )
    rows = data.reshape(height, step)[:, :row_bytes].view(dtype)
    return rows.reshape(height, width, channels)


def _reorder(pixels: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Contiguous uint8 [h, w, 3] of the chosen channels; three times as fast as fancy copies."""
    rgb = np.empty((*pixels.shape[:2], 3), np.uint8)
    for channel, source in enumerate(order):
        rgb[..., channel] = pixels[..., source]
    return rgb


def _by_cv_bridge(msg: Any) -> np.ndarray:
    try:
        from cv_bridge import CvBridge, CvBridgeError
    except ImportError as error:
        raise ConversionError(
            'bad_encoding',
            f'encoding {msg.encoding!r} needs cv_bridge, which is not installed here. Without it '
            f'allowed are {", ".join(ENCODINGS)}',
        ) from error
    row_bytes = msg.width * (2 if msg.encoding.endswith('16') else 1)
    if msg.step != row_bytes:  # cv_bridge may take the padding for pixels
        raise ConversionError(
            'bad_step',
            f'step is {msg.step} bytes: rows of {msg.encoding} must not be padded, '
            f'{row_bytes} bytes here',
        )
    try:
        return np.ascontiguousarray(CvBridge().imgmsg_to_cv2(msg, 'rgb8'))
    except (CvBridgeError, TypeError, ValueError) as error:
        raise ConversionError(
            'bad_encoding', f'cv_bridge cannot read encoding {msg.encoding!r}: {error}'
        ) from error


def compressed_to_rgb(msg: Any) -> np.ndarray:
    """sensor_msgs/CompressedImage (JPEG or PNG) -> uint8 [height, width, 3] RGB.

    Raises ConversionError for other formats, for depth, for more than MAX_PIXELS (before they are
    decoded), and for data that cannot be decoded.
    """
    words = msg.format.lower()
    if 'compresseddepth' in words:
        raise ConversionError(
            'bad_format',
            f'format {msg.format!r} is a compressedDepth image: name a colour camera topic',
        )
    if words.strip() and not re.search(r'jpe?g|png', words):
        raise ConversionError(
            'bad_format', f'format {msg.format!r} cannot be read: allowed are jpeg and png'
        )
    try:
        with Image.open(io.BytesIO(msg.data), formats=('JPEG', 'PNG')) as picture:
            _refuse_large(f'{picture.format} picture', *picture.size)
            if picture.mode in ('I', 'F') or picture.mode.startswith('I;'):
                raise ConversionError(
                    'bad_format',
                    f'format {msg.format!r} holds one channel of more than 8 bits, as depth '
                    'images do: name a colour camera topic',
                )
            return np.array(picture.convert('RGB'))
    except ConversionError:
        raise
    except UnidentifiedImageError as error:
        raise ConversionError(
            'corrupt_image', f'{len(msg.data)} bytes of format {msg.format!r} are no JPEG or PNG'
        ) from error
    except Image.DecompressionBombError as error:  # twice as many as Pillow allows
        raise ConversionError(
            'bad_size', f'{error}: at most {MAX_PIXELS} pixels are allowed'
        ) from error
    except _BROKEN as error:
        raise ConversionError(
            'corrupt_image',
            f'{len(msg.data)} bytes of format {msg.format!r} cannot be decoded: {error}',
        ) from error


def joint_vector(msg: Any, names: Sequence[str]) -> np.ndarray:
    """sensor_msgs/JointState -> float32 [len(names)] positions, looked up by name.

    Raises ConversionError that names missing, doubled or non-finite joints.
    """
    given = list(msg.name)
    positions = np.asarray(msg.position, np.float64)
    if positions.size != len(given):
        raise ConversionError(
            'bad_joint_state',
            f'joint state has {len(given)} names and {positions.size} positions: must be as many',
        )
    column = {name: index for index, name in enumerate(given)}
    if len(column) != len(given):
        twice = sorted({name for name in given if given.count(name) > 1})
        raise ConversionError(
            'bad_joint_state', f'joint state names {", ".join(twice)} more than once'
        )
    missing = [name for name in names if name not in column]
    if missing:
        raise ConversionError(
            'missing_joints',
            f'joint state lacks {", ".join(missing)} of the contract: it has {", ".join(given)}',
        )
    with np.errstate(over='ignore'):  # beyond float32 becomes inf, which is refused below
        vector = positions[[column[name] for name in names]].astype(np.float32)
    bad = [name for name, value in zip(names, vector, strict=True) if not np.isfinite(value)]
    if bad:
        raise ConversionError(
            'bad_joint_state', f'position of {", ".join(bad)} is not a finite number'
        )
    return vector


def instruction_text(msg: Any) -> str:
    """std_msgs/String -> the task, stripped; 1 to MAX_TEXT_CHARS characters."""
    text = msg.data.strip()
    if not text:
        raise ConversionError(
            'empty_instruction', 'instruction is empty: publish the task in words'
        )
    if len(text) > MAX_TEXT_CHARS:
        raise ConversionError(
            'long_instruction',
            f'instruction has {len(text)} characters: at most {MAX_TEXT_CHARS} are allowed',
        )
    return text


def request_from_msg(msg: Any) -> LanguageRequest:
    """oxygen_ros/LanguageRequest -> LanguageRequest.

    Numbers are passed on as they are: the policy refuses bad ones with a reason on the answer's
    topic. Raises ConversionError where there can be no such topic, or the prompt is too long.
    """
    task = msg.task or 'conversation'
    if not _TASK.fullmatch(task):
        raise ConversionError(
            'bad_request',
            f'task {task[:80]!r} of request {msg.id[:80]!r} names no topic: '
            'use letters, digits and _, beginning with a letter, at most 63',
        )
    if len(msg.prompt) > MAX_TEXT_CHARS:
        raise ConversionError(
            'bad_request',
            f'prompt of request {msg.id[:80]!r} has {len(msg.prompt)} characters: '
            f'at most {MAX_TEXT_CHARS} are allowed',
        )
    return LanguageRequest(
        request_id=msg.id,
        task=task,
        prompt=msg.prompt,
        max_tokens=int(msg.max_tokens),
        temperature=float(msg.temperature),
        top_p=float(msg.top_p),
        seed=int(msg.seed),
        priority=int(msg.priority),
        deadline_ns=time_ns(msg.deadline),
    )
