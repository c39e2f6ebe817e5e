"""Messages to arrays and texts; C.. names are cases of field reports. Needs no rclpy."""

import array
import io
import math
import struct
import zlib
from types import SimpleNamespace as Msg

import numpy as np
import pytest
from PIL import Image
from rosbags.typesys import Stores, get_typestore

from oxygen_ros.ros import conversions
from oxygen_ros.ros.conversions import (
    MAX_TEXT_CHARS,
    ConversionError,
    compressed_to_rgb,
    image_to_rgb,
    instruction_text,
    joint_vector,
    request_from_msg,
    stamp_ns,
)

RNG = np.random.default_rng(5)


def image(pixels, encoding, *, step=None, kind=array.array):
    """A message of uint8 [h, w, c] pixels; data as rclpy or as a bag reader gives it."""
    height, width, channels = pixels.shape
    step = width * channels if step is None else step
    rows = np.full((height, step), 0xAA, np.uint8)
    rows[:, : width * channels] = pixels.reshape(height, -1)
    data = rows.reshape(-1) if kind is np.ndarray else array.array('B', rows.tobytes())
    return Msg(height=height, width=width, encoding=encoding, step=step, data=data,
               is_bigendian=0)  # fmt: skip


def noise(height=48, width=64, channels=3):
    return RNG.integers(0, 256, (height, width, channels), dtype=np.uint8)


def refusal(call, *arguments):
    with pytest.raises(ConversionError) as caught:
        call(*arguments)
    return caught.value.reason, str(caught.value)


def test_stamp():
    assert stamp_ns(Msg(stamp=Msg(sec=2, nanosec=5))) == 2_000_000_005


@pytest.mark.parametrize('kind', [array.array, np.ndarray])
def test_rgb8_is_a_view_of_the_message(kind):
    pixels = noise()
    msg = image(pixels, 'rgb8', kind=kind)
    rgb = image_to_rgb(msg)
    assert rgb.dtype == np.uint8 and np.array_equal(rgb, pixels)
    assert np.shares_memory(rgb, np.frombuffer(msg.data, np.uint8))


BYTES = {'rgb8': 3, 'bgr8': 3, 'rgba8': 4, 'bgra8': 4, 'mono8': 1, 'rgb16': 6, 'bgr16': 6,
         'rgba16': 8, 'bgra16': 8, 'mono16': 2, 'bayer_rggb8': 1, 'bayer_grbg8': 1,
         'bayer_gbrg8': 1, 'bayer_bggr8': 1, 'yuv422': 2, 'uyvy': 2, 'yuv422_yuy2': 2,
         'yuyv': 2}  # fmt: skip


def test_every_encoding_is_tested():
    assert set(BYTES) == set(conversions.ENCODINGS)


@pytest.mark.parametrize(('encoding', 'channels'), BYTES.items())
def test_c01_padded_rows_equal_unpadded(encoding, channels):
    pixels = noise(480, 640, channels)
    step = 640 * channels + 63
    assert np.array_equal(
        image_to_rgb(image(pixels, encoding, step=step)), image_to_rgb(image(pixels, encoding))
    )


def test_c05_red_is_red_in_every_encoding():
    red = np.zeros((4, 6, 4), np.uint8)
    red[..., 0], red[..., 3] = 255, 255
    blue_first = red[..., [2, 1, 0, 3]]
    for pixels, encoding in [
        (red[..., :3], 'rgb8'),
        (blue_first[..., :3], 'bgr8'),
        (red, 'rgba8'),
        (blue_first, 'bgra8'),
    ]:
        rgb = image_to_rgb(image(pixels, encoding))
        assert rgb.flags.c_contiguous
        assert np.array_equal(rgb, red[..., :3]), encoding


def test_c04_same_bytes_under_three_names():
    pixels = noise(10, 12, 1)
    assert np.array_equal(image_to_rgb(image(pixels, 'mono8')), np.repeat(pixels, 3, axis=2))
    reason, text = refusal(image_to_rgb, image(pixels, '8UC1'))
    assert reason == 'bad_encoding' and 'mono8' in text
    reason, text = refusal(image_to_rgb, image(noise(), '8UC3'))
    assert reason == 'bad_encoding' and "'8UC3'" in text and 'order of its channels' in text


@pytest.mark.parametrize('encoding', ['16UC1', '32FC1'])
def test_c03_depth_on_a_colour_camera(encoding):
    reason, text = refusal(image_to_rgb, image(noise(4, 4, 2), encoding))
    assert reason == 'bad_encoding'
    assert encoding in text and 'depth' in text and 'rgb8, bgr8' in text


@pytest.mark.parametrize('encoding', ['', 'RGB8', 'jpeg', '8UC4', 'bayer_rggb', 'mono1616'])
def test_unknown_encoding_lists_the_allowed(encoding):
    reason, text = refusal(image_to_rgb, image(noise(), encoding))
    assert reason == 'bad_encoding' and repr(encoding) in text
    assert 'rgb8, bgr8, rgba8, bgra8, mono8' in text


def test_colour_encoding_that_needs_cv_bridge():
    try:
        import cv_bridge  # noqa: F401
    except ImportError:
        reason, text = refusal(image_to_rgb, image(noise(4, 4, 2), 'bayer_rggb16'))
        assert reason == 'bad_encoding' and 'cv_bridge' in text and 'rgb8' in text
    else:
        assert image_to_rgb(image(noise(4, 4, 2), 'bayer_rggb16')).shape == (4, 4, 3)


@pytest.mark.parametrize(('encoding', 'channels'), BYTES.items())
def test_the_same_as_cv_bridge_to_the_last_bit(encoding, channels):
    cv_bridge = pytest.importorskip('cv_bridge', reason='cv_bridge is of a ROS distribution')
    msg = image(noise(48, 64, channels), encoding)
    theirs = cv_bridge.CvBridge().imgmsg_to_cv2(msg, 'rgb8')
    assert np.array_equal(image_to_rgb(msg), theirs)


@pytest.mark.parametrize('order', ['<u2', '>u2'])
@pytest.mark.parametrize('encoding', ['rgb16', 'bgr16', 'rgba16', 'bgra16', 'mono16'])
def test_sixteen_bits_of_either_byte_order(encoding, order):
    channels = BYTES[encoding] // 2
    wide = RNG.integers(0, 65536, (6, 8, channels), dtype=np.uint16)
    wide[0, :4, 0] = (0, 65535, 128, 129)  # the last two lie on either side of a half
    msg = image(wide.astype(order).view(np.uint8).reshape(6, 8, -1), encoding, step=8 * 8 + 3)
    msg.is_bigendian = int(order == '>u2')
    expected = np.round(wide[..., : min(channels, 3)] / 257.0)
    if encoding.startswith('bgr'):
        expected = expected[..., ::-1]
    assert np.array_equal(image_to_rgb(msg), np.broadcast_to(expected, (6, 8, 3)))


# Y, U, V of BT.601 with limited range, and the colour it stands for.
COLOURS = [
    ((16, 128, 128), (0, 0, 0)),
    ((235, 128, 128), (255, 255, 255)),
    ((0, 128, 128), (0, 0, 0)),
    ((81, 90, 240), (254, 0, 0)),
    ((145, 54, 34), (0, 255, 1)),
    ((41, 240, 110), (0, 0, 255)),
]


@pytest.mark.parametrize(('yuv', 'rgb'), COLOURS)
def test_yuv422_in_both_orders(yuv, rgb):
    y, u, v = yuv
    for encoding, four in {'uyvy': (u, y, v, y), 'yuyv': (y, u, y, v)}.items():
        pixels = np.tile(np.array(four, np.uint8), (3, 5, 1)).reshape(3, 10, 2)
        assert np.array_equal(image_to_rgb(image(pixels, encoding)), np.full((3, 10, 3), rgb))
    assert refusal(image_to_rgb, image(noise(3, 5, 2), 'yuyv'))[0] == 'bad_size'


def test_yuv422_keeps_the_two_pixels_of_a_pair_apart():
    dark_light = np.array([[[16, 128], [235, 128]]], np.uint8)
    expected = [[[0, 0, 0], [255, 255, 255]]]
    assert np.array_equal(image_to_rgb(image(dark_light, 'yuyv')), expected)
    assert np.array_equal(image_to_rgb(image(dark_light[..., ::-1], 'yuv422')), expected)


SQUARES = {'rggb': 'RGGB', 'grbg': 'GRBG', 'gbrg': 'GBRG', 'bggr': 'BGGR'}


@pytest.mark.parametrize('name', SQUARES)
def test_bayer_is_the_mean_of_the_nearest_of_each_colour(name):
    mosaic = noise(7, 9, 1)
    rgb = image_to_rgb(image(mosaic, f'bayer_{name}8'))
    for row, column in np.ndindex(7, 9):
        near = {'R': [], 'G': [], 'B': []}
        r, c = min(max(row, 1), 5), min(max(column, 1), 7)  # borders are their neighbours
        own = SQUARES[name][2 * (r % 2) + c % 2]
        for i, j in np.ndindex(3, 3):
            at = (r + i - 1, c + j - 1)
            near[SQUARES[name][2 * (at[0] % 2) + at[1] % 2]].append(int(mosaic[(*at, 0)]))
        near[own] = [int(mosaic[r, c, 0])]
        means = [int(sum(near[colour]) / len(near[colour]) + 0.5) for colour in 'RGB']
        assert list(rgb[row, column]) == means
    assert refusal(image_to_rgb, image(noise(2, 9, 1), f'bayer_{name}8'))[0] == 'bad_size'


@pytest.mark.parametrize(
    ('change', 'reason', 'words'),
    [
        ({'step': 191}, 'bad_step', ['step is 191', '64 pixels of rgb8', '192']),
        ({'step': 0}, 'bad_step', ['step is 0', '192']),
        ({'step': 193}, 'bad_length', ['9216 bytes', '48 rows of step 193 are 9264']),
        ({'height': 47}, 'bad_length', ['9216 bytes', '9024']),
        ({'height': 0}, 'bad_size', ['64x0']),
        ({'width': 0}, 'bad_size', ['0x48']),
        ({'data': array.array('B')}, 'bad_length', ['0 bytes', '9216']),
        ({'height': 2**31, 'width': 2**31}, 'bad_size', ['at most 16000000 pixels']),
        ({'height': 2**20, 'width': 64}, 'bad_size', ['rgb8 image is 64x1048576']),
        ({'height': 2**18 - 1}, 'bad_size', ['64x262143']),
        ({'width': 333_334, 'encoding': 'nv21'}, 'bad_size', ['nv21 image is 333334x48']),
    ],
)
def test_wrong_geometry_names_the_numbers(change, reason, words):
    msg = image(noise(), 'rgb8')
    vars(msg).update(change)
    given, text = refusal(image_to_rgb, msg)
    assert given == reason
    for word in words:
        assert word in text


def encode(pixels, codec, **options):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, codec, **options)
    return out.getvalue()


FLAT = np.full((32, 40, 3), (200, 40, 10), np.uint8)


@pytest.mark.parametrize(
    'format_', ['jpeg', 'JPEG', 'jpg', 'image/jpeg', 'rgb8; jpeg compressed bgr8',
                'bgr8; jpeg compressed ', 'mono8; jpeg compressed']
)  # fmt: skip
def test_c07_jpeg_under_every_usual_name(format_):
    rgb = compressed_to_rgb(Msg(format=format_, data=array.array('B', encode(FLAT, 'JPEG'))))
    assert rgb.shape == FLAT.shape and rgb.dtype == np.uint8
    assert np.abs(rgb.astype(int) - FLAT).max() <= 4  # JPEG's own loss on a flat colour


@pytest.mark.parametrize('format_', ['png', 'bgr8; png compressed bgr8', 'rgb8; png compressed'])
def test_c07_png_is_exact(format_):
    pixels = noise()
    data = np.frombuffer(encode(pixels, 'PNG'), np.uint8)
    assert np.array_equal(compressed_to_rgb(Msg(format=format_, data=data)), pixels)


def test_png_with_alpha_and_grey():
    pixels = noise(8, 8, 4)
    data = encode(pixels, 'PNG')
    assert np.array_equal(compressed_to_rgb(Msg(format='png', data=data)), pixels[..., :3])
    grey = encode(pixels[..., 0], 'PNG')
    assert np.array_equal(
        compressed_to_rgb(Msg(format='mono8; png compressed', data=grey)),
        np.repeat(pixels[..., :1], 3, axis=2),
    )


def test_c07_compressed_depth_by_name():
    msg = Msg(format='16UC1; compressedDepth png', data=encode(FLAT, 'PNG'))
    reason, text = refusal(compressed_to_rgb, msg)
    assert reason == 'bad_format' and 'compressedDepth' in text


def test_depth_in_a_plain_png():
    depth = encode(np.arange(64, dtype=np.uint16).reshape(8, 8) * 900, 'PNG')
    reason, text = refusal(compressed_to_rgb, Msg(format='16UC1; png compressed', data=depth))
    assert reason == 'bad_format' and 'depth' in text


@pytest.mark.parametrize('format_', ['h264', 'webp', 'tiff', 'rgb8; theora'])
def test_other_codecs_are_refused_by_name(format_):
    reason, text = refusal(compressed_to_rgb, Msg(format=format_, data=encode(FLAT, 'JPEG')))
    assert reason == 'bad_format' and format_ in text and 'jpeg and png' in text


@pytest.mark.parametrize('codec', ['JPEG', 'PNG'])
def test_corrupt_pictures(codec):
    data = encode(noise(), codec)
    for broken in [b'', b'\0' * 50, data[:20], data[: len(data) // 2], data[1:]]:
        reason, text = refusal(compressed_to_rgb, Msg(format='jpeg', data=broken))
        assert reason == 'corrupt_image' and f'{len(broken)} bytes' in text


@pytest.mark.parametrize('codec', ['JPEG', 'PNG'])
def test_flipped_bytes_never_raise_anything_else(codec):
    data = encode(noise(24, 24), codec)
    for _ in range(300):
        broken = bytearray(data)
        for at in RNG.integers(0, len(data), 3):
            broken[at] = int(RNG.integers(0, 256))
        try:
            assert compressed_to_rgb(Msg(format=codec, data=bytes(broken))).ndim == 3
        except ConversionError as error:
            assert error.reason in ('corrupt_image', 'bad_format', 'bad_size')


def claims(codec, width, height):
    """A small picture whose header says another size: corrupt, if anyone came to its pixels."""
    data = bytearray(encode(np.zeros((8, 8), np.uint8), codec))
    if codec == 'PNG':  # length, IHDR, width, height, five more bytes, CRC
        data[16:24] = struct.pack('>II', width, height)
        data[29:33] = struct.pack('>I', zlib.crc32(data[12:29]))
    else:  # start of frame, length, depth, height, width
        at = data.index(b'\xff\xc0') + 5
        data[at : at + 4] = struct.pack('>HH', height, width)
    return bytes(data)


@pytest.mark.filterwarnings('ignore::PIL.Image.DecompressionBombWarning')
@pytest.mark.parametrize('codec', ['JPEG', 'PNG'])
@pytest.mark.parametrize('size', [(4001, 4000), (12_000, 11_000), (20_000, 20_000), (65_000, 247)])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(codec, size):
    msg = Msg(format=codec, data=claims(codec, *size))
    reason, text = refusal(compressed_to_rgb, msg)
    assert reason == 'bad_size' and 'at most 16000000 pixels' in text


def test_a_picture_of_as_many_pixels_as_allowed_is_read():
    data = encode(np.zeros((4000, 4000), np.uint8), 'PNG')
    assert compressed_to_rgb(Msg(format='png', data=data)).shape == (4000, 4000, 3)


def joints(names, positions):
    return Msg(name=names, position=array.array('d', positions))


def test_c32_joints_by_name_whatever_their_order():
    names = ['a', 'b', 'c']
    first = joint_vector(joints(['c', 'x', 'a', 'b'], [3.0, 9.0, 1.0, 2.0]), names)
    assert first.dtype == np.float32 and first.tolist() == [1.0, 2.0, 3.0]
    assert np.array_equal(first, joint_vector(joints(names, [1.0, 2.0, 3.0]), names))


@pytest.mark.parametrize(
    ('names', 'positions', 'reason', 'words'),
    [
        (['a', 'c'], [1, 2], 'missing_joints', ['lacks b', 'has a, c']),
        ([], [], 'missing_joints', ['lacks a, b']),
        (['a', 'b'], [1], 'bad_joint_state', ['2 names and 1 positions']),
        (['a', 'b'], [], 'bad_joint_state', ['2 names and 0 positions']),
        (['a', 'b', 'a'], [1, 2, 3], 'bad_joint_state', ['names a more than once']),
        (['a', 'b'], [1, math.nan], 'bad_joint_state', ['position of b is not a finite']),
        (['a', 'b'], [1e300, 1], 'bad_joint_state', ['position of a is not a finite']),
    ],
)
def test_wrong_joint_states(names, positions, reason, words):
    given, text = refusal(joint_vector, joints(names, positions), ['a', 'b'])
    assert given == reason
    for word in words:
        assert word in text


def test_a_bad_joint_that_nobody_asked_for_does_no_harm():
    assert joint_vector(joints(['a', 'x'], [1.0, math.nan]), ['a']).tolist() == [1.0]


def test_instruction():
    assert instruction_text(Msg(data='  pick the cup\n')) == 'pick the cup'
    assert len(instruction_text(Msg(data='x' * MAX_TEXT_CHARS))) == 10_000
    for empty in ('', ' \n\t'):
        assert refusal(instruction_text, Msg(data=empty))[0] == 'empty_instruction'
    reason, text = refusal(instruction_text, Msg(data='x' * 10_001))
    assert reason == 'long_instruction' and '10001' in text and '10000' in text


def request(**changes):
    fields = dict(
        id='q', task='memory', prompt='what?', max_tokens=7, temperature=0.5, top_p=0.9, seed=3,
        priority=2, deadline=Msg(sec=1, nanosec=500),
    )  # fmt: skip
    return Msg(**fields | changes)


def test_request_fields():
    made = request_from_msg(request())
    assert (made.request_id, made.task, made.prompt) == ('q', 'memory', 'what?')
    assert (made.max_tokens, made.temperature, made.top_p) == (7, 0.5, 0.9)
    assert (made.seed, made.priority, made.deadline_ns) == (3, 2, 1_000_000_500)
    assert made.problem() == ''


@pytest.mark.parametrize(
    ('changes', 'problem'),
    [
        ({'max_tokens': -1}, 'max_tokens is -1'),
        ({'temperature': math.nan}, 'temperature is nan'),
        ({'deadline': Msg(sec=-1, nanosec=0)}, 'deadline is -1000000000 ns'),
        ({'id': ''}, 'request_id is empty'),
    ],
)
def test_bad_numbers_pass_on_to_be_refused_by_the_policy(changes, problem):
    assert request_from_msg(request(**changes)).problem().startswith(problem)


@pytest.mark.parametrize('task', ['a/b', 'a b', '1st', 'ä', '_x', 'x' * 64])
def test_a_task_that_can_be_no_topic(task):
    reason, text = refusal(request_from_msg, request(task=task))
    assert reason == 'bad_request' and repr(task) in text and "'q'" in text


def test_request_defaults_and_long_prompt():
    assert request_from_msg(request(task='')).task == 'conversation'
    reason, text = refusal(request_from_msg, request(prompt='x' * (MAX_TEXT_CHARS + 1)))
    assert reason == 'bad_request' and '10001' in text


def test_messages_read_from_a_bag_do_as_well():
    store = get_typestore(Stores.ROS2_JAZZY)
    types = store.types
    header = types['std_msgs/msg/Header'](types['builtin_interfaces/msg/Time'](1, 2), '')
    pixels = noise()
    kind = 'sensor_msgs/msg/Image'
    msg = types[kind](header, 48, 64, 'bgr8', 0, 192, pixels.reshape(-1))
    read = store.deserialize_cdr(store.serialize_cdr(msg, kind), kind)
    assert np.array_equal(image_to_rgb(read), pixels[..., ::-1])
    assert stamp_ns(read.header) == 1_000_000_002
    kind = 'sensor_msgs/msg/JointState'
    msg = types[kind](header, ['b', 'a'], np.array([2.0, 1.0]), np.zeros(0), np.zeros(0))
    read = store.deserialize_cdr(store.serialize_cdr(msg, kind), kind)
    assert joint_vector(read, ('a', 'b')).tolist() == [1.0, 2.0]
