"""A small arm that carries a red block over a table, drawn from above in plain NumPy.

Lengths in metres on the table: x to the right, y away from the arm's base, z up. Angles in rad.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Point = tuple[float, float]
Colour = tuple[int, int, int]

PERIOD_S = 8.0
UPPER_ARM, FOREARM, SHOULDER_Z, HAND = 0.30, 0.30, 0.16, 0.10
RED, GREEN, BLUE = (206, 52, 44), (60, 160, 84), (52, 96, 190)
YELLOW, TRAY, STEEL, DARK = (240, 196, 60), (122, 134, 148), (214, 218, 222), (52, 56, 64)

# (s, x, y, z, gripper opening 0..1); x and y of None are where the block lies or shall lie
_SCRIPT = (
    (0.0, (0.0, 0.30), 0.20, 1.0),
    (1.2, 'from', 0.14, 1.0),
    (2.0, 'from', 0.02, 1.0),
    (2.5, 'from', 0.02, 0.35),
    (3.2, 'from', 0.16, 0.35),
    (4.6, 'to', 0.16, 0.35),
    (5.2, 'to', 0.03, 0.35),
    (5.7, 'to', 0.03, 1.0),
    (6.4, 'to', 0.16, 1.0),
    (PERIOD_S, (0.0, 0.30), 0.20, 1.0),
)
_GRASP_S, _RELEASE_S = 2.5, 5.2


@dataclass(frozen=True)
class View:
    """A camera that looks straight down. centre and width_m on the table, size in pixels."""

    centre: Point
    width_m: float
    width: int
    height: int


@dataclass(frozen=True)
class Moment:
    """Where everything is at one time. joints: float64 [7], as in config/robots/demo.yaml."""

    joints: np.ndarray
    elbow: Point
    tip: Point
    tip_z: float
    grip: float
    red: Point
    ball: Point
    blue_angle: float


class Scene:
    """The scripted world; the seed moves the block and the tray."""

    def __init__(self, seed: int = 0) -> None:
        shift = np.random.default_rng(seed).uniform(-0.025, 0.025, 4)
        self._home: Point = (0.17 + float(shift[0]), 0.33 + float(shift[1]))
        self.tray: Point = (-0.20 + float(shift[2]), 0.31 + float(shift[3]))

    def at(self, time_s: float) -> Moment:
        """The world at a time; odd rounds carry the block back."""
        turn, phase = divmod(time_s, PERIOD_S)
        ends = (self._home, self.tray) if turn % 2 == 0 else (self.tray, self._home)
        tip, z, grip = _hand(phase, *ends)
        red = tip if _GRASP_S <= phase < _RELEASE_S else ends[phase >= _RELEASE_S]
        joints, elbow = _joints(tip, z, grip, time_s)
        swing = 2 * math.pi * time_s / 5.0
        ball = (0.03 + 0.10 * math.cos(swing), 0.47 + 0.03 * math.sin(swing))
        return Moment(joints, elbow, tip, z, grip, red, ball, 0.6 * math.sin(swing / 2))

    def draw(self, moment: Moment, view: View) -> np.ndarray:
        """Uint8 [height, width, 3] RGB."""
        canvas = _Canvas(view)
        canvas.block(self.tray, 0.12, 0.10, 0.0, TRAY, radius=0.02)
        canvas.block(self.tray, 0.10, 0.08, 0.0, (150, 161, 174), radius=0.015, shadow=0.0)
        canvas.block((-0.05, 0.40), 0.05, 0.05, moment.blue_angle, BLUE)
        canvas.block((0.27, 0.44), 0.045, 0.07, 0.4, GREEN)
        canvas.ball(moment.ball, 0.022, YELLOW)
        canvas.block(moment.red, 0.05, 0.05, 0.15, RED)
        _draw_arm(canvas, moment)
        return canvas.rgb()


def _hand(phase: float, start: Point, end: Point) -> tuple[Point, float, float]:
    """Tip, height and gripper opening, eased between the script's lines."""
    at = next(i for i, line in enumerate(_SCRIPT[1:]) if phase <= line[0])
    (t0, place0, z0, grip0), (t1, place1, z1, grip1) = _SCRIPT[at : at + 2]
    share = (phase - t0) / (t1 - t0)
    share = share * share * (3 - 2 * share)
    ends = {'from': start, 'to': end}
    a, b = (ends[place] if isinstance(place, str) else place for place in (place0, place1))

    def mix(low: float, high: float) -> float:
        return low + (high - low) * share

    return (mix(a[0], b[0]), mix(a[1], b[1])), mix(z0, z1), mix(grip0, grip1)


def _joints(tip: Point, z: float, grip: float, time_s: float) -> tuple[np.ndarray, Point]:
    """Joint angles that put the tip there with the hand pointing down, and the elbow's place."""
    reach = math.hypot(*tip)
    rise = z + HAND - SHOULDER_Z
    bend = (reach**2 + rise**2 - UPPER_ARM**2 - FOREARM**2) / (2 * UPPER_ARM * FOREARM)
    elbow = -math.acos(max(-1.0, min(1.0, bend)))
    inner = math.atan2(FOREARM * math.sin(elbow), UPPER_ARM + FOREARM * math.cos(elbow))
    lift = math.atan2(rise, reach) - inner
    pan = math.atan2(tip[0], tip[1])
    roll = 0.1 * math.sin(2 * math.pi * time_s / 6.0)
    pitch = -math.pi / 2 - lift - elbow
    joints = np.array([pan, lift, elbow, pitch, roll, -pan, 0.8 * (1.0 - grip)])
    out = UPPER_ARM * math.cos(lift)
    return joints, (out * math.sin(pan), out * math.cos(pan))


def _draw_arm(canvas: _Canvas, moment: Moment) -> None:
    """Base, two links, and a hand whose fingers open across the arm's direction."""
    canvas.ball((0.0, 0.0), 0.06, DARK)
    canvas.link((0.0, 0.0), moment.elbow, 0.026, STEEL, lift=0.05)
    canvas.link(moment.elbow, moment.tip, 0.020, STEEL, lift=0.04)
    canvas.ball((0.0, 0.0), 0.035, (92, 98, 108))
    canvas.ball(moment.elbow, 0.022, DARK)
    angle = math.atan2(moment.tip[0], moment.tip[1])
    across = (math.cos(angle), -math.sin(angle))
    for side in (-1, 1):
        gap = side * (0.018 + 0.022 * moment.grip)
        finger = (moment.tip[0] + gap * across[0], moment.tip[1] + gap * across[1])
        canvas.block(finger, 0.012, 0.05, -angle, DARK, shadow=0.01 + moment.tip_z / 4)
    canvas.ball(moment.tip, 0.014, (92, 98, 108))


class _Canvas:
    """Float picture of the wooden table, on which shapes are painted with soft edges."""

    def __init__(self, view: View) -> None:
        self._pixel_m = view.width_m / view.width
        columns = (np.arange(view.width) + 0.5) * self._pixel_m
        rows = (np.arange(view.height) + 0.5) * self._pixel_m
        height_m = view.height * self._pixel_m
        self._x = (columns + view.centre[0] - view.width_m / 2).astype(np.float32)
        self._y = (view.centre[1] + height_m / 2 - rows).astype(np.float32)
        self._picture = self._table()

    def rgb(self) -> np.ndarray:
        """Uint8 [h, w, 3]."""
        return self._picture.astype(np.uint8)

    def _table(self) -> np.ndarray:
        """Boards along x with a faint grain; brighter away from the base."""
        board = np.floor(self._y / 0.09)
        grain = np.sin(self._y * 310 + 2 * np.sin(self._y * 47)) * 5
        row = 1.0 + 0.05 * np.sin(board * 2.4) + 0.12 * self._y + grain / 255
        seam = np.abs(self._y / 0.09 - board - 0.5) > 0.485
        shade = (row * np.where(seam, 0.8, 1.0))[:, None, None]
        waves = 1.0 + 0.02 * np.sin(self._x * 21 + 1.0)[None, :, None]
        wood = np.array([186, 152, 112], np.float32)
        return np.clip(wood * shade * waves, 0, 255).astype(np.float32)

    def block(
        self,
        centre: Point,
        width: float,
        depth: float,
        angle: float,
        colour: Colour,
        *,
        radius: float = 0.006,
        shadow: float = 0.012,
    ) -> None:
        """A box seen from above, turned by angle, with rounded corners."""

        def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            across = np.abs(x * math.cos(angle) + y * math.sin(angle)) - width / 2 + radius
            along = np.abs(y * math.cos(angle) - x * math.sin(angle)) - depth / 2 + radius
            outside = np.hypot(np.maximum(across, 0), np.maximum(along, 0))
            return outside + np.minimum(np.maximum(across, along), 0) - radius

        self._shaded(distance, centre, math.hypot(width, depth) / 2, colour, shadow)

    def ball(self, centre: Point, radius: float, colour: Colour, shadow: float = 0.012) -> None:
        """A disc with a bright spot."""
        self._shaded(lambda x, y: np.hypot(x, y) - radius, centre, radius, colour, shadow)
        bright = tuple(min(255, c + 50) for c in colour)
        spot = (centre[0] - radius / 3, centre[1] + radius / 3)
        self._paint(lambda x, y: np.hypot(x, y) - radius / 3, spot, radius, bright, 0.6)

    def link(self, start: Point, end: Point, radius: float, colour: Colour, lift: float) -> None:
        """A rounded bar from start to end."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        square = max(dx * dx + dy * dy, 1e-9)

        def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            share = np.clip((x * dx + y * dy) / square + 0.5, 0, 1) - 0.5
            return np.hypot(x - share * dx, y - share * dy) - radius

        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        self._shaded(distance, middle, math.sqrt(square) / 2 + radius, colour, lift)

    def _shaded(
        self,
        distance: Callable[[np.ndarray, np.ndarray], np.ndarray],
        centre: Point,
        extent: float,
        colour: Colour,
        lift: float,
    ) -> None:
        """A shape with a shadow, a darker rim and a lighter face."""
        if lift:
            self._paint(distance, (centre[0] + lift, centre[1] - lift), extent, (30, 24, 18), 0.3)
        rim = tuple(int(0.7 * c) for c in colour)
        self._paint(distance, centre, extent, rim, 1.0)
        self._paint(lambda x, y: distance(x, y) + 0.004, centre, extent, colour, 1.0)

    def _paint(
        self,
        distance: Callable[[np.ndarray, np.ndarray], np.ndarray],
        centre: Point,
        extent: float,
        colour: tuple[int, ...],
        alpha: float,
    ) -> None:
        """Blend a colour where distance(x, y) is negative; x, y relative to centre."""
        reach = extent + 2 * self._pixel_m
        columns = np.flatnonzero(np.abs(self._x - centre[0]) < reach)
        rows = np.flatnonzero(np.abs(self._y - centre[1]) < reach)
        if not columns.size or not rows.size:
            return
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        x = (self._x[box[1]] - centre[0])[None, :]
        y = (self._y[box[0]] - centre[1])[:, None]
        share = np.clip(0.5 - distance(x, y) / self._pixel_m, 0, 1)[..., None] * alpha
        self._picture[box] += share * (np.array(colour, np.float32) - self._picture[box])
