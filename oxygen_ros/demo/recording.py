"""Writes the demo's recording: a rosbag2 folder of a small arm at work, deterministic by seed.

Run as `python -m oxygen_ros.demo.recording OUT --seconds 10`.
"""

from __future__ import annotations

import argparse
import io
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys.store import Typestore
from tqdm import tqdm

from oxygen_ros.demo.scene import Scene, View
from oxygen_ros.replay.bag import REQUEST_TYPE, typestore
from oxygen_ros.types import OxygenError

START_NS = 1_767_225_600_000_000_000  # 2026-01-01 00:00 UTC
CAMERA_HZ, STATE_HZ = 30, 100
WIDTH, HEIGHT = 320, 240
WRIST_OFFSET_NS = 8_000_000
# From a camera's stamp to the message's arrival in the recorder.
LATENCY_NS = {'base': 4_000_000, 'wrist': 6_000_000, 'state': 500_000}
JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow', 'wrist_pitch', 'wrist_roll', 'wrist_yaw',
          'gripper')  # fmt: skip
INSTRUCTION = 'put the red block on the tray'

BASE, WRIST = '/cameras/base/image_raw', '/cameras/wrist/image_raw/compressed'
STATE, TASK, REQUEST = '/joint_states', '/instruction', '/oxygen/language/request'
TYPES = {
    BASE: 'sensor_msgs/msg/Image',
    WRIST: 'sensor_msgs/msg/CompressedImage',
    STATE: 'sensor_msgs/msg/JointState',
    TASK: 'std_msgs/msg/String',
    REQUEST: REQUEST_TYPE,
}
# Asked in turn, one every REQUEST_PERIOD_S: (task, prompt, max tokens)
REQUESTS = (
    ('subtask', 'What is the next subtask?', 24),
    ('conversation', 'What is on the table?', 64),
    ('memory', 'What has been done so far?', 96),
)
REQUEST_BEGIN_S, REQUEST_PERIOD_S = 0.4, 0.25


class _Line(NamedTuple):
    """One message; order breaks ties of time."""

    time_ns: int
    order: int
    topic: str
    value: Any


def write_recording(
    path: str | Path, seconds: float = 10.0, seed: int = 0, *, storage: str = 'mcap'
) -> Path:
    """Write the recording to a new folder; storage is 'mcap' or 'sqlite3'. Returns the path.

    Raises OxygenError if the folder exists. A part that was written is removed on failure.
    """
    path = Path(path)
    if path.exists():
        raise OxygenError(f'recording {path} exists already: remove it or give another path')
    writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
    if storage == 'mcap':
        writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    store = typestore()
    try:
        with writer:
            connections = {
                topic: writer.add_connection(
                    topic, kind, typestore=store, offered_qos_profiles=[_qos(topic)]
                )
                for topic, kind in TYPES.items()
            }
            for line in _progress(_messages(store, seconds, seed), seconds):
                kind = TYPES[line.topic]
                data = store.serialize_cdr(line.value, kind)
                writer.write(connections[line.topic], line.time_ns, data)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Write the recording from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog='oxygen_ros.demo.recording', description="Write the demo's recording."
    )
    parser.add_argument('out', help='folder to make')
    parser.add_argument('--seconds', type=float, default=10.0)
    parser.add_argument('--seed', type=int, default=0)
    arguments = parser.parse_args(argv)
    try:
        write_recording(arguments.out, arguments.seconds, arguments.seed)
    except OxygenError as error:
        print(f'recording: {error}', file=sys.stderr)
        return 2
    return 0


def _progress(lines: Iterator[_Line], seconds: float) -> Iterator[_Line]:
    """The lines, with a bar in seconds of recording where stderr is a terminal."""
    form = 'recording {percentage:3.0f}%|{bar}|'
    with tqdm(total=seconds, bar_format=form, leave=False, disable=None) as bar:
        for line in lines:
            bar.update((line.time_ns - START_NS) / 1e9 - bar.n)
            yield line


def _messages(store: Typestore, seconds: float, seed: int) -> Iterator[_Line]:
    """Every message in the order of its record time; drawn only when it is its turn."""
    scene = Scene(seed)
    make = _Maker(store, scene)
    plan: list[tuple[int, int, str, int]] = [(START_NS, 0, TASK, 0)]
    for k in range(math.ceil(seconds * CAMERA_HZ)):
        stamp = START_NS + k * 1_000_000_000 // CAMERA_HZ
        plan.append((stamp + LATENCY_NS['base'], 2, BASE, stamp))
        late = stamp + WRIST_OFFSET_NS
        plan.append((late + LATENCY_NS['wrist'], 3, WRIST, late))
    for k in range(math.ceil(seconds * STATE_HZ)):
        stamp = START_NS + k * 1_000_000_000 // STATE_HZ
        plan.append((stamp + LATENCY_NS['state'], 1, STATE, stamp))
    count = max(0, math.ceil((seconds - REQUEST_BEGIN_S) / REQUEST_PERIOD_S))
    for k in range(count):
        time_ns = START_NS + round((REQUEST_BEGIN_S + k * REQUEST_PERIOD_S) * 1e9)
        plan.append((time_ns, 4, REQUEST, k))
    for time_ns, order, topic, key in sorted(plan):
        yield _Line(time_ns, order, topic, make(topic, key))


class _Maker:
    """Makes the messages. key is the stamp in ns, or the number of the request."""

    def __init__(self, store: Typestore, scene: Scene) -> None:
        self._types = store.types
        self._scene = scene

    def __call__(self, topic: str, key: int) -> Any:
        makers = {BASE: self._base, WRIST: self._wrist, STATE: self._state, REQUEST: self._request}
        if topic == TASK:
            return self._types['std_msgs/msg/String'](INSTRUCTION)
        return makers[topic](key)

    def _header(self, stamp_ns: int, frame: str) -> Any:
        seconds, nanoseconds = divmod(stamp_ns, 1_000_000_000)
        stamp = self._types['builtin_interfaces/msg/Time'](seconds, nanoseconds)
        return self._types['std_msgs/msg/Header'](stamp, frame)

    def _base(self, stamp_ns: int) -> Any:
        moment = self._scene.at((stamp_ns - START_NS) / 1e9)
        rgb = self._scene.draw(moment, View((0.0, 0.24), 0.8, WIDTH, HEIGHT))
        header = self._header(stamp_ns, 'base_camera')
        return self._types[TYPES[BASE]](
            header, HEIGHT, WIDTH, 'rgb8', 0, 3 * WIDTH, rgb.reshape(-1)
        )

    def _wrist(self, stamp_ns: int) -> Any:
        moment = self._scene.at((stamp_ns - START_NS) / 1e9)
        rgb = self._scene.draw(moment, View(moment.tip, 0.28, WIDTH, HEIGHT))
        out = io.BytesIO()
        Image.fromarray(rgb).save(out, 'JPEG', quality=85)
        data = np.frombuffer(out.getvalue(), np.uint8)
        header = self._header(stamp_ns, 'wrist_camera')
        return self._types[TYPES[WRIST]](header, 'rgb8; jpeg compressed bgr8', data)

    def _state(self, stamp_ns: int) -> Any:
        joints = self._scene.at((stamp_ns - START_NS) / 1e9).joints
        none = np.zeros(0)
        return self._types[TYPES[STATE]](
            self._header(stamp_ns, ''), list(JOINTS), joints, none, none
        )

    def _request(self, number: int) -> Any:
        task, prompt, tokens = REQUESTS[number % len(REQUESTS)]
        return self._types[REQUEST_TYPE](
            id=f'{task}-{number // len(REQUESTS)}',
            task=task,
            prompt=prompt,
            max_tokens=tokens,
            temperature=0.0,
            top_p=1.0,
            seed=number,
            priority=0,
            deadline=self._types['builtin_interfaces/msg/Duration'](0, 0),
        )


def _qos(topic: str) -> Qos:
    """Reliable, the last few; the instruction is latched for those who come later."""
    endless = QosTime(2147483647, 4294967295)
    latched = topic == TASK
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=1 if latched else 10,
        reliability=QosReliability.RELIABLE,
        durability=QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        deadline=endless,
        lifespan=endless,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=endless,
        avoid_ros_namespace_conventions=False,
    )


if __name__ == '__main__':
    sys.exit(main())
