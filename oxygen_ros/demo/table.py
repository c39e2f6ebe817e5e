"""The simulated table in the terminal view: its picture in half blocks, and the score."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import Image
from std_msgs.msg import String

from oxygen_ros.ros import qos
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.ros.conversions import image_to_rgb
from oxygen_ros.tabletop import ROBOT
from oxygen_ros.tabletop.robot import SCORE

WIDTH = 44  # characters; a character shows two pixels, one above the other
_UPPER_HALF = '▀'


class Table:
    """What the overview camera sees and what the robot says of its own score."""

    def __init__(self, node: Node) -> None:
        self._lock = threading.Lock()
        self._picture: Image | None = None
        self._score: dict[str, Any] = {}
        overview = load_contract(ROBOT).cameras[0]
        node.create_subscription(Image, overview.topic, self._on_picture, qos.CAMERA)
        node.create_subscription(String, SCORE, self._on_score, qos.STATUS)

    def _on_picture(self, picture: Image) -> None:
        with self._lock:
            self._picture = picture

    def _on_score(self, score: String) -> None:
        with self._lock:
            self._score = json.loads(score.data)

    def summary(self) -> dict[str, Any]:
        """Counts of the whole run; nothing before the first score came."""
        with self._lock:
            return {key: value for key, value in self._score.items() if key != 'instruction'}

    def line(self) -> str:
        """Instruction and score in one line."""
        with self._lock:
            score = self._score
        if not score:
            return ''
        return (
            f'"{score["instruction"]}"   done {score["successes"]} of {score["episodes"]}   '
            f'answers right {score["answers_right"]} of {score["answers"]}'
        )

    def lines(self) -> list[str]:
        """The picture, for a terminal with 24-bit colours."""
        with self._lock:
            picture = self._picture
        return [] if picture is None else half_blocks(image_to_rgb(picture), WIDTH)


def half_blocks(picture: np.ndarray, width: int) -> list[str]:
    """uint8 [h, w, 3] -> lines of width characters, each of two pixels."""
    height = 2 * round(picture.shape[0] / picture.shape[1] * width / 2)
    rows = (np.arange(height) + 0.5) * picture.shape[0] / height
    columns = (np.arange(width) + 0.5) * picture.shape[1] / width
    small = picture[rows.astype(int)[:, None], columns.astype(int)[None]].tolist()
    pairs = zip(small[::2], small[1::2], strict=True)
    return [''.join(map(_cell, upper, lower)) + '\x1b[0m' for upper, lower in pairs]


def _cell(above: list[int], below: list[int]) -> str:
    upper, lower = (';'.join(map(str, pixel)) for pixel in (above, below))
    return f'\x1b[38;2;{upper};48;2;{lower}m{_UPPER_HALF}'
