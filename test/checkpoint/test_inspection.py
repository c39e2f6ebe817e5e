"""What is read of a checkpoint without its weights, and what is refused before they are read."""

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oxygen_ros.checkpoint import Pi05Arch, inspect_checkpoint
from oxygen_ros.types import OxygenError

SLOTS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
TINY = Pi05Arch(
    lm_width=64,
    depth=3,
    lm_mlp=128,
    expert_width=48,
    expert_mlp=96,
    heads=8,
    kv_heads=1,
    head_dim=16,
    vocab_size=512,
    vision_width=32,
    vision_layers=2,
    vision_heads=4,
    vision_mlp=48,
    patch=14,
    image_size=56,
    horizon=10,
)
STATE_FILE = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
ACTION_FILE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'


@pytest.mark.parametrize('case', ['pi05_lerobot', 'pi05_openpi_format'])
def test_both_formats_say_the_same_of_the_same_network(copy_of, case):
    info = inspect_checkpoint(copy_of(case))
    assert info.arch == TINY
    assert info.arch.tokens_per_camera == 16
    assert (info.cameras, info.state_dim, info.action_dim) == (SLOTS, 8, 7)
    assert (info.image_resolution, info.tokenizer_max_length) == ((56, 56), 200)
    assert (info.family, info.dtype, info.prompt_layout) == ('pi05', 'float32', 'bidirectional')


def test_rules_are_the_makers_own(copy_of):
    lerobot = inspect_checkpoint(copy_of('pi05_lerobot'))
    openpi = inspect_checkpoint(copy_of('pi05_openpi_format'))
    assert (lerobot.format, openpi.format) == ('lerobot', 'openpi')
    assert (lerobot.time_rule, openpi.time_rule) == ('float32_of_step', 'accumulate_float32')
    assert (lerobot.image_resize, openpi.image_resize) == ('float_bilinear', 'pil_bilinear')
    assert (lerobot.tied_head, openpi.tied_head) == (False, True)
    assert (lerobot.state_in_prompt, openpi.state_in_prompt) == (True, True)
    norms = (lerobot.normalization, openpi.normalization)
    assert [norm.eps_rule for norm in norms] == ['replace_zero_width', 'add_to_width']
    # Joint 7 never moved (q01 = q99), so its width is what the maker's rule leaves: its eps.
    assert [norm.state.span_in[7] for norm in norms] == [np.float32(1e-8), 1e-6]


def test_format_is_recognised_by_content_not_by_path(copy_of):
    folder = copy_of('pi05_openpi_format')
    assert inspect_checkpoint(folder.rename(folder.parent / 'lerobot_pi0')).format == 'openpi'


def test_oxygen_json_overrides_the_maker(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    (folder / 'tokenizer').rename(folder / 'words')
    edit(
        folder / 'oxygen.json',
        prompt_layout='causal',
        time_rule='accumulate_float32',
        image_resize='pil_bilinear',
        eps_rule='add_to_width',
        tokenizer='words',
        tokenizer_max_length=64,
        architecture={'vision_heads': 2, 'rope_theta': 20000.0},
    )
    info = inspect_checkpoint(folder)
    assert info.arch == dataclasses.replace(TINY, vision_heads=2, rope_theta=20000.0)
    assert (info.prompt_layout, info.time_rule) == ('causal', 'accumulate_float32')
    assert info.normalization.eps_rule == 'add_to_width'
    assert info.normalization.state.span_in[7] == np.float32(1e-6)
    assert info.image_resize == 'pil_bilinear'
    assert (info.tokenizer_dir, info.tokenizer_max_length) == (folder / 'words', 64)


def test_oxygen_json_tells_of_a_prompt_without_the_state(copy_of, edit):
    folder = copy_of('pi05_openpi_format')
    edit(folder / 'oxygen.json', state_in_prompt=False)
    assert not inspect_checkpoint(folder).state_in_prompt


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        ({'promt_layout': 'causal'}, 'promt_layout.*known: .*prompt_layout'),
        ({'prompt_layout': 'Causal'}, "'Causal', allowed: bidirectional, causal"),
        ({'architecture': {'heds': 4}}, 'heds.*known: .*heads'),
        ({'architecture': {'vision_heads': 0}}, 'vision_heads is 0'),
        ({'architecture': {'vision_heads': 4, 'depth': 4}}, 'depth is stated as 4.*have 3'),
        ({'architecture': {'vision_heads': 5}}, '5 vision heads do not divide'),
        ({'architecture': {'vision_heads': 4, 'heads': 5}}, '5 heads'),
        ({'architecture': [4]}, 'architecture must be an object'),
        ({'tokenizer': 'elsewhere'}, 'elsewhere, which does not exist'),
        ({'statistics': 'none.json'}, 'none.json, which does not exist'),
        ({'tokenizer_max_length': '200'}, "tokenizer_max_length is '200'"),
        ({'state_in_prompt': 'no'}, "state_in_prompt is 'no', allowed: true, false"),
        (
            {'state_in_prompt': False, 'prompt_layout': 'causal'},
            'bidirectional prompt_layout only',
        ),
    ],
)
def test_oxygen_json_is_checked(copy_of, edit, values, said):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'oxygen.json', **values)
    with pytest.raises(OxygenError, match=said):
        inspect_checkpoint(folder)


def test_the_named_variant_gives_head_counts(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    (folder / 'oxygen.json').write_text('{"constant_dimensions": {"state": [7]}}')
    assert inspect_checkpoint(folder).arch == dataclasses.replace(TINY, vision_heads=16)
    edit(folder / 'config.json', paligemma_variant='gemma_9b')
    with pytest.raises(OxygenError, match='state heads, kv_heads under "architecture"'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('file', ['model.safetensors', STATE_FILE, ACTION_FILE])
@pytest.mark.parametrize('damage', ['truncated', 'missing', 'not safetensors', 'empty'])
def test_damaged_files_are_named(copy_of, file, damage):
    path = copy_of('pi05_lerobot') / file
    whole = path.read_bytes()
    path.unlink()
    if damage != 'missing':
        kept = {'truncated': whole[:-100], 'not safetensors': b'\0' * 500, 'empty': b''}
        path.write_bytes(kept[damage])
    with pytest.raises(OxygenError) as caught:
        inspect_checkpoint(path.parent)
    assert file in str(caught.value)


@pytest.mark.parametrize('name', ['config.json', 'policy_preprocessor.json', 'oxygen.json'])
def test_broken_json_is_named(copy_of, name):
    folder = copy_of('pi05_lerobot')
    (folder / name).write_text('{"type": ')
    with pytest.raises(OxygenError, match=f'{name}: cannot be read as JSON'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('name', 'values'),
    [
        ('config.json', {'input_features': ['state']}),
        ('config.json', {'image_resolution': 56}),
        ('policy_preprocessor.json', {'steps': 3}),
        ('policy_preprocessor.json', {'steps': ['normalizer_processor']}),
    ],
)
def test_json_of_another_shape_is_refused(copy_of, edit, name, values):
    folder = copy_of('pi05_lerobot')
    edit(folder / name, **values)
    with pytest.raises(OxygenError, match=f'{folder}: a JSON file holds something of the wrong'):
        inspect_checkpoint(folder)


def test_a_folder_that_is_no_checkpoint(tmp_path):
    with pytest.raises(OxygenError, match=f'{tmp_path}/none: is not a folder'):
        inspect_checkpoint(tmp_path / 'none')
    with pytest.raises(OxygenError, match="Xiaomi-Robotics-0; LeRobot's pi0.5"):
        inspect_checkpoint(tmp_path)
    (tmp_path / 'params').mkdir()
    with pytest.raises(OxygenError, match='JAX.*convert_jax_model_to_pytorch'):
        inspect_checkpoint(tmp_path)


def test_other_policies_are_refused(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'config.json', type='pi0')
    with pytest.raises(OxygenError, match="type is 'pi0', supported: pi05"):
        inspect_checkpoint(folder)


def test_pi0_weights_are_told_from_pi05(copy_of):
    path = copy_of('pi05_openpi_format') / 'model.safetensors'
    tensors = load_file(path)
    square = tensors.pop('time_mlp_in.weight')
    tensors['action_time_mlp_in.weight'] = np.concatenate([square, square], axis=1)
    save_file(tensors, path)
    with pytest.raises(OxygenError, match=r'action_time_mlp_in\.weight is of pi0'):
        inspect_checkpoint(path.parent)


def test_missing_tokenizer_lists_where_it_was_looked_for(copy_of):
    folder = copy_of('pi05_lerobot')
    (folder / 'tokenizer' / 'tokenizer.json').unlink()
    with pytest.raises(OxygenError, match=f'no tokenizer.json in {folder}/tokenizer or {folder}'):
        inspect_checkpoint(folder)


def test_a_processor_step_nobody_knows_is_refused(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(
        folder / 'policy_preprocessor.json',
        lambda c: c['steps'].insert(0, {'registry_name': 'mirror_images'}),
    )
    with pytest.raises(OxygenError, match='step mirror_images is not known'):
        inspect_checkpoint(folder)


def test_relative_actions_are_read_as_lerobot_means_them(copy_of, edit):
    """Joints whose name holds an excluded word stay absolute; names that are missing do not."""
    folder = copy_of('pi05_lerobot')
    names = ['shoulder', 'elbow', 'left_gripper', 'wrist', 'Gripper', 'roll']
    settings = {'enabled': True, 'exclude_joints': ['gripper'], 'action_names': names}
    edit(folder / 'policy_preprocessor.json', lambda c: c['steps'][2]['config'].update(settings))
    edit(
        folder / 'policy_postprocessor.json',
        lambda c: c['steps'][1]['config'].update(enabled=True),
    )
    edit(folder / 'config.json', use_relative_actions=True)
    relative = inspect_checkpoint(folder).relative_actions
    assert relative == (True, True, False, True, False, True, True)


@pytest.mark.parametrize(
    ('file', 'index'), [('policy_preprocessor.json', 2), ('policy_postprocessor.json', 1)]
)
def test_half_relative_actions_are_refused(copy_of, edit, file, index):
    """They would be sent to the robot as absolute ones."""
    folder = copy_of('pi05_lerobot')
    edit(folder / file, lambda c: c['steps'][index]['config'].update(enabled=True))
    with pytest.raises(OxygenError, match='all three must agree'):
        inspect_checkpoint(folder)


def test_relative_actions_by_config_alone_are_refused(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'config.json', use_relative_actions=True)
    with pytest.raises(OxygenError, match='use_relative_actions is True: all three must agree'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('given', 'said'),
    [
        ([True] * 6, '6 values for 7 actions'),
        ('all', 'must be a list of true and false'),
        ([1] * 7, 'must be a list of true and false'),
    ],
)
def test_stated_relative_actions_of_the_wrong_kind_are_refused(copy_of, edit, given, said):
    folder = copy_of('pi05_openpi_format')
    edit(folder / 'oxygen.json', relative_actions=given)
    with pytest.raises(OxygenError, match=said):
        inspect_checkpoint(folder)


def test_normalised_images_are_refused(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(
        folder / 'policy_preprocessor.json',
        lambda c: c['steps'][3]['config']['norm_map'].update(VISUAL='MEAN_STD'),
    )
    with pytest.raises(OxygenError, match='VISUAL by MEAN_STD, supported: IDENTITY'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('key', ['use_visual_memory', 'use_proprioceptive_memory'])
def test_memory_of_past_frames_is_refused(copy_of, edit, key):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'config.json', **{key: True})
    with pytest.raises(OxygenError, match=f'{key} is true, memory of past frames is not'):
        inspect_checkpoint(folder)


def test_image_size_must_be_the_towers(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'config.json', image_resolution=[224, 224])
    with pytest.raises(OxygenError, match=r'\[224, 224\].*56 x 56'):
        inspect_checkpoint(folder)


def test_empty_cameras_are_no_slots(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    visual = {'type': 'VISUAL', 'shape': [3, 96, 128]}
    edit(
        folder / 'config.json',
        lambda c: c['input_features'].update({'observation.images.empty_camera_0': visual}),
    )
    assert inspect_checkpoint(folder).cameras == SLOTS
