"""Qwen's bytes as a stream of text, and its image patches against transformers' own."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessorPil

from oxygen_ros.checkpoint import random_qwen
from oxygen_ros.processing.qwen import QwenTokenizer, spread
from oxygen_ros.processing.qwen_images import QwenImages
from oxygen_ros.types import OxygenError

FOLDER = Path(__file__).parents[1] / 'golden' / 'xr0' / 'checkpoint'
GOLDEN = QwenTokenizer(FOLDER, 384)
THEIRS = PreTrainedTokenizerFast.from_pretrained(FOLDER)
SPECIAL = THEIRS.all_special_tokens + [str(t) for t in THEIRS.added_tokens_decoder.values()]


def streamed(ids):
    stream = GOLDEN.detokenizer()
    return [stream.push(token_id) for token_id in ids] + [stream.flush()]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, len(THEIRS) - 1), max_size=60))
def test_deltas_joined_are_the_whole_text(ids):
    whole = THEIRS.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    # transformers ends a run of bytes at a special token, a stream cannot know that it will come
    if not any(i in GOLDEN._special for i in ids):
        assert ''.join(streamed(ids)) == whole


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_text_survives_encoding_and_streaming(text):
    if not any(special in text for special in SPECIAL):
        assert ''.join(streamed(GOLDEN.encode(text))) == text
        assert GOLDEN.special_in(text) == []


def test_characters_come_when_they_are_whole():
    ids = GOLDEN.encode('é日')
    parts = streamed(ids)
    assert [part for part in parts if part] == ['é', '日']
    assert ''.join(streamed(ids[:1])) == '\ufffd'


def test_special_tokens_are_silent_and_found():
    ids = GOLDEN.encode('go<|im_end|>on')
    assert ''.join(streamed(ids)) == 'goon'
    assert GOLDEN.special_in('go<|im_end|>on<|image_pad|>') == ['<|im_end|>', '<|image_pad|>']
    assert {THEIRS.convert_ids_to_tokens(i) for i in GOLDEN.eos_ids} == {
        '<|im_end|>',
        '<|endoftext|>',
    }
    assert THEIRS.convert_ids_to_tokens(GOLDEN.image_id) == '<|image_pad|>'


def test_ids_beyond_the_embedding_are_refused():
    narrow = QwenTokenizer(FOLDER, 340)
    with pytest.raises(OxygenError, match=r'holds <\|im_end\|>, which the model has no embedding'):
        narrow.encode('<|im_end|>')


def test_a_tokenizer_of_another_family_is_refused(tmp_path):
    folder = FOLDER.parents[1] / 'pi05_lerobot' / 'checkpoint' / 'tokenizer'
    with pytest.raises(OxygenError, match=r'has no <\|image_pad\|>, <\|im_end\|>, as Qwen-VL'):
        QwenTokenizer(folder, 512)
    with pytest.raises(OxygenError, match='cannot be loaded'):
        QwenTokenizer(tmp_path, 512)


def test_a_random_vocabulary_speaks(tmp_path):
    vocab = random_qwen.vocabulary(1024)
    random_qwen.write_tokenizer(tmp_path, vocab)
    tokenizer = QwenTokenizer(tmp_path, 1024)
    ids = tokenizer.encode('task: pick up the café cup<|im_end|>')
    stream = tokenizer.detokenizer()
    assert ''.join(stream.push(i) for i in ids) == 'task: pick up the café cup'
    assert tokenizer.encode(' cup') == [vocab['Ġcup']]
    with pytest.raises(OxygenError, match='at least'):
        random_qwen.vocabulary(300)


RULES = {
    'as Qwen3-VL': {'size': {'shortest_edge': 4096, 'longest_edge': 200_000}, 'patch_size': 16},
    'as Qwen2.5-VL': {
        'min_pixels': 3136,
        'max_pixels': 100_352,
        'image_mean': [0.48145466, 0.4578275, 0.40821073],
        'image_std': [0.26862954, 0.26130258, 0.27577711],
    },
    'every value left out': {},
}


@pytest.mark.parametrize('rule', RULES)
def test_patches_are_transformers_own_bit_for_bit(rule):
    theirs, ours = Qwen2VLImageProcessorPil(**RULES[rule]), QwenImages(RULES[rule], FOLDER, 'pil')
    random = np.random.default_rng(0)
    for count in (1, 2, 3):
        sizes = random.integers(20, 400, (count, 2))
        images = [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
        made, wanted = ours(images), theirs(images=images, return_tensors='np')
        np.testing.assert_array_equal(made.grid, wanted['image_grid_thw'])
        np.testing.assert_array_equal(made.values, wanted['pixel_values'])
        assert sum(made.tokens) == len(made.values) // 4


TORCHVISION = load_file(Path(__file__).parents[1] / 'golden' / 'qwen_torchvision.safetensors')
MADE_BY = {
    'qwen3': {
        'size': {'shortest_edge': 1024, 'longest_edge': 9216},
        'patch_size': 16,
        'image_mean': [0.5] * 3,
        'image_std': [0.5] * 3,
    },
    'qwen2_5': {**RULES['as Qwen2.5-VL'], 'max_pixels': 9000, 'patch_size': 14},
}


@pytest.mark.parametrize('number', range(3))
@pytest.mark.parametrize('rule', MADE_BY)
def test_the_other_form_is_torchvisions_bit_for_bit(rule, number):
    """Against what transformers' torchvision-backed processor made of the same pictures."""
    image = TORCHVISION[f'{rule}.{number}.image']
    made = QwenImages(MADE_BY[rule], FOLDER, 'torchvision')([image])
    np.testing.assert_array_equal(made.grid, TORCHVISION[f'{rule}.{number}.grid'])
    once = TORCHVISION[f'{rule}.{number}.values']  # of two equal frames
    values = made.values.numpy().reshape(len(once), 3, 2, -1)
    for frame in range(2):
        np.testing.assert_array_equal(values[:, :, frame], once)
    pillow = QwenImages(MADE_BY[rule], FOLDER, 'pil')([image]).values
    apart = (pillow - made.values).abs()
    assert apart.max() < (1e-6 if image.shape[:2] == (64, 64) and rule == 'qwen3' else 0.06)


def test_torchvision_is_followed_in_bicubic_alone():
    with pytest.raises(OxygenError, match='resample is 2, as torchvision only 3 .* set image_res'):
        QwenImages({'resample': 2}, FOLDER, 'torchvision')


def test_images_and_rules_that_cannot_be_used():
    images = QwenImages({}, FOLDER, 'pil')
    with pytest.raises(OxygenError, match='an image of 2010x10 cannot be used: .*aspect ratio'):
        images([np.zeros((10, 2010, 3), np.uint8)])
    with pytest.raises(OxygenError, match='do_normalize is false, only true is supported'):
        QwenImages({'do_normalize': False}, FOLDER, 'pil')
    with pytest.raises(OxygenError, match='checkpoint: is no Qwen image processor'):
        QwenImages({'size': {'height': 224, 'width': 224}}, FOLDER, 'pil')


def test_placeholders_are_spread_in_order():
    assert spread('a<|image_pad|>b<|image_pad|>', [2, 1]) == (
        'a<|image_pad|><|image_pad|>b<|image_pad|>'
    )
