"""StarVLA's runs: what is read of them, and every way in which they can be wrong."""

import filecmp
import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from oxygen_ros.checkpoint import inspect_checkpoint, survey_checkpoint
from oxygen_ros.checkpoint.random_starvla import main, write_random_checkpoint
from oxygen_ros.checkpoint.starvla_head import HEADS
from oxygen_ros.checkpoint.weights import Naming, read_index
from oxygen_ros.models import qwen_vl
from oxygen_ros.policy import Policy, PolicyOptions
from oxygen_ros.processing import qwen_images
from oxygen_ros.processing.starvla import StarvlaProcessor
from oxygen_ros.types import Observation, OxygenError, Verdict

GOLDEN = Path(__file__).parents[1] / 'golden'
WEIGHTS = 'checkpoints/steps_1000_model.safetensors'
TAGS = 'dataset_statistics.json'


@pytest.fixture(scope='module')
def written(tmp_path_factory):
    """Head -> a random run, written once."""
    folders = {}

    def write(head):
        if head not in folders:
            folder = tmp_path_factory.mktemp('runs') / head
            folders[head] = write_random_checkpoint(folder, head=head)
        return folders[head]

    return write


@pytest.fixture
def run(written, tmp_path):
    """Head -> a private copy of a random run."""
    return lambda head='QwenPI_v3': Path(shutil.copytree(written(head), tmp_path / head))


@pytest.fixture
def config(tmp_path):
    """Change config.yaml in place: config(folder, 'framework.name', value)."""

    def change(folder, place, value):
        path = folder / 'config.yaml'
        tree = yaml.safe_load(path.read_text())
        *way, last = place.split('.')
        part = tree
        for name in way:
            part = part[name]
        part[last] = value
        path.write_text(yaml.safe_dump(tree))

    return change


def test_what_is_read(written):
    info = inspect_checkpoint(written('QwenPI_v3'))
    assert (info.family, info.format, info.name) == ('starvla', 'starvla', 'QwenPI_v3')
    assert info.cameras == ('base', 'left_wrist', 'right_wrist')
    assert (info.state_dim, info.action_dim, info.horizon) == (8, 7, 8)
    assert (info.image_size, info.image_tokens, info.max_prefix) == ((64, 64), 4, 3 * 4 + 200)
    assert (info.head.steps, info.head.interleaved, info.sizes.heads) == (4, False, 4)
    assert info.include_state and info.prompt == '{instruction}'
    assert info.weight_files[0].name == 'steps_1000_model.safetensors'


@pytest.mark.parametrize('head', HEADS)
def test_every_head_is_described_and_its_memory_foreseen(written, head):
    info, findings = Policy.preflight(written(head), PolicyOptions())
    assert info is not None and (info.family, info.action_dim) == ('starvla', 7)
    assert {f.verdict for f in findings} == {Verdict.OK}, findings
    # who has no flow cannot continue a running chunk
    assert bool(info.no_overlap) == (head in ('QwenOFT', 'QwenFast'))


def test_a_short_config_gets_starvlas_own_defaults(run, config):
    folder = run('QwenGR00T')
    config(folder, 'framework.action_model.action_horizon', None)
    assert inspect_checkpoint(folder).horizon == 8
    config(folder, 'framework.action_model.future_action_window_size', 11)
    assert inspect_checkpoint(folder).horizon == 12


def test_the_older_name_of_interleaving(run, config):
    folder = run()
    config(folder, 'framework.action_model.diffusion_model_cfg.use_canonical_forward', True)
    assert inspect_checkpoint(folder).head.interleaved


def test_the_newest_step_unless_another_is_named(run, edit):
    folder = run()
    for step in (900, 12000):
        shutil.copy(folder / WEIGHTS, folder / f'checkpoints/steps_{step}_pytorch_model.pt')
    assert inspect_checkpoint_file(folder, edit, 900) == 'steps_900_pytorch_model.pt'
    (folder / 'checkpoints/steps_12000_pytorch_model.pt').rename(
        folder / 'checkpoints/steps_12000_model.safetensors'
    )
    assert inspect_checkpoint(folder).weight_files[0].name == 'steps_12000_model.safetensors'
    edit(folder / 'oxygen.json', step=5)
    with pytest.raises(OxygenError, match='has no step 5, only 900, 1000, 12000'):
        inspect_checkpoint(folder)


def inspect_checkpoint_file(folder, edit, step):
    """The weight file of a step; it is no state dict, so the rest cannot be read."""
    options = folder / 'oxygen.json'
    before = options.read_text()
    edit(options, step=step)
    (problem,) = survey_checkpoint(folder).problems.values()
    options.write_text(before)
    return Path(problem.split(':')[0]).name


def test_no_code_is_run_from_a_pickle(run):
    folder = run()
    (folder / WEIGHTS).unlink()

    class Evil:
        def __reduce__(self):
            return (open, (str(folder / 'harmed'), 'w'))

    file = folder / 'checkpoints/steps_1000_pytorch_model.pt'
    torch.save({'a': Evil()}, file)
    with pytest.raises(OxygenError, match=r'steps_1000_pytorch_model.pt: .*more than tensors'):
        inspect_checkpoint(folder)
    file.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(OxygenError, match=r'steps_1000_pytorch_model.pt'):
        inspect_checkpoint(folder)
    assert not (folder / 'harmed').exists()
    torch.save([torch.zeros(1)], file)
    with pytest.raises(OxygenError, match='is no state dict'):
        inspect_checkpoint(folder)


def test_a_pickle_gives_the_same_model_as_safetensors(tmp_path):
    """The golden QwenGR00T is stored so; here the same tensors as the other kind of file."""
    case = GOLDEN / 'starvla_qwengr00t'
    info = inspect_checkpoint(case / 'run')
    stored = torch.load(info.weight_files[0], weights_only=True)
    shapes = {
        name: header.shape for name, header in read_index(info.weight_files, Naming()).items()
    }
    assert {name: tuple(value.shape) for name, value in stored.items()} == shapes


@pytest.mark.parametrize(
    ('missing', 'said'),
    [
        ('config.yaml', 'config.yaml: does not exist; copy the complete run'),
        (TAGS, f'{TAGS}: does not exist, and without it actions have no units'),
        ('checkpoints', 'no weights, neither steps_N_model.safetensors'),
        ('base_vlm/tokenizer.json', 'its base model ./base_vlm is in none of .* "base_vlm"'),
        ('base_vlm', 'its base model ./base_vlm is in none of .* "base_vlm"'),
        ('fast', 'no FAST tokenizer in .* physical-intelligence/fast'),
    ],
)
def test_a_part_that_is_missing_is_named(run, missing, said):
    folder = run('QwenFast')
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(OxygenError, match=said):
        inspect_checkpoint(folder)


def test_faults_do_not_hide_one_another(run):
    folder = run()
    (folder / TAGS).unlink()
    shutil.rmtree(folder / 'base_vlm')
    _, findings = Policy.preflight(folder, PolicyOptions())
    verdicts = {finding.check: finding.verdict for finding in findings}
    assert verdicts['statistics'] == verdicts['tokenizer'] == Verdict.MISFIT
    assert verdicts['checkpoint'] == Verdict.OK


@pytest.mark.parametrize('name', ['QwenDual', 'PI1', 'ACT'])
def test_an_unknown_head_lists_those_that_are_known(run, config, name):
    folder = run()
    config(folder, 'framework.name', name)
    known = ', '.join((*HEADS, 'PI05', 'Pi05', 'PI0', 'Pi0'))
    with pytest.raises(OxygenError, match=f"framework.name is '{name}', supported: {known}"):
        inspect_checkpoint(folder)
    config(folder, 'framework', {})
    with pytest.raises(OxygenError, match='framework.name is missing'):
        inspect_checkpoint(folder)


def test_pi0_is_told_from_pi05_by_name_and_weights(run, config):
    folder = run('PI0')
    info, findings = Policy.preflight(folder, PolicyOptions())
    assert (info.family, info.state_dim, info.action_dim, info.horizon) == ('pi0', 8, 7, 8)
    assert info.max_prefix_tokens == 3 * 16 + 48
    assert not [finding for finding in findings if finding.verdict is Verdict.MISFIT]
    config(folder, 'framework.name', 'PI05')
    with pytest.raises(OxygenError, match='time_mlp_in.weight is of pi0, supported: pi0.5'):
        inspect_checkpoint(folder)
    folder = Path(shutil.copytree(GOLDEN / 'starvla_pi05' / 'run', folder.parent / 'pi05'))
    (folder / 'oxygen.json').write_text('{"architecture": {"vision_heads": 4}}')
    config(folder, 'framework.name', 'Pi0')
    with pytest.raises(OxygenError, match=r'name is PI0, but its weights have no state_proj'):
        inspect_checkpoint(folder)


def test_a_state_wider_than_the_network_of_pi0(tmp_path):
    folder = write_random_checkpoint(tmp_path / 'run', head='PI0', state_dim=33)
    with pytest.raises(OxygenError, match='33 values of the state, the network only 32'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('damage', ['missing', 'extra', 'shape'])
def test_pi0_is_loaded_strictly(run, damage):
    folder = run('PI0')
    stored = load_file(folder / WEIGHTS)
    name = 'action_head.gemma_expert.model.norm.weight'
    stored |= {'shape': {name: torch.zeros(3)}, 'extra': {'action_head.more': torch.zeros(3)}}.get(
        damage, {}
    )
    if damage == 'missing':
        del stored[name]
    save_file(stored, folder / WEIGHTS)
    with pytest.raises(OxygenError, match=r'1 tensors differ: (.*norm.weight|more is unexpected)'):
        Policy.from_checkpoint(folder)


@pytest.mark.parametrize('case', ['QwenPI_v3', 'starvla_pi05'])
def test_a_robot_that_is_not_there_lists_those_that_are(written, tmp_path, case):
    source = GOLDEN / case / 'run' if case.startswith('starvla') else written(case)
    folder = Path(shutil.copytree(source, tmp_path / 'run'))
    if case == 'starvla_pi05':
        options = json.loads((folder / 'oxygen.json').read_text())
        options['tokenizer'] = str(GOLDEN / 'pi05_lerobot' / 'checkpoint' / 'tokenizer')
        (folder / 'oxygen.json').write_text(json.dumps(options))
    path = folder / TAGS
    (robot,) = json.loads(path.read_text()).values()
    path.write_text(json.dumps({'bridge': robot, 'rt_1': robot}))
    assert inspect_checkpoint(folder, 'rt_1').action_dim == 7
    for tag in ('', 'aloha'):
        with pytest.raises(OxygenError, match=f"robot_tag is '{tag}', .* knows bridge, rt_1"):
            inspect_checkpoint(folder, tag)


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        ({'camera': ['base']}, 'unknown key camera; known: .*cameras'),
        ({'cameras': []}, r'cameras is \[\], a list of names, each once'),
        ({'cameras': ['a', 'a']}, "cameras is .'a', 'a'., a list of names, each once"),
        ({'step': 0}, 'step is 0, a positive number is expected'),
        ({'image_resize': 'pil_bilinear'}, 'allowed: pil, torchvision'),
        ({'constant_dimensions': [3]}, 'an object like'),
        ({'gripper': -2}, 'gripper is -2, an index, or -1 is expected'),
        ({'include_state': 'no'}, "include_state is 'no', true or false is expected"),
        ({'action_normalization': 'mean'}, 'allowed: quantiles, min_max'),
        ({'base_vlm': 'nowhere'}, 'base_vlm points to .*nowhere, which does not exist'),
    ],
)
def test_oxygen_json_is_checked(run, edit, values, said):
    folder = run()
    edit(folder / 'oxygen.json', **values)
    with pytest.raises(OxygenError, match=said):
        inspect_checkpoint(folder)


def test_cameras_must_be_named(run, edit):
    folder = run()
    (folder / 'oxygen.json').unlink()
    with pytest.raises(OxygenError, match='name them in the order of training under "cameras"'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('place', 'value', 'said'),
    [
        ('diffusion_model_cfg.norm_type', 'layer_norm', "norm_type is 'layer_norm', supported"),
        ('diffusion_model_cfg.positional_embeddings', 'sinusoidal', 'supported: None'),
        ('diffusion_model_cfg.attention_head_dim', 24, 'state "attention_heads" in oxygen.json'),
        ('action_dim', 9, 'the statistics have 7 actions, the head 9'),
        ('action_horizon', 'ten', 'something of the wrong kind'),
    ],
)
def test_settings_that_cannot_be_are_refused(run, config, place, value, said):
    folder = run()
    config(folder, f'framework.action_model.{place}', value)
    with pytest.raises(OxygenError, match=said):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('damage', ['missing', 'extra', 'shape'])
def test_tensors_are_compared_before_memory_is_taken(run, damage):
    folder = run('QwenOFT')
    file = folder / WEIGHTS
    stored = load_file(file)
    name = 'action_model.model.fc2.bias'
    if damage == 'shape':
        stored[name] = torch.zeros(3)
    elif damage == 'extra':
        stored['action_model.more'] = torch.zeros(3)
    else:
        del stored['qwen_vl_interface.model.model.visual.pos_embed.weight']
    save_file(stored, file)
    with pytest.raises(
        OxygenError, match=r'fc2.bias|action_model.more is unex|pos_embed.*missing'
    ):
        Policy.from_checkpoint(folder)


def test_statistics_that_do_not_fit(run):
    folder = run()
    path = folder / TAGS
    robots = json.loads(path.read_text())
    robots['random_robot']['action']['q99'] = [0.0] * 3
    path.write_text(json.dumps(robots))
    with pytest.raises(OxygenError, match='action has statistics of width 7 and 3'):
        inspect_checkpoint(folder)
    robots['random_robot']['action'] = {'mean': [0] * 7}
    path.write_text(json.dumps(robots))
    with pytest.raises(OxygenError, match='action has no usable q01 and q99'):
        inspect_checkpoint(folder)
    path.write_text('{}')
    with pytest.raises(OxygenError, match='has no robot with statistics'):
        inspect_checkpoint(folder)


def test_an_older_transformers_is_told_which_one_has_the_class(written, monkeypatch):
    info = inspect_checkpoint(written('QwenPI_v3'))
    monkeypatch.setattr(qwen_vl.transformers, 'Qwen3VLModel', None)
    with pytest.raises(OxygenError, match=r'has no Qwen3VLModel.* 4\.57 and newer have it'):
        Policy.from_checkpoint(written('QwenPI_v3'))
    monkeypatch.setattr(qwen_images.transformers, 'Qwen2VLImageProcessorPil', None)
    with pytest.raises(OxygenError, match='has no Qwen2VLImageProcessorPil.* newer have it'):
        StarvlaProcessor(info)


def test_another_backbone_is_refused(run, edit):
    folder = run()
    edit(folder / 'base_vlm/config.json', model_type='gemma4')
    with pytest.raises(OxygenError, match="model_type is 'gemma4', supported: qwen3_vl, qwen2_5"):
        Policy.preflight(folder, PolicyOptions())[0]
        Policy.from_checkpoint(folder)


def test_a_base_model_without_action_tokens(run, written):
    folder = run('QwenFast')
    shutil.rmtree(folder / 'base_vlm')
    shutil.copytree(written('QwenPI_v3') / 'base_vlm', folder / 'base_vlm')
    with pytest.raises(
        OxygenError, match='has no <robot_action_0>: QwenFast needs the base model'
    ):
        Policy.from_checkpoint(folder)


def test_images_and_words_that_the_prompt_does_not_provide_for(written):
    processor = StarvlaProcessor(inspect_checkpoint(written('QwenPI_v3')))
    image, state = np.zeros((64, 64, 3), np.uint8), np.zeros(8, np.float32)

    def refused(said, images=None, state=state, words='go'):
        seen = Observation({'base': image} if images is None else images, state, words)
        with pytest.raises(OxygenError, match=said):
            processor.frame(seen)

    refused('cameras ceiling are unknown, allowed: base, left', {'base': image, 'ceiling': image})
    refused('no camera image, at least one is needed of: base', {})
    refused('uint8 .* is expected', {'base': image.astype(np.float32)})
    refused('state has shape .3., the checkpoint expects .8.', state=state[:3])
    refused('not a finite number at index .2.', state=np.where(np.arange(8) == 2, np.nan, state))
    refused('the instruction is empty', words=' ')
    refused(re.escape('holds <|im_end|>: leave special'), words='go <|im_end|>')
    with pytest.raises(OxygenError, match='leave special tokens out'):
        processor.prompt_tokens('<|image_pad|>')


def test_a_large_image_is_refused_where_sizes_are_not_fixed(tmp_path):
    folder = write_random_checkpoint(tmp_path / 'run', squeezed=False)
    processor = StarvlaProcessor(inspect_checkpoint(folder))
    seen = Observation({'base': np.zeros((64, 64, 3), np.uint8)}, np.zeros(8, np.float32), 'go')
    assert len(processor.frame(seen).token_ids) < 100
    (folder / 'oxygen.json').write_text(json.dumps({'cameras': ['base'], 'max_image_tokens': 3}))
    processor = StarvlaProcessor(inspect_checkpoint(folder))
    with pytest.raises(OxygenError, match='takes 4 tokens, 3 are reserved.*max_image_tokens to 4'):
        processor.frame(seen)


def test_a_long_task_is_shortened_and_its_state_kept(written):
    processor = StarvlaProcessor(inspect_checkpoint(written('QwenPI_v3')))
    image = np.zeros((64, 64, 3), np.uint8)
    long = processor.frame(Observation({'base': image}, np.zeros(8, np.float32), 'pick ' * 400))
    text = processor.tokenizer._fast.decode(long.token_ids)
    assert long.truncated and len(long.token_ids) <= 204
    assert re.search(r' \[STATE\]( \d+){8} \[ACTION\]<\|im_end\|>', text)


def test_a_prompt_around_the_instruction(run, config):
    folder = run('QwenOFT')
    config(folder, 'datasets.vla_data.CoT_prompt', 'Your task is {instruction}. Locate things.')
    processor = StarvlaProcessor(inspect_checkpoint(folder))
    image = np.zeros((64, 64, 3), np.uint8)
    frame = processor.frame(Observation({'base': image}, np.zeros(8, np.float32), 'go'))
    decode = processor.tokenizer._fast.decode
    text = decode(frame.token_ids)
    assert re.search(r'Your task is go \[STATE\]( \d+){8} \[ACTION\]$', text)
    assert decode(frame.suffix_ids).endswith('<action>' + '🔍' * 8)
    assert decode(processor.prompt_tokens('why')) == '\nwhy<|im_end|>\n<|im_start|>assistant\n'


def test_the_chat_format_is_found_where_older_base_models_have_it(run):
    folder = run()
    image = np.zeros((64, 64, 3), np.uint8)
    seen = Observation({'base': image}, np.zeros(8, np.float32), 'go')
    processor = StarvlaProcessor(inspect_checkpoint(folder))
    wanted = processor.frame(seen).token_ids.tolist()
    template = folder / 'base_vlm/chat_template.jinja'
    older = folder / 'base_vlm/chat_template.json'
    older.write_text(json.dumps({'chat_template': template.read_text()}))
    template.unlink()
    processor = StarvlaProcessor(inspect_checkpoint(folder))
    assert processor.frame(seen).token_ids.tolist() == wanted
    older.unlink()
    _, findings = Policy.preflight(folder, PolicyOptions())
    (misfit,) = [finding for finding in findings if finding.verdict is Verdict.MISFIT]
    assert misfit.check == 'tokenizer' and 'the chat template cannot be used' in misfit.detail
    with pytest.raises(OxygenError, match='base_vlm: the chat template cannot be used'):
        StarvlaProcessor(inspect_checkpoint(folder))


def test_the_same_arguments_write_the_same_bytes(tmp_path):
    main([str(tmp_path / 'a'), '--head', 'QwenGR00T'])
    write_random_checkpoint(tmp_path / 'b', head='QwenGR00T')
    files = sorted(p.relative_to(tmp_path / 'a') for p in (tmp_path / 'a').rglob('*.*'))
    _, other, missing = filecmp.cmpfiles(tmp_path / 'a', tmp_path / 'b', files, shallow=False)
    assert not other and not missing and len(files) > 6
    with pytest.raises(OxygenError, match='holds files already'):
        write_random_checkpoint(tmp_path / 'a')
    with pytest.raises(OxygenError, match="head is 'QwenDual', allowed: QwenPI"):
        write_random_checkpoint(tmp_path / 'c', head='QwenDual')
