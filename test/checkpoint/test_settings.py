"""What the makers' files set: obeyed, or refused with its name, never passed over."""

import pytest

from oxygen_ros.checkpoint import inspect_checkpoint, library, survey_checkpoint
from oxygen_ros.types import OxygenError

PRE, POST = 'policy_preprocessor.json', 'policy_postprocessor.json'


def setting(name, **values):
    """A change of one processor step's configuration."""

    def change(contents):
        step = next(s for s in contents['steps'] if s['registry_name'] == name)
        step['config'].update(values)

    return change


@pytest.mark.parametrize('key', ['chunk_size', 'num_inference_steps', 'max_action_dim'])
@pytest.mark.parametrize('wrong', [0, -1, 7.9, '10', True, None])
def test_counts_are_whole_numbers_from_one(copy_of, edit, key, wrong):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'config.json', **{key: wrong})
    with pytest.raises(OxygenError, match=f'config.json: {key} is .*a whole number of at least 1'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('key', ['action_horizon', 'action_dim'])
@pytest.mark.parametrize('wrong', [0, -3, 7.9])
def test_openpis_counts_are_whole_numbers_from_one(copy_of, edit, key, wrong):
    folder = copy_of('pi05_openpi_format')
    edit(folder / 'config.json', **{key: wrong})
    with pytest.raises(OxygenError, match=f'config.json: {key} is .*a whole number of at least 1'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('case', 'key'), [('pi05_openpi_format', 'action_dim'), ('pi05_lerobot', 'max_action_dim')]
)
def test_an_action_width_that_the_tensors_do_not_have(copy_of, edit, case, key):
    folder = copy_of(case)
    edit(folder / 'config.json', **{key: 24})
    with pytest.raises(OxygenError, match='action_dim_padded is stated as 24.*have 32'):
        inspect_checkpoint(folder)


def test_the_widths_of_features(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(
        folder / 'config.json',
        lambda c: c['output_features']['action'].update(shape=[0]),
    )
    with pytest.raises(OxygenError, match='width of output_features.action is 0'):
        inspect_checkpoint(folder)


def test_steps_of_the_flow(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'config.json', num_inference_steps=5)
    assert inspect_checkpoint(folder).denoise_steps == 5
    edit(folder / 'config.json', lambda c: c.pop('num_inference_steps'))
    assert inspect_checkpoint(folder).denoise_steps == 10
    assert inspect_checkpoint(copy_of('pi05_openpi_format')).denoise_steps == 0


def test_more_than_the_current_frame_is_refused(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'config.json', n_obs_steps=2)
    with pytest.raises(OxygenError, match='n_obs_steps is 2, supported: 1'):
        inspect_checkpoint(folder)


def test_two_cameras_of_one_name(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    visual = {'type': 'VISUAL', 'shape': [3, 96, 128]}
    edit(
        folder / 'config.json',
        lambda c: c['input_features'].update({'observation.base_0_rgb': visual}),
    )
    with pytest.raises(OxygenError, match='two cameras are called base_0_rgb'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('key', 'value'), [('include_state_in_prompt', False), ('use_episode_metadata', True)]
)
def test_other_prompts_of_newer_versions(copy_of, edit, key, value):
    folder = copy_of('pi05_lerobot')
    name = 'pi05_prepare_state_tokenizer_processor_step'
    edit(folder / PRE, setting(name, **{key: not value}))
    assert inspect_checkpoint(folder).state_in_prompt
    edit(folder / PRE, setting(name, **{key: value}))
    with pytest.raises(OxygenError, match=f'{key} is not {not value}, which is not supported'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('file', 'change', 'said'),
    [
        (PRE, lambda steps: steps.insert(4, steps.pop(3)), 'pi05_prepare.*, normalizer_processor'),
        (PRE, lambda steps: steps.insert(3, steps[3]), 'normalizer_processor, normalizer_proc'),
        (POST, lambda steps: steps.insert(1, steps.pop(0)), 'absolute_.*, unnormalizer_processor'),
    ],
)
def test_steps_in_another_order_are_refused(copy_of, edit, file, change, said):
    folder = copy_of('pi05_lerobot')
    edit(folder / file, lambda c: change(c['steps']))
    with pytest.raises(OxygenError, match=f'{file}: has the steps .*{said}'):
        inspect_checkpoint(folder)


def test_a_padded_prompt_is_stated_in_oxygen_json(copy_of, edit):
    """LeRobot 0.4's; its files do not tell it from 0.5.0's, so a note asks."""
    folder = copy_of('pi05_lerobot')
    assert not survey_checkpoint(folder).notes
    edit(folder / PRE, lambda c: c['steps'].pop(2))
    edit(folder / POST, lambda c: c['steps'].pop(1))
    note = survey_checkpoint(folder).notes['prompt']
    assert 'LeRobot 0.4 or 0.5.0 wrote it' in note and 'prompt_state_dim to 32' in note
    assert inspect_checkpoint(folder).prompt_state_dim == 0
    for width in (8, 32):
        edit(folder / 'oxygen.json', prompt_state_dim=width)
        assert not survey_checkpoint(folder).notes
        info = inspect_checkpoint(folder)
        assert (info.prompt_state_dim, info.prompt_state_pad) == (width, 0.0)
    edit(folder / 'oxygen.json', prompt_state_pad=-2)
    assert inspect_checkpoint(folder).prompt_state_pad == -2.0


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        ({'prompt_state_dim': 0}, 'prompt_state_dim is 0, a whole number of at least 1'),
        ({'prompt_state_pad': 'x'}, "prompt_state_pad is 'x', a number is expected"),
        ({'prompt_state_pad': float('nan')}, 'prompt_state_pad is nan, a number is expected'),
        ({'prompt_state_dim': 32, 'prompt_layout': 'causal'}, 'prompt_state_dim is of the bidir'),
        ({'prompt_state_dim': 32, 'state_in_prompt': False}, 'of a prompt that holds the state'),
    ],
)
def test_a_padded_prompt_is_checked(copy_of, edit, values, said):
    folder = copy_of('pi05_lerobot')
    edit(folder / 'oxygen.json', **values)
    with pytest.raises(OxygenError, match=said):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('installed', ['4.57.1', '5.5.4', '5.16.3', 'unknown'])
def test_a_transformers_that_is_too_old_is_named_first(copy_of, monkeypatch, installed):
    monkeypatch.setattr(library.transformers, '__version__', installed)
    said = f'transformers {installed} is installed, 5.17 or newer is needed: install'
    for folder in (copy_of('pi05_lerobot'), copy_of('xr0')):
        with pytest.raises(OxygenError, match=said):
            survey_checkpoint(folder)


@pytest.mark.parametrize('installed', ['5.17.0', '5.24.0', '5.18.0.dev0', '6.0.1'])
def test_a_transformers_that_is_new_enough(copy_of, monkeypatch, installed):
    monkeypatch.setattr(library.transformers, '__version__', installed)
    assert inspect_checkpoint(copy_of('pi05_lerobot')).family == 'pi05'
