"""Small pictures of the frames that words speak of, read from the bag once more."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection

from PIL import Image

from oxygen_ros.replay.bag import Bag, Message
from oxygen_ros.replay.outcome import Frame
from oxygen_ros.replay.sources import Source, Sources
from oxygen_ros.ros.conversions import ConversionError, compressed_to_rgb, image_to_rgb
from oxygen_ros.types import OxygenError

WIDTH, QUALITY = 160, 70


def pictures(
    path: object, sources: Sources, frames: Collection[Frame]
) -> dict[int, dict[str, str]]:
    """Frame number -> camera -> JPEG as a data URI, of the images that made the frame whole.

    What cannot be read is left out: a page without a picture is better than none.
    """
    cameras = {t: s for t, s in sources.by_topic.items() if s.kind in ('image', 'compressed')}
    waiting = sorted(frames, key=lambda frame: frame.time_ns)
    newest: dict[str, tuple[Source, Message]] = {}
    found: dict[int, dict[str, str]] = {}
    try:
        with Bag(str(path)) as bag:
            for message in bag.messages(cameras):
                while waiting and waiting[0].time_ns < message.time_ns:
                    frame = waiting.pop(0)
                    found[frame.frame] = _thumbnails(newest, frame)
                if not waiting:
                    break
                if message.value is not None:
                    source = cameras[message.topic]
                    newest[source.slot] = source, message
    except OxygenError:  # damaged further on, which the report says already
        pass
    for frame in waiting:
        found[frame.frame] = _thumbnails(newest, frame)
    return found


def _thumbnails(newest: dict[str, tuple[Source, Message]], frame: Frame) -> dict[str, str]:
    found = {}
    for slot, (source, message) in newest.items():
        if slot not in frame.cameras:
            continue
        try:
            convert = compressed_to_rgb if source.kind == 'compressed' else image_to_rgb
            picture = Image.fromarray(convert(message.value))
        except ConversionError:  # not the one that was used
            continue
        picture.thumbnail((WIDTH, WIDTH))
        out = io.BytesIO()
        picture.save(out, 'JPEG', quality=QUALITY)
        found[slot] = 'data:image/jpeg;base64,' + base64.b64encode(out.getvalue()).decode('ascii')
    return found
