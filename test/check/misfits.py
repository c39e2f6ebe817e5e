"""Everything that oxygen_check and the node must refuse before weights are loaded."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file

from oxygen_ros.ros.contract import contract_path

GOLDEN = Path(__file__).parents[1] / 'golden' / 'pi05_lerobot' / 'checkpoint'
STATE_FILE = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
ACTION_FILE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'
LANGUAGE = 'paligemma_with_expert.paligemma.model.language_model.'
K_PROJ = LANGUAGE + 'layers.1.self_attn.k_proj.weight'


@dataclass(frozen=True)
class Case:
    """What is wrong, the line of the table that must say so, and the words it must use."""

    check: str
    words: tuple
    checkpoint: object = None  # function of the folder
    contract: object = None  # function of the tree
    parameters: dict = field(default_factory=dict)


def copy_checkpoint(folder, change=None):
    """A private copy of the golden checkpoint, damaged by change(folder)."""
    shutil.copytree(GOLDEN, folder)
    if change is not None:
        change(folder)
    return folder


def write_contract(file, change=None):
    """A contract that fits the golden checkpoint, changed by change(tree)."""
    tree = yaml.safe_load(contract_path('demo').read_text())
    tree['state']['joints'].append({'name': 'lift'})
    if change is not None:
        change(tree)
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    return file


def tensors(change, file='model.safetensors'):
    """A change of the tensors of one file, in place."""

    def rewrite(folder):
        stored = load_file(folder / file)
        change(stored)
        save_file(stored, folder / file)

    return rewrite


def transpose(name):
    def change(stored):
        stored[name] = np.ascontiguousarray(stored[name].T)

    return tensors(change)


def edit_json(name, **values):
    def rewrite(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return rewrite


def truncate(folder):
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-1000])


def forty_joints(tree):
    names = [{'name': f'joint_{i}'} for i in range(40)]
    tree['state']['joints'], tree['actions']['joints'] = names, names
    del tree['joints']


def other_cameras(tree):
    topics = tree['cameras'].values()
    tree['cameras'] = dict(zip(('front', 'side'), topics, strict=True))


CASES = {
    'renamed tensor': Case(
        'weights',
        (f'{K_PROJ} is missing', f'{K_PROJ}s is unexpected'),
        tensors(lambda t: t.update({f'model.{K_PROJ}s': t.pop(f'model.{K_PROJ}')})),
    ),
    'missing tensor': Case(
        'weights',
        ('time_mlp_out.bias is missing', '1 tensors differ'),
        tensors(lambda t: t.pop('model.time_mlp_out.bias')),
    ),
    'missing tensor of those that sizes are read from': Case(
        'weights',
        ('tensor action_in_proj.weight is missing',),
        tensors(lambda t: t.pop('model.action_in_proj.weight')),
    ),
    'transposed tensor': Case(
        'weights',
        ('action_out_proj.weight has shape [48, 32], [32, 48] expected',),
        transpose('model.action_out_proj.weight'),
    ),
    'extra tensor': Case(
        'weights',
        ('surprise.weight is unexpected',),
        tensors(lambda t: t.update({'model.surprise.weight': np.zeros(3, np.float32)})),
    ),
    'truncated weights': Case('weights', ('model.safetensors', 'truncated'), truncate),
    'no statistics': Case(
        'statistics',
        (STATE_FILE, 'does not exist'),
        lambda folder: (folder / STATE_FILE).unlink(),
    ),
    'statistics of the wrong width': Case(
        'statistics',
        (ACTION_FILE, 'action', '6', '7 expected'),
        tensors(
            lambda t: t.update({f'action.{q}': t[f'action.{q}'][:6] for q in ('q01', 'q99')}),
            ACTION_FILE,
        ),
    ),
    'statistics without a range': Case(
        'statistics',
        (STATE_FILE, 'q01 = q99'),
        tensors(
            lambda t: t.update({'observation.state.q99': t['observation.state.q01']}), STATE_FILE
        ),
    ),
    'an action without a range': Case(
        'statistics',
        (ACTION_FILE, 'q01 = q99 at [3]', 'constant_dimensions'),
        tensors(lambda t: t['action.q99'].put(3, t['action.q01'][3]), ACTION_FILE),
    ),
    'statistics under another name': Case(
        'statistics',
        (STATE_FILE, 'observation.state.q01', 'missing'),
        tensors(lambda t: t.update({'state.q01': t.pop('observation.state.q01')}), STATE_FILE),
    ),
    'no tokenizer': Case(
        'tokenizer',
        ('tokenizer.json', '"tokenizer" in oxygen.json'),
        lambda folder: shutil.rmtree(folder / 'tokenizer'),
    ),
    'a broken tokenizer': Case(
        'tokenizer',
        ('tokenizer cannot be loaded',),
        lambda folder: (folder / 'tokenizer' / 'tokenizer.json').write_text('{"model": 3}'),
    ),
    'a tokenizer of other special ids': Case(
        'tokenizer',
        ('has eos id 2', "PaliGemma's is 1"),
        edit_json('tokenizer/tokenizer_config.json', bos_token='<eos>', eos_token='<bos>'),
    ),
    'another policy': Case(
        'checkpoint', ("type is 'act'", 'supported: pi05'), edit_json('config.json', type='act')
    ),
    'cameras of another robot': Case(
        'cameras',
        ('{front, side}', '{base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb}'),
        contract=other_cameras,
    ),
    'more joints than the model has actions': Case(
        'actions', ('names 40 joints', 'the model has 7 actions'), contract=forty_joints
    ),
    'a joint too few': Case(
        'state',
        ('names 7 joints', 'the model has 8 state'),
        contract=lambda tree: tree['state']['joints'].pop(),
    ),
    'a KV pool larger than allowed': Case(
        'KV pool', ('9 KV rows of 568 tokens', 'max_kv_mb'), parameters={'max_kv_mb': 1}
    ),
    # Rows of a tiny model are small, so they are made long instead of many.
    'more KV rows than memory': Case(
        'memory',
        ('are needed and', 'are free on cpu', 'lower max_rows'),
        edit_json('config.json', chunk_size=50_000_000),
        parameters={'max_rows': 256, 'max_kv_mb': 10_000_000},
    ),
    'a device that is not there': Case(
        'memory', ("device 'cuda:99' is not there",), parameters={'device': 'cuda:99'}
    ),
}
