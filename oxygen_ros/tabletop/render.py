"""What the three cameras see, drawn in NumPy for many scenes at once.

The overview looks at the whole table, a little from the front; the wrists look straight down and
travel with the gripper, the left one close, the right one wide. Edges are soft: a shape half
over a pixel colours half of it, so places finer than a pixel can be seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxygen_ros.tabletop.tasks import COLOURS
from oxygen_ros.tabletop.world import BLOCK, NOTHING, TRAY_SIZE, Scenes
from oxygen_ros.types import Observation

CAMERAS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
SIZE = 56  # pixels of a side
PAINT = {
    'red': (208, 44, 40),
    'green': (48, 160, 72),
    'blue': (44, 92, 204),
    'yellow': (238, 204, 48),
    'purple': (146, 60, 176),
}
_TABLE, _TRAY, _RIM = (172, 150, 124), (120, 128, 136), (84, 92, 100)
_FINGER, _BEAM, _SHADOW, _EDGE = (36, 38, 44), (212, 216, 222), (60, 50, 40), (235, 235, 235)
_COLOURS = np.array([PAINT[colour] for colour in COLOURS], np.float32)


@dataclass(frozen=True)
class _View:
    """Where a camera looks, per scene: left edge and top edge [N], metres per pixel [N].

    rise: how far up in the picture a metre of height is moved, in metres.
    """

    left: np.ndarray
    top: np.ndarray
    pixel: np.ndarray
    rise: float


def render(scenes: Scenes, cameras: tuple[str, ...] = CAMERAS, size: int = SIZE) -> np.ndarray:
    """Pictures of each scene, uint8 [N, cameras, size, size, 3] RGB."""
    pictures = [_picture(scenes, _view(scenes, camera, size), size) for camera in cameras]
    return np.stack(pictures, 1)


def observations(
    scenes: Scenes, instructions: list[str], cameras: tuple[str, ...] = CAMERAS, stamp_ns: int = 0
) -> list[Observation]:
    """Each scene as the robot sees it now."""
    pictures = render(scenes, cameras)
    return [
        Observation(
            images=dict(zip(cameras, shown, strict=True)),
            state=joints.astype(np.float32),
            instruction=text,
            stamp_ns=stamp_ns,
        )
        for shown, joints, text in zip(pictures, scenes.joints, instructions, strict=True)
    ]


def block_pixels(scenes: Scenes, camera: str, size: int = SIZE) -> np.ndarray:
    """Where the middle of each block is in a picture: column and row [N, colours, 2].

    NaN for a block that is not there or out of the picture.
    """
    view = _view(scenes, camera, size)
    held = np.arange(len(COLOURS))[None] == scenes.held[:, None]
    height = view.rise * held * scenes.joints[:, 2:3]
    across = (scenes.blocks[..., 0] - view.left[:, None]) / view.pixel[:, None]
    down = (view.top[:, None] - scenes.blocks[..., 1] - height) / view.pixel[:, None]
    places = np.stack([across, down], 2)
    shown = scenes.present & ((places >= 0) & (places < size)).all(2)
    return np.where(shown[..., None], places, np.nan)


def _view(scenes: Scenes, camera: str, size: int) -> _View:
    x, y, z = scenes.joints[:, 0], scenes.joints[:, 1], scenes.joints[:, 2]
    if camera == 'base_0_rgb':
        width, x, y, rise = np.full(len(x), 0.54), np.zeros_like(x), np.full(len(x), 0.02), 0.3
    elif camera == 'left_wrist_0_rgb':
        width, rise = 0.13 + 0.7 * z, 0.0
    else:
        width, x, rise = 0.26 + 0.7 * z, x + 0.02, 0.0
    return _View(x - width / 2, y + width / 2, width / size, rise)


def _picture(scenes: Scenes, view: _View, size: int) -> np.ndarray:
    """uint8 [N, size, size, 3], from the table up to the beam above all."""
    canvas = _Canvas(view, len(scenes), size)
    joints = scenes.joints
    for x in (-0.21, 0.21):
        canvas.box(np.full(len(scenes), x), np.zeros(len(scenes)), 0.006, 0.5, _EDGE, 0.6)
    for side in (0, 1):
        centre = scenes.trays[:, side]
        canvas.box(centre[:, 0], centre[:, 1], *TRAY_SIZE, _RIM)
        canvas.box(centre[:, 0], centre[:, 1], TRAY_SIZE[0] - 0.014, TRAY_SIZE[1] - 0.014, _TRAY)
    _blocks(canvas, scenes)
    _gripper(canvas, joints)
    return canvas.rgb(scenes.light)


def _blocks(canvas: _Canvas, scenes: Scenes) -> None:
    """Each with a shadow; one that is held is lifted with the gripper."""
    rows = np.arange(len(scenes))
    lying = scenes.present.copy()
    holding = scenes.held != NOTHING
    lying[rows[holding], scenes.held[holding]] = False
    # Scenes have different colours: the k-th block of each is drawn in one stroke.
    order = np.argsort(~lying, axis=1, kind='stable')
    for k in range(int(lying.sum(1).max(initial=0))):
        colour = order[:, k]
        shown = lying[rows, colour].astype(np.float32)
        x, y = scenes.blocks[rows, colour].T
        canvas.box(x + 0.004, y - 0.005, BLOCK, BLOCK, _SHADOW, 0.4 * shown)
        canvas.block(x, y, np.zeros(len(rows)), _COLOURS[colour], shown)
    shadow = 0.45 * holding.astype(np.float32)
    x, y, z = scenes.joints[:, :3].T
    canvas.box(x + 0.004 + z / 3, y - 0.005, BLOCK, BLOCK, _SHADOW, shadow)
    held = np.maximum(scenes.held, 0)
    canvas.block(x, y, z, _COLOURS[held], holding.astype(np.float32))


def _gripper(canvas: _Canvas, joints: np.ndarray) -> None:
    """Two fingers, their shadow, the palm between them and the beam that carries it."""
    x, y, z, opening = joints.T
    gap = 0.012 + 0.022 * opening
    for side in (-1, 1):
        finger = x + side * gap
        canvas.box(finger + 0.004 + z / 3, y - 0.005, 0.012, 0.026, _SHADOW, 0.35)
        canvas.box(finger, y, 0.012, 0.026, _FINGER, 1.0, z + 0.03)
    canvas.box(x, y, 2 * gap, 0.007, _FINGER, 0.9, z + 0.05)
    if canvas.rise:
        canvas.box(np.zeros_like(x), y + 0.012, 0.54, 0.008, _BEAM, 0.5, z + 0.06)


class _Canvas:
    """Float pictures, colour by colour [3, N, size, size], on which boxes are painted."""

    def __init__(self, view: _View, count: int, size: int) -> None:
        self.rise = view.rise
        steps = np.arange(size) + 0.5
        self._x = (view.left[:, None] + steps * view.pixel[:, None]).astype(np.float32)
        self._y = (view.top[:, None] - steps * view.pixel[:, None]).astype(np.float32)
        self._pixel = view.pixel[:, None].astype(np.float32)
        grain = 1.0 + 0.03 * np.sin(self._y * 160.0)
        self._picture = np.empty((3, count, size, size), np.float32)
        self._picture[:] = grain[None, :, :, None]
        self._picture *= np.array(_TABLE, np.float32)[:, None, None, None]

    def rgb(self, light: np.ndarray) -> np.ndarray:
        """Under a lamp of gain light [N, 3]: uint8 [N, size, size, 3]."""
        lit = self._picture * light.T[:, :, None, None].astype(np.float32)
        return np.ascontiguousarray(np.minimum(lit, 255).astype(np.uint8).transpose(1, 2, 3, 0))

    def box(
        self,
        x: np.ndarray,
        y: np.ndarray,
        width: np.ndarray | float,
        depth: float,
        colour: tuple[int, ...] | np.ndarray,
        alpha: np.ndarray | float = 1.0,
        z: np.ndarray | float = 0.0,
    ) -> None:
        """A box around x, y [N] at height z; colour [3] or [N, 3], alpha a number or [N]."""
        across = self._cover(self._x, x, width) * np.reshape(alpha, (-1, 1)).astype(np.float32)
        along = self._cover(self._y, y + self.rise * np.asarray(z), depth)
        columns, rows = _span(across), _span(along)  # outside nothing changes
        share = along[:, rows, None] * across[:, None, columns]
        for plane, paint in zip(self._picture, np.asarray(colour, np.float32).T, strict=True):
            part = plane[:, rows, columns]
            part += share * (np.reshape(paint, (-1, 1, 1)) - part)

    def block(
        self, x: np.ndarray, y: np.ndarray, z: np.ndarray, colour: np.ndarray, alpha: np.ndarray
    ) -> None:
        """A cube: its front darker, its top lighter."""
        self.box(x, y, BLOCK, BLOCK, colour * 0.72, alpha, z)
        self.box(x, y + 0.002, BLOCK - 0.008, BLOCK - 0.008, colour, alpha, z + 0.01)

    def _cover(
        self, grid: np.ndarray, centre: np.ndarray, width: np.ndarray | float
    ) -> np.ndarray:
        """How much of each pixel's side [N, size] lies within width of a centre [N]."""
        half = np.reshape(np.asarray(width) / 2, (-1, 1)).astype(np.float32)
        away = np.abs(grid - centre[:, None].astype(np.float32))
        return np.clip((half - away) / self._pixel + 0.5, 0.0, 1.0)


def _span(cover: np.ndarray) -> slice:
    """Pixels between the first and the last that any scene covers; cover [N, size]."""
    covered = np.flatnonzero(cover.any(0))
    return slice(covered[0], covered[-1] + 1) if covered.size else slice(0)
