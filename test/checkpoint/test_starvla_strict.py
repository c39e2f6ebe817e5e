"""StarVLA's heads are complete or refused by name: what is stored never decides."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from oxygen_ros.checkpoint.random_starvla import write_random_checkpoint
from oxygen_ros.policy import Policy, PolicyOptions
from oxygen_ros.types import OxygenError, Verdict

GOLDEN = Path(__file__).parents[1] / 'golden'
BASE = GOLDEN / 'starvla_backbone' / 'Qwen3-VL-tiny'
EMBED = 'qwen_vl_interface.model.model.language_model.embed_tokens.weight'
HEAD = 'qwen_vl_interface.model.lm_head.weight'
BLOCK, MODEL = 'action_model.model.transformer_blocks', 'action_model.model'


@pytest.fixture
def golden(tmp_path):
    """Head -> a copy of its golden run, in which a function of name and tensor may be applied."""

    def copy(head, keep):
        folder = Path(shutil.copytree(GOLDEN / f'starvla_{head}' / 'run', tmp_path / head))
        options = json.loads((folder / 'oxygen.json').read_text())
        (folder / 'oxygen.json').write_text(json.dumps({**options, 'base_vlm': str(BASE)}))
        (file,) = (folder / 'checkpoints').iterdir()
        stored = load_file(file) if file.suffix != '.pt' else torch.load(file, weights_only=True)
        file.unlink()
        kept = {name: value.clone() for name, value in stored.items() if keep(name)}
        assert len(kept) < len(stored)
        save_file(kept, folder / 'checkpoints' / 'steps_1000_model.safetensors')
        return folder

    return copy


LACKING = [
    ('qwenpi_v3', rf'{BLOCK}\.2\.', f'{BLOCK}.2.attn1.to_q.weight is missing'),
    ('qwenpi_v3', rf'{BLOCK}\.[12]\.', f'{BLOCK}.1.norm1.linear.bias is missing'),
    ('qwenpi_v3', r'attn1.*bias$', f'{BLOCK}.0.attn1.to_k.bias is missing'),
    ('qwenpi_v3', r'\.ff\..*bias$', f'{BLOCK}.2.ff.net.2.bias is missing'),
    ('qwenpi_v3', 'position_embedding', 'action_model.position_embedding.weight is missing'),
    ('qwenpi_v3', r'project_layers\.0\.1\.bias', 'project_layers.0.1.bias is missing'),
    ('qwenpi_v3', r'project_layers\.2\.', 'project_layers.2.1.weight is missing'),
    ('qwenpi_v3', r'project_layers\.', 'project_layers.0.0.bias is missing'),
    ('qwenpi_v3', 'action_decoder', 'tensor action_model.action_decoder.layer1.weight is missing'),
    ('qwengr00t', rf'{BLOCK}\.3\.', f'{BLOCK}.3.ff.net.0.proj.weight is missing'),
    ('qwengr00t', rf'{BLOCK}\..*bias$', f'{BLOCK}.3.attn1.to_out.0.bias is missing'),
    ('qwengr00t', 'position_embedding', 'action_model.position_embedding.weight is missing'),
    ('qwengr00t', r'proj_out_2\.bias', f'{MODEL}.proj_out_2.bias is missing'),
    ('qwengr00t', 'state_encoder', 'action_model.state_encoder.layer1.bias is missing'),
    ('qwenoft', r'mlp_resnet_blocks\.1\.', f'{MODEL}.mlp_resnet_blocks.1.ffn.1.bias is missing'),
    ('qwenoft', r'fc2\.bias', f'{MODEL}.fc2.bias is missing'),
]


@pytest.mark.parametrize(('head', 'dropped', 'said'), LACKING)
def test_what_a_head_lacks_is_named(golden, head, dropped, said):
    folder = golden(head, lambda name: not re.search(dropped, name))
    with pytest.raises(OxygenError, match=re.escape(said)):
        Policy.from_checkpoint(folder)
    _, findings = Policy.preflight(folder, PolicyOptions())
    assert Verdict.MISFIT in {finding.verdict for finding in findings}


@pytest.mark.parametrize('kept', [EMBED, HEAD])
def test_one_matrix_for_words_under_either_name(golden, kept):
    """What save_model() keeps of two that are one follows the order of their names."""
    dropped = {EMBED: HEAD, HEAD: EMBED}[kept]
    policy = Policy.from_checkpoint(golden('qwenpi_v3', lambda name: name != dropped))
    whole = Policy.from_checkpoint(GOLDEN / 'starvla_qwenpi_v3' / 'run')
    assert policy.info.effective['tied_head'] == whole.info.effective['tied_head'] == 'True'
    words = [
        each.engine.model.vlm.model.language_model.embed_tokens.weight for each in (policy, whole)
    ]
    assert torch.equal(*words)


@pytest.fixture
def written(tmp_path):
    """A random run with changes of config.yaml's framework and of base_vlm/config.json."""

    def write(head, change=lambda framework: None, **base):
        folder = write_random_checkpoint(tmp_path / head, head=head)
        path = folder / 'config.yaml'
        config = yaml.safe_load(path.read_text())
        change(config['framework'])
        path.write_text(yaml.safe_dump(config))
        path = folder / 'base_vlm' / 'config.json'
        path.write_text(json.dumps({**json.loads(path.read_text()), **base}))
        return folder

    return write


def of_action(**values):
    return lambda framework: framework['action_model'].update(values)


def of_dit(**values):
    return lambda framework: framework['action_model']['diffusion_model_cfg'].update(values)


@pytest.mark.parametrize(
    ('head', 'change', 'said'),
    [
        ('QwenGR00T', of_dit(num_layers=5), f'{BLOCK}.4.norm1.linear.weight is missing'),
        ('QwenGR00T', of_dit(num_layers=3), f'{BLOCK}.3.norm1.linear.weight is unexpected'),
        ('QwenPI_v3', of_dit(action_dit_hidden_dim=None), 'project_layers.0.0.bias is unexpected'),
        ('QwenPI', of_action(add_pos_embed=False), 'position_embedding.weight is unexpected'),
        ('QwenPI', of_action(max_seq_len=32), r'has shape [64, 128], [32, 128] expected'),
        (
            'QwenPI',
            of_action(action_horizon=65),
            'horizon is 65, but the head has positions for 64',
        ),
        (
            'QwenPI',
            of_action(num_target_vision_tokens=8),
            'future_tokens.weight has shape [4, 128]',
        ),
    ],
)
def test_the_configuration_decides(written, head, change, said):
    with pytest.raises(OxygenError, match=re.escape(said)):
        Policy.from_checkpoint(written(head, change))


def test_a_layer_wise_head_has_as_many_blocks_as_the_backbone_whatever_its_configuration(written):
    """As the framework, which writes num_layers over what the file has."""
    policy = Policy.from_checkpoint(written('QwenPI', of_dit(num_layers=16)))
    assert len(policy.engine.model.action_model.model.transformer_blocks) == 4


def test_a_backbone_of_two_matrices_needs_both(written):
    folder = written('QwenPI', tie_word_embeddings=False)
    with pytest.raises(OxygenError, match=f'1 tensors differ: {HEAD} is missing'):
        Policy.from_checkpoint(folder)
    file = folder / 'checkpoints' / 'steps_1000_model.safetensors'
    stored = load_file(file)
    save_file({**stored, HEAD: stored[EMBED] + 1}, file)
    assert Policy.from_checkpoint(folder).info.effective['tied_head'] == 'False'
    base = folder / 'base_vlm' / 'config.json'
    base.write_text(json.dumps({**json.loads(base.read_text()), 'tie_word_embeddings': True}))
    with pytest.raises(OxygenError, match='with different values, but its backbone has one'):
        Policy.from_checkpoint(folder)


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        ({'patch_size': 14}, 'patch_size is 14, the vision tower was made for 16'),
        ({'merge_size': 1}, 'merge_size is 1, the vision tower was made for 2'),
        (
            {'image_processor_type': 'SiglipImageProcessor'},
            "'SiglipImageProcessor', supported: Qwen2",
        ),
    ],
)
def test_an_image_processor_of_another_tower(written, edit, values, said):
    folder = written('QwenPI')
    edit(folder / 'base_vlm' / 'preprocessor_config.json', **values)
    _, findings = Policy.preflight(folder, PolicyOptions())
    with pytest.raises(OxygenError, match=said):
        Policy.from_checkpoint(folder)
