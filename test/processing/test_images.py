"""Resizing with padding: where the picture lands, and that odd inputs are taken as they are."""

import numpy as np
import pytest

from oxygen_ros.processing.images import resize_with_pad

RULES = ('float_bilinear', 'pil_bilinear')


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize(
    ('shape', 'rows', 'columns'),
    [
        ((40, 80), (10, 30), (0, 40)),  # wide: black above and below
        ((80, 40), (0, 40), (10, 30)),  # tall: black left and right
        ((40, 40), (0, 40), (0, 40)),
        ((20, 40), (10, 30), (0, 40)),  # nothing to resize, only to pad
        ((97, 61), (0, 40), (7, 32)),  # odd remainder: the larger border is on the right
        ((1, 400), (19, 20), (0, 40)),  # thinner than a pixel
    ],
)
def test_aspect_is_kept_and_the_rest_is_black(rule, shape, rows, columns):
    white = np.full((*shape, 3), 255, np.uint8)
    pixels = resize_with_pad(white, 40, 40, rule).numpy()
    wanted = np.full((3, 40, 40), -1.0, np.float32)
    wanted[:, slice(*rows), slice(*columns)] = 1.0
    np.testing.assert_allclose(pixels, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize('rule', RULES)
def test_the_right_size_is_not_resampled(rule):
    image = np.random.default_rng(0).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    pixels = resize_with_pad(image, 56, 56, rule).numpy()
    np.testing.assert_allclose(pixels, image.transpose(2, 0, 1) / 127.5 - 1.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize('rule', RULES)
def test_any_memory_layout_gives_the_same_picture(rule):
    """Cropped rows, reversed channels and read-only buffers come straight from messages."""
    image = np.random.default_rng(1).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    padded = np.zeros((48, 80, 3), np.uint8)
    padded[:, :64] = image
    bgr = np.ascontiguousarray(image[..., ::-1])
    read_only = np.frombuffer(image.tobytes(), np.uint8).reshape(image.shape)
    wanted = resize_with_pad(image, 32, 32, rule)
    for view in (padded[:, :64], bgr[..., ::-1], read_only):
        assert resize_with_pad(view, 32, 32, rule).equal(wanted)


def test_the_rules_differ_on_sharp_pictures():
    """So a checkpoint must be served with its own; antialiasing turns stripes into grey."""
    stripes = np.zeros((112, 112, 3), np.uint8)
    stripes[:, ::2] = 255
    first, second = (resize_with_pad(stripes, 28, 28, rule) for rule in RULES)
    assert (first - second).abs().max() > 0.01
