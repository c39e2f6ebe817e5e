"""Small bags for tests: messages by short calls, written by the real rosbag2 writer."""

import io

import numpy as np
from PIL import Image
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

from oxygen_ros.demo.recording import JOINTS
from oxygen_ros.replay.bag import REQUEST_TYPE, typestore

MS = 1_000_000
T0 = 1_000_000_000_000
STORE = typestore()
TYPES = STORE.types

BASE = '/cameras/base/image_raw'
WRIST = '/cameras/wrist/image_raw/compressed'
STATE = '/joint_states'
TASK = '/instruction'
REQUEST = '/oxygen/language/request'
CANCEL = '/oxygen/language/cancel'
KIND = {
    BASE: 'sensor_msgs/msg/Image',
    WRIST: 'sensor_msgs/msg/CompressedImage',
    STATE: 'sensor_msgs/msg/JointState',
    TASK: 'std_msgs/msg/String',
    REQUEST: REQUEST_TYPE,
    CANCEL: 'std_msgs/msg/String',
}


def write_bag(path, lines, storage='mcap', kinds=KIND, topics=(), compress=''):
    """lines: (topic, time in ms, message or raw bytes). topics: declared though without lines.

    compress: 'file', 'message' or 'storage' (the chunks of an mcap), all with zstd.
    """
    writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
    if compress:
        writer.set_compression(CompressionMode[compress.upper()], CompressionFormat.ZSTD)
    with writer:
        names = dict.fromkeys([*topics, *(line[0] for line in lines)])
        connections = {
            topic: writer.add_connection(topic, kinds[topic], typestore=STORE) for topic in names
        }
        for topic, time_ms, value in lines:
            raw = isinstance(value, bytes)
            data = value if raw else STORE.serialize_cdr(value, kinds[topic])
            writer.write(connections[topic], T0 + round(time_ms * MS), data)
    return path


def damage(path):
    """Overwrite the length of the first record of an mcap's first chunk; its index stays sound."""
    file = path / f'{path.name}.mcap'
    data = bytearray(file.read_bytes())
    at = data.index(b'std_msgs/msg/String') - 14
    data[at : at + 8] = b'\xff' * 8
    file.write_bytes(data)


def header(stamp_ms):
    stamp = 0 if stamp_ms is None else T0 + round(stamp_ms * MS)
    time = TYPES['builtin_interfaces/msg/Time'](*divmod(stamp, 1_000_000_000))
    return TYPES['std_msgs/msg/Header'](time, '')


def pixels(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def image(stamp_ms, seed=0, encoding='rgb8'):
    data = pixels(seed).reshape(-1)
    return TYPES[KIND[BASE]](header(stamp_ms), 24, 32, encoding, 0, 96, data)


def compressed(stamp_ms, seed=0, text='png'):
    out = io.BytesIO()
    Image.fromarray(pixels(seed)).save(out, 'PNG')
    return TYPES[KIND[WRIST]](header(stamp_ms), text, np.frombuffer(out.getvalue(), np.uint8))


def joint_state(stamp_ms, names=JOINTS, values=None):
    position = np.linspace(-0.4, 0.4, len(names)) if values is None else np.asarray(values)
    none = np.zeros(0)
    return TYPES[KIND[STATE]](header(stamp_ms), list(names), position, none, none)


def string(text):
    return TYPES['std_msgs/msg/String'](text)


def request(request_id, task='conversation', max_tokens=6, temperature=0.0, deadline_ms=0):
    deadline = divmod(deadline_ms * MS, 1_000_000_000)
    return TYPES[REQUEST_TYPE](
        id=request_id, task=task, prompt='what now?', max_tokens=max_tokens,
        temperature=temperature, top_p=1.0, seed=0, priority=0,
        deadline=TYPES['builtin_interfaces/msg/Duration'](*deadline),
    )  # fmt: skip


def session(frames=4, period_ms=33, extra=()):
    """Lines of a sound recording: an instruction, joint states, frames of both cameras."""
    lines = [(TASK, 0, string('pick up the cup')), (STATE, 1, joint_state(1))]
    for k in range(frames):
        at = 10 + k * period_ms
        lines += [
            (STATE, at, joint_state(at)),
            (BASE, at, image(at, seed=k)),
            (WRIST, at + 2, compressed(at + 2, seed=100 + k)),
        ]
    return sorted([*lines, *extra], key=lambda line: line[1])
