"""Both Qwen-VL backbones against transformers' own whole forward with the same weights."""

import copy

import pytest
import torch
import transformers

from oxygen_ros.models import qwen_vl
from oxygen_ros.models.kv import KVWindow
from oxygen_ros.types import OxygenError

IMAGE, START, END = 150, 152, 153
WIDTH, HEADS, LAYERS = 64, 2, 3
TEXT = {
    'hidden_size': WIDTH,
    'intermediate_size': 96,
    'num_hidden_layers': LAYERS,
    'num_attention_heads': 4,
    'num_key_value_heads': HEADS,
    'vocab_size': 200,
    'max_position_embeddings': 4096,
    'rope_theta': 1e6,
    'bos_token_id': None,
    'eos_token_id': None,
}
VISION = {
    'depth': 3,
    'hidden_size': 32,
    'intermediate_size': 48,
    'num_heads': 2,
    'out_hidden_size': WIDTH,
}
KINDS = {
    'qwen2_5_vl': (
        {'rope_scaling': {'type': 'mrope', 'mrope_section': [4, 2, 2]}},
        {'patch_size': 14, 'window_size': 56, 'fullatt_block_indexes': [2]},
    ),
    'qwen3_vl': (
        {
            'head_dim': 16,
            'rope_scaling': {
                'rope_type': 'default',
                'mrope_section': [4, 2, 2],
                'mrope_interleaved': True,
            },
        },
        {'patch_size': 16, 'deepstack_visual_indexes': [0, 1], 'num_position_embeddings': 64},
    ),
}
# two images of 12 and 4 tokens among words
WORDS = [1, 2, START, *[IMAGE] * 12, END, 5, START, *[IMAGE] * 4, END, 7, 8, 9]
GRID = [[1, 6, 8], [1, 4, 4]]


def config(kind):
    text, vision = KINDS[kind]
    return {
        'model_type': kind,
        'text_config': {**TEXT, **text},
        'vision_config': {**VISION, **vision},
        'image_token_id': IMAGE,
        'video_token_id': 151,
        'vision_start_token_id': START,
        'vision_end_token_id': END,
    }


@pytest.fixture(params=KINDS, scope='module')
def pair(request):
    """Our backbone and transformers' plain model with the same random weights."""
    made = qwen_vl.qwen_config(config(request.param), 'test')
    with torch.device('meta'):
        ours = qwen_vl.QwenVL(made, tied=False)
    qwen_vl.materialise(ours, torch.device('cpu'), torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in ours.parameters():
        noise = torch.empty(parameter.shape).normal_(0, 0.1, generator=generator)
        parameter.copy_(noise if parameter.ndim > 1 else 1 + noise)
    plain = copy.deepcopy(made)
    plain.text_config._attn_implementation = 'eager'
    plain.vision_config._attn_implementation = 'eager'
    name = type(ours.model).__name__.replace('Model', 'ForConditionalGeneration')
    theirs = getattr(transformers, name)(plain).eval()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def pixels(ours):
    patch = ours.config.vision_config.patch_size
    generator = torch.Generator().manual_seed(1)
    return torch.empty(64, 6 * patch**2).normal_(generator=generator)


def pool(rows=1):
    return [torch.zeros(rows, HEADS, 64, WIDTH // 4) for _ in range(LAYERS)]


def whole(ours, theirs, ids, hooks=()):
    """Their logits [n, V] of the whole sequence at once."""
    handles = [module.register_forward_pre_hook(hook) for module, hook in hooks]
    output = theirs(
        input_ids=ids[None],
        pixel_values=pixels(ours),
        image_grid_thw=torch.tensor(GRID),
        mm_token_type_ids=(ids == IMAGE).int()[None],
    )
    for handle in handles:
        handle.remove()
    return output.logits[0]


@torch.no_grad()
def test_prefill_and_extend_equal_the_whole_sequence(pair):
    ours, theirs = pair
    tail = [11, 12, 13]
    logits = whole(ours, theirs, torch.tensor(WORDS + tail))
    keys, values, length = pool(), pool(), len(WORDS)
    window = KVWindow(keys, values, slice(0, 1), length)
    prefilled = ours.prefill(torch.tensor(WORDS), pixels(ours), torch.tensor(GRID), window)
    # 12 tokens take 4 positions and 4 take 2
    assert (prefilled.length, prefilled.position_offset) == (length, -10)
    first = ours.logits(prefilled.last_hidden[None])[0]
    torch.testing.assert_close(first, logits[length - 1], rtol=0, atol=1e-5)
    slots = torch.arange(length, length + len(tail))[None]
    mask = torch.arange(length + len(tail)) <= slots[:, None, :, None]
    hidden = ours.extend(
        torch.tensor([tail]),
        slots - 10,
        mask,
        KVWindow(keys, values, slice(0, 1), length + len(tail), slots=slots),
    )
    torch.testing.assert_close(ours.logits(hidden[0]), logits[length:], rtol=0, atol=1e-5)


@torch.no_grad()
def test_hidden_states_are_what_enters_each_layer(pair):
    """With what deepstack adds, and the last one raw: transformers 4.57 numbered them so."""
    ours, theirs = pair
    entering = {}
    language = theirs.model.language_model
    named = {**dict(enumerate(language.layers)), LAYERS: language.norm}
    hooks = [
        (module, lambda _, args, number=number: entering.update({number: args[0][0]}))
        for number, module in named.items()
    ]
    whole(ours, theirs, torch.tensor(WORDS), hooks)
    wanted = range(1, LAYERS + 1)
    window = KVWindow(pool(), pool(), slice(0, 1), len(WORDS))
    prefilled = ours.prefill(torch.tensor(WORDS), pixels(ours), torch.tensor(GRID), window, wanted)
    states = prefilled.extras[qwen_vl.HIDDEN]
    assert list(states) == list(wanted)
    for number in wanted:
        torch.testing.assert_close(states[number], entering[number], rtol=0, atol=1e-5)


@torch.no_grad()
def test_nothing_is_kept_between_frames(pair):
    """A frame with other images in between leaves no trace, not even positions."""
    ours, _ = pair

    def prefill(words, grid, patches):
        window = KVWindow(pool(), pool(), slice(0, 1), len(words))
        return ours.prefill(torch.tensor(words), patches, torch.tensor(grid), window)

    before = prefill(WORDS, GRID, pixels(ours))
    other = prefill([1, START, *[IMAGE] * 4, END, 2], GRID[1:], pixels(ours)[48:])
    after = prefill(WORDS, GRID, pixels(ours))
    assert other.position_offset == -2
    assert torch.equal(before.last_hidden, after.last_hidden)
    assert ours.model.rope_deltas is None


def test_rotary_frequencies_stay_exact_in_bfloat16(pair):
    ours, _ = pair
    with torch.device('meta'):
        half = qwen_vl.QwenVL(ours.config, tied=True)
    qwen_vl.materialise(half, torch.device('cpu'), torch.bfloat16)
    wanted = dict(ours.named_buffers())
    found = dict(half.named_buffers())
    assert found.keys() == wanted.keys()
    for name, buffer in found.items():
        assert torch.equal(buffer, wanted[name]), name
    assert all(parameter.dtype is torch.bfloat16 for parameter in half.parameters())


def test_a_transformers_without_the_class_says_which_has_it(monkeypatch):
    monkeypatch.setitem(qwen_vl._CLASSES, 'qwen9_vl', ('Qwen9VLModel', 'Qwen9VLConfig', '9.1'))
    with pytest.raises(OxygenError, match=r'has no Qwen9VLConfig.*9\.1 and newer have it'):
        qwen_vl.qwen_config({'model_type': 'qwen9_vl'}, 'test')


def test_an_unknown_backbone_lists_the_known():
    with pytest.raises(OxygenError, match="'llava', supported: qwen3_vl, qwen2_5_vl"):
        qwen_vl.qwen_config({'model_type': 'llava'}, 'config.json')


def test_a_configuration_that_makes_no_sense_names_its_file():
    wrong = config('qwen3_vl')
    wrong['text_config']['rope_scaling'] = 5
    with pytest.raises(OxygenError, match='config.json: is no configuration of qwen3_vl'):
        qwen_vl.qwen_config(wrong, 'config.json')
