"""Contracts: what is read, what is refused and how, what fits a checkpoint. Needs no rclpy."""

import copy
import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from oxygen_ros.ros.contract import Camera, Timing, _contract, load_contract, refuse_shared_topics
from oxygen_ros.ros.joints import JointMap
from oxygen_ros.ros.motion.limits import Limits
from oxygen_ros.ros.motion.mover import Mover
from oxygen_ros.ros.observation_buffer import ObservationBuffer
from oxygen_ros.ros.preflight import check_contract
from oxygen_ros.ros.yaml_tree import Node
from oxygen_ros.types import ActionChunk, OxygenError, PolicyInfo, Verdict

ROBOTS = Path(__file__).parents[2] / 'config' / 'robots'


def info(cameras=('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb'), state=7, action=7):
    return PolicyInfo('pi05', tuple(cameras), state, action, horizon=10, max_prefix_tokens=100)


@pytest.fixture
def tree():
    return yaml.safe_load((ROBOTS / 'demo.yaml').read_text())


@pytest.fixture
def load(tmp_path):
    def write_and_load(tree):
        file = tmp_path / 'robot.yaml'
        file.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree, sort_keys=False))
        return load_contract(file)

    return write_and_load


def test_demo_contract():
    contract = load_contract('demo')
    assert contract.robot == 'demo_arm'
    assert contract.cameras == (
        Camera('base_0_rgb', 'cameras/base/image_raw', 'image', True),
        Camera('left_wrist_0_rgb', 'cameras/wrist/image_raw/compressed', 'compressed', True),
    )
    assert contract.state.names[0] == 'shoulder_pan'
    assert contract.actions.names == contract.state.names
    assert contract.actions.when_expired == 'hold'
    assert contract.timing == Timing(50.0, 500.0, 200.0)
    assert contract.path == str(ROBOTS / 'demo.yaml')
    assert texts(contract, info(), Verdict.MISFIT) == []


@pytest.mark.parametrize('file', sorted(ROBOTS.glob('*.yaml')), ids=lambda file: file.stem)
def test_every_shipped_contract_loads_by_path_and_by_name(file):
    assert load_contract(file) == load_contract(file.stem)


def test_whole_numbers_are_numbers(tree, load):
    tree['actions'] |= {'step_period_s': 1, 'valid_for_s': 2}
    tree['timing']['sync_tolerance_ms'] = 40
    contract = load(tree)
    assert (contract.actions.step_period_s, contract.actions.valid_for_s) == (1.0, 2.0)
    assert isinstance(contract.timing.sync_tolerance_ms, float)


def test_defaults(tree, load):
    del tree['timing'], tree['instruction']['default'], tree['actions']['when_expired']
    tree['cameras'] = {'base_0_rgb': {'topic': '/head'}}
    contract = load(tree)
    assert contract.timing == Timing()
    assert contract.instruction.default == ''
    assert contract.actions.when_expired == 'hold'
    assert contract.cameras == (Camera('base_0_rgb', '/head', 'image', True),)


def test_limits_and_merging_are_read(tree, load):
    tree['joints']['gripper'] |= {'lower': 0, 'upper': 0.8, 'max_acceleration': 4}
    tree['actions'] |= {'merge': 'blend', 'blend_steps': 3, 'trajectory_topic': 'arm/trajectory'}
    actions = load(tree).actions
    gripper = actions.joints[-1]
    assert (gripper.lower, gripper.upper, gripper.max_acceleration) == (0.0, 0.8, 4.0)
    assert gripper.max_velocity is None
    assert (actions.merge, actions.blend_steps) == ('blend', 3)
    assert actions.trajectory_topic == 'arm/trajectory'


def put(*keys, value):
    """A change to the tree: the value at the end of the keys, or its removal."""

    def change(tree):
        for key in keys[:-1]:
            tree = tree[key]
        if value is put:
            del tree[keys[-1]]
        else:
            tree[keys[-1]] = value

    return change


WRONG = [
    (put('robto', value='x'), ["unknown key 'robto'", '{robot, cameras, state, actions']),
    (put('robot', value=put), ["lacks the key 'robot'"]),
    (put('robot', value=7), ['robot is 7', 'text']),
    (put('cameras', value={}), ['cameras is {}', 'at least one']),
    (put('cameras', value=['a']), ["cameras is ['a']", 'a mapping']),
    (
        put('cameras', 'base_0_rgb', 'tpye', value='image'),
        ["cameras.base_0_rgb has the unknown key 'tpye'", '{topic, type, required}'],
    ),
    (put('cameras', 'base_0_rgb', 'type', value='raw'), ["'raw'", '{image, compressed}']),
    (put('cameras', 'base_0_rgb', 'required', value='yes'), ["required is 'yes'", 'true or']),
    (put('cameras', 'base_0_rgb', 'topic', value='a b'), ["topic is 'a b'", 'topic name']),
    (
        put('cameras', 'base_0_rgb', 'topic', value='cameras/wrist/image_raw/compressed'),
        [
            'cameras.base_0_rgb.topic and cameras.left_wrist_0_rgb.topic are the same topic '
            'cameras/wrist/image_raw/compressed'
        ],
    ),
    (put('state', 'joints', value=[]), ['state.joints is []', 'at least one']),
    (
        put('state', 'joints', 1, value={'name': 'shoulder_pan'}),
        ['state.joints names the joint {shoulder_pan} more than once'],
    ),
    (put('state', 'joints', 0, value='shoulder_pan'), ['state.joints[0]', '{name}']),
    (put('state', 'joints', 0, value={'name': ''}), ['state.joints[0].name is empty']),
    (put('actions', 'step_period_s', value='fast'), ["step_period_s is 'fast'", '0.001 to 60']),
    (put('actions', 'step_period_s', value=0), ['step_period_s is 0', '0.001 to 60']),
    (put('actions', 'step_period_s', value=True), ['step_period_s is True', '0.001 to 60']),
    (put('actions', 'step_period_s', value=float('nan')), ['step_period_s is nan', '0.001 to 60']),
    (put('actions', 'valid_for_s', value=0.01), ['valid_for_s is 0.01', 'step_period_s (0.05)']),
    (put('actions', 'when_expired', value='stop'), ["'stop'", '{hold, ramp, silence}']),
    (put('actions', 'when_stopped', value='ramp'), ["'ramp'", '{hold, silence}']),
    (put('actions', 'merge', value='mix'), ["'mix'", '{replace, blend, average, realtime}']),
    (
        put('actions', 'blend_steps', value=0),
        ['blend_steps is 0', 'a whole number from 1 to 10000'],
    ),
    (put('actions', 'blend_steps', value=1.5), ['blend_steps is 1.5', 'a whole number']),
    (put('actions', 'trajectory_topic', value='a b'), ["'a b'", 'a topic name']),
    (put('actions', 'trajectory_topic', value=' '), ["trajectory_topic is ' '", 'a text']),
    (put('actions', 'trajectory_topic', value='x' * 201), ['trajectory_topic is', 'a topic name']),
    (put('actions', 'trajectory_topic', value='~/language/x'), ["the node's own"]),
    (put('actions', 'step_period_s', value=1e-10), ['step_period_s is 1e-10', '0.001 to 60']),
    (put('actions', 'valid_for_s', value=1e12), ['valid_for_s is 1000000000000.0', '0.001 to']),
    (put('joints', 'gripper', 'max_velocity', value=0), ['gripper.max_velocity is 0', '1e-06 to']),
    (
        put('joints', 'gripper', value={'lower': 0.8, 'upper': 0.0}),
        ['joints.gripper', 'lower 0.8 must be below upper 0'],
    ),
    (put('instruction', value='pick'), ["instruction is 'pick'", '{topic, default}']),
    (put('timing', 'state_max_age_ms', value=-1), ['timing.state_max_age_ms is -1']),
]


@pytest.mark.parametrize(('change', 'words'), WRONG)
def test_refused_with_file_key_and_what_is_allowed(change, words, tree, load):
    change(tree)
    with pytest.raises(OxygenError) as caught:
        load(tree)
    for word in ['robot.yaml', *words]:
        assert word in str(caught.value)


USERS = {
    'cameras.base_0_rgb.topic': ('cameras', 'base_0_rgb', 'topic'),
    'cameras.left_wrist_0_rgb.topic': ('cameras', 'left_wrist_0_rgb', 'topic'),
    'state.topic': ('state', 'topic'),
    'instruction.topic': ('instruction', 'topic'),
    'actions.trajectory_topic': ('actions', 'trajectory_topic'),
}


@pytest.mark.parametrize(('first', 'second'), itertools.combinations(USERS, 2))
def test_two_entries_of_one_topic_are_refused(first, second, tree, load):
    for user in (first, second):
        put(*USERS[user], value='shared')(tree)
    with pytest.raises(OxygenError, match=f'{first} and {second} are the same topic shared'):
        load(tree)


@pytest.mark.parametrize('user', USERS)
def test_a_topic_of_the_node_itself_is_refused(user, tree, load):
    put(*USERS[user], value='~/action')(tree)
    with pytest.raises(OxygenError, match=f"{user} and the node's own are the same topic"):
        load(tree)


def test_topics_that_are_one_in_the_graph_are_refused(tree, load):
    put('actions', 'trajectory_topic', value='/joint_states')(tree)
    contract = load(tree)  # in a namespace they are two
    refuse_shared_topics(contract, lambda topic: topic if topic[0] == '/' else f'/robot/{topic}')
    with pytest.raises(OxygenError, match='same topic /joint_states'):
        refuse_shared_topics(contract, lambda topic: f'/{topic.lstrip("/")}')


VALUES = [None, '', ' ', 'x', '~/x', 'x' * 300, True, 0, -1, 7, 10**30, -0.0, 1e-300, 1e-10, 1e-3,
          0.3, 60.0, 1e6, 1e300, math.inf, math.nan, [], {}, ['x'], {'name': 'x'}]  # fmt: skip


def leaves(tree, keys=()):
    """The place of every value that is no mapping or list."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in pairs:
        if isinstance(value, dict | list):
            yield from leaves(value, (*keys, key))
        yield (*keys, key)


def whole(tree):
    """The demo's contract with every key that there is."""
    tree['actions'] |= {'when_expired': 'ramp', 'ramp_s': 0.3, 'blend_steps': 4, 'merge': 'blend',
                        'trajectory_topic': 'arm', 'when_stopped': 'hold'}  # fmt: skip
    tree['joints']['gripper'] |= {'lower': 0.0, 'upper': 1.0, 'max_velocity': 1.0,
                                  'max_acceleration': 2.0}  # fmt: skip
    tree['timing'] = {'sync_tolerance_ms': 50, 'image_max_age_ms': 500, 'state_max_age_ms': 200}
    return tree


@pytest.mark.filterwarnings('error')
def test_whatever_a_value_is_the_contract_is_refused_or_moves_a_robot(tree, load):
    """Through the buffer and the mover, to the ends of the chunk and of its ramp."""
    whole(tree)
    runs = 0
    for keys in leaves(tree):
        for value in VALUES:
            changed = copy.deepcopy(tree)
            put(*keys, value=value)(changed)
            try:
                contract = contract_of(changed)
            except OxygenError as error:
                assert 'robot.yaml' in str(error)
                continue
            move(contract)
            runs += 1
    assert runs > 100


def contract_of(tree):
    """What load_contract makes of a file, without the file."""
    return _contract(Node(tree, 'robot contract robot.yaml'), 'robot.yaml')


def move(contract):
    """A frame comes of the contract's inputs, and a chunk is streamed to its end."""
    begin_ns, names = 10**18, contract.state.names
    buffer = ObservationBuffer(contract, judge_stamps=True)
    buffer.set_instruction('go')
    buffer.add_joint_state(np.zeros(len(names), np.float32), begin_ns, begin_ns)
    pixels = np.zeros((2, 2, 3), np.uint8)
    seen = [buffer.add_image(slot, pixels, begin_ns, begin_ns) for slot in contract.slots]
    assert any(seen)
    actions = contract.actions
    mover = Mover(actions, 1 / 70)
    model = np.tile(np.linspace(0, 0.5, 10, dtype=np.float32)[:, None], len(actions.names))
    rows = JointMap(actions.joints).to_robot(model)
    assert Limits(actions.joints).problem(rows)[0] in ('', 'chunk_out_of_limits')
    plan = mover.offer(ActionChunk(rows, 0, begin_ns, 0, 0), begin_ns)
    assert np.isfinite(mover.rows_ahead(plan, begin_ns)[0]).all()
    span_s = max(actions.valid_for_s, 10 * actions.step_period_s) + actions.ramp_s
    for now_ns in (begin_ns + np.linspace(0, 1.1e9 * span_s, 40)).astype(np.int64).tolist():
        step = mover.tick(now_ns, now_ns)
        assert step is None or np.isfinite(step.values).all()
        for seconds in (now_ns + round(actions.valid_for_s * 1e9)) // 10**9, now_ns // 10**9:
            assert seconds < 2**31


def test_no_required_camera(tree, load):
    for camera in tree['cameras'].values():
        camera['required'] = False
    with pytest.raises(OxygenError, match='required: true'):
        load(tree)


def test_key_given_twice(load):
    with pytest.raises(OxygenError, match="key 'robot' is given twice"):
        load('robot: a\nrobot: b\n')


@pytest.mark.parametrize('text', ['robot: [', 'a: b: c', '\t'])
def test_broken_yaml(text, load):
    with pytest.raises(OxygenError, match=r'robot\.yaml is not valid YAML'):
        load(text)


@pytest.mark.parametrize('text', ['', '- a\n', 'just words'])
def test_yaml_that_is_no_mapping(text, load):
    with pytest.raises(OxygenError, match='must be a mapping with the keys'):
        load(text)


@pytest.mark.parametrize('name', ['nobody', '/no/such/robot.yaml'])
def test_missing_file_lists_the_shipped_ones(name):
    with pytest.raises(OxygenError) as caught:
        load_contract(name)
    assert name in str(caught.value) and 'does not exist' in str(caught.value)
    assert 'demo, humanoid_upper_body' in str(caught.value)


def test_empty_name():
    with pytest.raises(OxygenError, match='robot is empty'):
        load_contract('')


def test_binary_file(tmp_path):
    (tmp_path / 'x.yaml').write_bytes(b'\xff\xfe\x00')
    with pytest.raises(OxygenError, match='cannot be read'):
        load_contract(tmp_path / 'x.yaml')


def texts(contract, model, verdict):
    """What the findings of one kind say."""
    found = check_contract(contract, model)
    return [finding.detail for finding in found if finding.verdict is verdict]


def test_c12_camera_names_list_both_sets():
    contract = dataclasses.replace(
        load_contract('demo'), cameras=(Camera('front', 'a'), Camera('side', 'b'))
    )
    (problem,) = texts(contract, info(), Verdict.MISFIT)
    assert 'contract has {front, side}' in problem
    assert 'model has {base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb}' in problem


@pytest.mark.parametrize('dim', [6, 8, 40])
def test_c50_joint_counts(dim):
    problems = texts(load_contract('demo'), info(state=dim, action=dim), Verdict.MISFIT)
    assert len(problems) == 2
    for part, problem in zip(('state', 'actions'), problems, strict=True):
        assert problem.startswith(f'{part}.joints of the contract names 7 joints')
        assert f'the model has {dim}' in problem and 'shoulder_pan' in problem
    hints = ['set state_dim to 7 in oxygen.json' in problems[0], 'action_dim to 7' in problems[1]]
    assert hints == [dim > 7, dim > 7]


def test_c14_unmapped_cameras_are_a_note_not_a_problem():
    assert texts(load_contract('demo'), info(), Verdict.NOTE) == [
        'model cameras {right_wrist_0_rgb} are not in the contract: '
        'they are masked and not computed'
    ]


@pytest.mark.parametrize(
    ('valid_for_s', 'words'), [(2.0, 'end after 0.5 s'), (0.15, 'lets 3 of the 10 rows count')]
)
def test_validity_against_horizon_is_a_note(valid_for_s, words):
    contract = load_contract('demo')
    actions = dataclasses.replace(contract.actions, valid_for_s=valid_for_s)
    notes = texts(dataclasses.replace(contract, actions=actions), info(), Verdict.NOTE)
    assert any(words in note for note in notes)


def test_nothing_is_said_to_fit_a_model_that_is_not_known():
    (finding,) = check_contract(load_contract('demo'), None)
    assert (finding.found, finding.verdict) == ('not checked', Verdict.NOTE)
