"""Xiaomi-Robotics-0's folder: what is read of it, and every way in which it can be wrong."""

import filecmp
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from oxygen_ros.checkpoint import inspect_checkpoint, survey_checkpoint
from oxygen_ros.checkpoint.random_xiaomi_robotics_0 import main, write_random_checkpoint
from oxygen_ros.policy import Policy, PolicyOptions
from oxygen_ros.types import LanguageRequest, Observation, OxygenError, Verdict

TAG = 'libero_tiny'


@pytest.fixture
def folder(copy_of):
    return copy_of('xr0')


def test_what_is_read(folder):
    info = inspect_checkpoint(folder, TAG)
    assert (info.family, info.format, info.dtype) == ('xiaomi_robotics_0', 'mibot', 'float32')
    assert info.cameras == ('base_view', 'left_wrist_view', 'right_wrist_view')
    assert (info.state_dim, info.action_dim, info.horizon) == (32, 7, 10)
    assert len(info.weight_files) == 3
    assert info.normalization.mean.shape == (10, 32)
    assert info.normalization.summary() == '10 steps of 7 actions by mean and std, of robot ' + TAG
    assert '[(9, 3)]' in info.normalization.never_moved()
    other = inspect_checkpoint(folder, 'bridge_tiny')
    assert other.horizon == 4 and other.normalization.never_moved() == ''


@pytest.mark.parametrize('tag', ['', 'aloha'])
def test_a_robot_that_is_not_there_lists_those_that_are(folder, tag):
    with pytest.raises(OxygenError, match=f"robot_tag is '{tag}': .* of bridge_tiny, libero_tiny"):
        inspect_checkpoint(folder, tag)


def test_the_only_robot_needs_no_tag(folder, edit):
    def keep_one(values):
        del values['action_config']['libero_tiny']

    edit(folder / 'preprocessor_config.json', keep_one)
    assert inspect_checkpoint(folder).normalization.robot == 'bridge_tiny'


def test_a_tag_for_a_checkpoint_of_one_robot_is_refused(copy_of):
    with pytest.raises(OxygenError, match="robot_tag is 'libero_tiny'.* leave it empty"):
        inspect_checkpoint(copy_of('pi05_lerobot'), TAG)


@pytest.mark.parametrize(
    'where, key, name',
    [
        ('config.json', 'inference_action_position_offset', 'action_position_offset'),
        ('config.json', 'action_position_offset', 'action_position_offset'),
        ('config.json', 'local_window', 'local_window'),
        ('oxygen.json', 'local_window', 'local_window'),
        ('oxygen.json', 'prefix_length', 'prefix_length'),
    ],
)
def test_variants_are_read_from_either_file(folder, edit, where, key, name):
    plain = inspect_checkpoint(folder, TAG)
    assert (plain.action_position_offset, plain.local_window, plain.prefix_length) == (0, None, 0)
    edit(folder / where, **{key: 6})
    assert getattr(inspect_checkpoint(folder, TAG), name) == 6


def of_statistics(change):
    def edited(folder):
        path = folder / 'preprocessor_config.json'
        values = json.loads(path.read_text())
        change(values['action_config'][TAG])
        path.write_text(json.dumps(values))

    return edited


def of_json(name, **keys):
    def edited(folder):
        path = folder / name
        values = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**values, **keys}))

    return edited


def of_dit(**keys):
    def edited(folder):
        path = folder / 'config.json'
        values = json.loads(path.read_text())
        values['dit_config'].update(keys)
        path.write_text(json.dumps(values))

    return edited


def of_weights(change):
    def edited(folder):
        path = folder / 'model-00003-of-00003.safetensors'
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return edited


EMBED, HEAD = 'vlm.model.language_model.embed_tokens.weight', 'vlm.lm_head.weight'


def of_words(folder, change):
    """Store what the function makes of the embedding in its place."""
    name, index = 'model-00002-of-00003.safetensors', folder / 'model.safetensors.index.json'
    stored = load_file(folder / name)
    made = change(stored.pop(EMBED))
    save_file({**stored, **made}, folder / name)
    values = json.loads(index.read_text())
    del values['weight_map'][EMBED]
    values['weight_map'] |= dict.fromkeys(made, name)
    index.write_text(json.dumps(values))


def cut(folder):
    path = folder / 'model-00002-of-00003.safetensors'
    path.write_bytes(path.read_bytes()[:1000])


WRONG = {
    'another step count': (of_statistics(lambda s: s['mean'].pop()), r'shapes \[9, 32\] and \[10'),
    'no std': (of_statistics(lambda s: s.pop('std')), 'something of the wrong kind'),
    'std of zero': (
        of_statistics(lambda s: s.update(std=[[0.0] * 32] * 10)),
        'std = 0 everywhere',
    ),
    'std below zero': (of_statistics(lambda s: s.update(std=[[-1.0] * 32] * 10)), 'below 0'),
    'no statistics': (of_json('preprocessor_config.json', action_config={}), 'has no action_conf'),
    'no tokenizer': (lambda f: (f / 'tokenizer.json').unlink(), 'has no tokenizer.json'),
    'no shard': (
        lambda f: (f / 'model-00001-of-00003.safetensors').unlink(),
        'model-00001-of-00003.safetensors: does not exist',
    ),
    'truncated shard': (cut, 'truncated or not a safetensors file'),
    'no backbone': (lambda f: of_json('config.json', vlm_config={})(f), 'model_type is None'),
    'two states': (of_json('config.json', state_length=2), 'state_length is 2, supported: 1'),
    'a missing tensor': (
        of_weights(lambda t: t.pop('sink.weight')),
        '1 tensors differ: .* lacks sink.weight',
    ),
    'an unexpected tensor': (
        of_weights(lambda t: t.update(extra=np.zeros(2, np.float32))),
        'holds extra, which the index does not name',
    ),
    'other heads': (of_dit(head_dim=8), 'has 4 heads of 8, the backbone 2 key-value heads of 16'),
    'more layers': (of_dit(num_hidden_layers=5), 'has 5 layers, more than the 4 of the backbone'),
    'unknown option': (of_json('oxygen.json', view={}), 'unknown key view; known: .*views'),
    'views without titles': (of_json('oxygen.json', views=['a']), 'camera slot: title'),
    'a wide robot': (of_json('oxygen.json', state_dim=40), 'state_dim is 40, the network has 32'),
    'no number': (of_json('oxygen.json', max_image_tokens='9'), "max_image_tokens is '9'"),
    'half a window': (of_json('oxygen.json', local_window=2.5), 'local_window is 2.5, a whole'),
    'a window in words': (
        of_json('config.json', local_window='4'),
        "config.json: local_window is '4', a whole number",
    ),
    'half an offset': (
        of_json('config.json', inference_action_position_offset=1.5),
        'inference_action_position_offset is 1.5, a whole number',
    ),
    'a negative offset': (
        of_json('config.json', action_position_offset=-3),
        'action_position_offset is -3, a whole number from 0',
    ),
    'other patches': (
        of_json('preprocessor_config.json', patch_size=14),
        'patch_size is 14, the vision tower was made for 16',
    ),
    'other merging': (
        of_json('preprocessor_config.json', merge_size=1),
        'merge_size is 1, the vision tower was made for 2',
    ),
    'another resize': (of_json('oxygen.json', image_resize='pil_bilinear'), 'pil, torchvision'),
    'an embedding and another head': (
        lambda f: of_words(f, lambda embedding: {EMBED: embedding, HEAD: embedding + 1}),
        'with different values, but its backbone has one matrix',
    ),
    'no words': (lambda f: of_words(f, lambda _: {}), f'tensor {EMBED} is missing'),
}


@pytest.mark.parametrize('name', WRONG)
def test_what_is_wrong_is_named_before_weights_are_read(folder, name):
    change, words = WRONG[name]
    change(folder)
    with pytest.raises(OxygenError, match=words):
        Policy.from_checkpoint(folder, robot_tag=TAG)
    if name == 'an embedding and another head':
        return  # values are seen when they are loaded
    _, findings = Policy.preflight(folder, PolicyOptions(robot_tag=TAG))
    misfits = ' '.join(f.text for f in findings if f.verdict is Verdict.MISFIT)
    assert misfits


@pytest.mark.parametrize(
    'stored',
    [
        lambda embedding: {HEAD: embedding},
        lambda embedding: {EMBED: embedding, HEAD: embedding.copy()},
    ],
)
def test_one_matrix_for_words_in_any_form(folder, stored):
    whole = Policy.from_checkpoint(folder, robot_tag=TAG)
    of_words(folder, stored)
    policy = Policy.from_checkpoint(folder, robot_tag=TAG)
    assert policy.info.effective['tied_head'] == 'True'
    hidden = torch.randn(2, whole.engine.model.vlm.config.text_config.hidden_size)
    assert torch.equal(policy.engine.model.logits(hidden), whole.engine.model.logits(hidden))


def test_several_faults_are_seen_at_once(folder):
    for name in ('no tokenizer', 'std of zero', 'truncated shard'):
        WRONG[name][0](folder)
    assert set(survey_checkpoint(folder, TAG).problems) == {'tokenizer', 'statistics', 'weights'}


# -- random ones


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp('random') / 'xr0'
    return write_random_checkpoint(folder, cameras=('base_view', 'front_cam'), horizon=6)


def test_the_same_arguments_write_the_same_bytes(tiny, tmp_path):
    again = write_random_checkpoint(tmp_path / 'x', cameras=('base_view', 'front_cam'), horizon=6)
    names = sorted(path.name for path in tiny.iterdir())
    assert filecmp.cmpfiles(tiny, again, names, shallow=False)[0] == names
    with pytest.raises(OxygenError, match='holds files already'):
        write_random_checkpoint(tiny)


def test_a_random_one_moves_and_speaks(tiny):
    policy = Policy.from_checkpoint(tiny)
    info = policy.info
    assert (info.cameras, info.state_dim, info.action_dim) == (('base_view', 'front_cam'), 8, 7)
    chunks, answers = [], set()
    for number in range(4):
        random = np.random.default_rng(number)
        images = {
            name: random.integers(0, 256, (64, 96, 3), dtype=np.uint8) for name in info.cameras
        }
        state = random.uniform(-1, 1, 8).astype(np.float32)
        noise = np.random.default_rng(0).standard_normal((6, 32)).astype(np.float32)
        request = LanguageRequest('q', prompt=' what is it', max_tokens=12)
        chunk = policy.act(Observation(images, state, 'pick up the cup', number), noise, [request])
        chunks.append(policy._processor.network_actions(chunk.actions, state))
        answers.add(''.join(delta.text for delta in policy.stream()))
    assert 0.3 < np.std(chunks) < 2.0 and np.abs(chunks).max() < 6.0
    assert np.std(chunks, axis=0).mean() > 0.05, 'actions depend on the frame'
    assert len(answers) > 1 and all(answer.isascii() for answer in answers)


def test_the_command_line_writes_one_and_names_what_is_wrong(tmp_path, capsys):
    main([str(tmp_path / 'out'), '--state-dim', '5', '--horizon', '3'])
    info = inspect_checkpoint(tmp_path / 'out')
    assert (info.state_dim, info.horizon, info.normalization.robot) == (5, 3, 'random_robot')
    with pytest.raises(SystemExit):
        main([str(tmp_path / 'two'), '--action-dim', '33'])
    assert 'at most 32 joints' in capsys.readouterr().err
