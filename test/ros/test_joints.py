"""Joint units between robot and checkpoint: the formula, the contract's block, live and replay."""

import numpy as np
import pytest
import yaml

from oxygen_ros.ros.contract import contract_path, load_contract
from oxygen_ros.ros.conversions import joint_vector
from oxygen_ros.ros.joints import Joint, JointMap
from oxygen_ros.ros.observation_buffer import ObservationBuffer
from oxygen_ros.types import ActionChunk, OxygenError

# Open at 0.0 and closed at 0.8 on the robot; 1 is open and 0 is closed in the model.
OPEN_IS_1 = {'offset': 0.8, 'scale': 0.8, 'invert': True}
# The same robot where the model says 0 open and 1 closed.
OPEN_IS_0 = {'scale': 0.8}


@pytest.fixture
def load(tmp_path):
    """The demo's contract with this block `joints`."""

    def write_and_load(joints):
        tree = yaml.safe_load(contract_path('demo').read_text())
        file = tmp_path / 'robot.yaml'
        file.write_text(yaml.safe_dump({**tree, 'joints': joints}))
        return load_contract(file)

    return write_and_load


def gripper(values):
    """Joints of the demo, of which only the gripper is not 0."""
    vectors = np.zeros((len(values), 7), np.float32)
    vectors[:, 6] = values
    return vectors


@pytest.mark.parametrize(
    ('units', 'opened', 'closed'), [(OPEN_IS_1, 1.0, 0.0), (OPEN_IS_0, 0.0, 1.0)]
)
def test_c37_gripper_polarity_in_state_and_action(load, units, opened, closed):
    contract = load({'gripper': units})
    state, actions = JointMap(contract.state.joints), JointMap(contract.actions.joints)
    robot, model = gripper([0.0, 0.2, 0.8]), gripper([opened, (opened * 3 + closed) / 4, closed])
    np.testing.assert_allclose(state.to_model(robot), model, atol=1e-6)
    np.testing.assert_allclose(actions.to_robot(model), robot, atol=1e-6)
    assert state.to_model(robot).dtype == actions.to_robot(model).dtype == np.float32


@pytest.mark.parametrize('units', [OPEN_IS_1, OPEN_IS_0, {'scale': -57.3, 'offset': 90}])
def test_what_the_robot_does_is_what_it_will_report(load, units):
    """A command that is carried out and measured comes back to the model as it was given."""
    contract = load({'gripper': units})
    commanded = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    carried_out = JointMap(contract.actions.joints).to_robot(commanded)
    assert not np.array_equal(carried_out[:, 6], commanded[:, 6])
    np.testing.assert_array_equal(carried_out[:, :6], commanded[:, :6])
    measured = JointMap(contract.state.joints).to_model(carried_out)
    np.testing.assert_allclose(measured, commanded, rtol=1e-4, atol=1e-5)


def test_invert_is_a_negative_scale():
    robot = np.array([0.0, 0.3, 0.8], np.float32)
    by_flag = JointMap([Joint('a', 0.8, 0.8, invert=True)] * 3)
    by_sign = JointMap([Joint('a', -0.8, 0.8)] * 3)
    np.testing.assert_array_equal(by_flag.to_model(robot), by_sign.to_model(robot))


def test_joints_that_are_not_named_keep_every_bit(load):
    values = np.array([[-0.0, np.nan, 1e-45, -np.inf, 3e38, 0.1, 0.7]], np.float32)
    same = JointMap(load({'gripper': {}}).state.joints)
    assert same.to_model(values).tobytes() == same.to_robot(values).tobytes() == values.tobytes()


def test_a_chunk_keeps_all_but_its_values(load):
    units = JointMap(load({'gripper': OPEN_IS_1}).actions.joints)
    chunk = units.chunk_to_robot(ActionChunk(gripper([1.0, 0.0]), 3, 40, 50, 60))
    assert chunk.actions[:, 6] == pytest.approx([0.0, 0.8])
    assert (chunk.frame, chunk.stamp_ns, chunk.began_ns, chunk.ended_ns) == (3, 40, 50, 60)


def test_too_large_for_the_robot_becomes_not_finite():
    """Session refuses such a chunk whole."""
    with np.errstate(all='raise'):
        robot = JointMap([Joint('a', scale=1e30)]).to_robot(np.array([1e30], np.float32))
    assert np.isinf(robot).all()


class Msg:
    def __init__(self, **fields):
        self.__dict__.update(fields)


@pytest.mark.parametrize('seed', range(3))
def test_c32_observations_are_mapped_by_name_whatever_the_order(load, seed):
    contract = load({'gripper': OPEN_IS_1, 'elbow': {'scale': 0.5, 'offset': -1}})
    value = {name: 0.1 * i for i, name in enumerate(contract.state.names)}
    value |= {'gripper': 0.2, 'elbow': 1.5, 'a joint of the legs': 9.0}
    names = np.random.default_rng(seed).permutation(sorted(value)).tolist()
    message = Msg(name=names, position=[value[name] for name in names])
    buffer = ObservationBuffer(contract)
    buffer.set_instruction('go')
    buffer.add_joint_state(joint_vector(message, contract.state.names), 5, 5)
    image = np.zeros((4, 4, 3), np.uint8)
    assert buffer.add_image('base_0_rgb', image, 6, 6) is None
    observation = buffer.add_image('left_wrist_0_rgb', image, 6, 6)
    np.testing.assert_allclose(observation.state, [0, 0.1, 5.0, 0.3, 0.4, 0.5, 0.75], atol=1e-6)


WRONG = [
    ({'gripper': {'scale': 0}}, ['joints.gripper', 'scale is 0', 'must not be 0']),
    ({'gripper': {'scale': float('inf')}}, ['joints.gripper.scale is inf', 'finite']),
    ({'gripper': {'offset': float('nan')}}, ['joints.gripper.offset is nan', 'finite']),
    ({'gripper': {'scale': 10**400}}, ['joints.gripper.scale', 'finite']),
    ({'gripper': {'scale': '1e-3'}}, ["joints.gripper.scale is '1e-3'", '1.0e-3']),
    ({'gripper': {'scale': True}}, ['joints.gripper.scale is True', 'finite']),
    ({'gripper': {'invert': 1}}, ['joints.gripper.invert is 1', 'true or false']),
    ({'gripper': {'scale': -0.8, 'invert': True}}, ['joints.gripper', 'cancel out']),
    ({'gripper': {'scale': 1e-6, 'offset': 1000.0}}, ['joints.gripper', 'come back', '32-bit']),
    ({'gripper': {'scale': 1e-320}}, ['joints.gripper', 'come back']),
    ({'gripper': {'offset': 1e300}}, ['joints.gripper', 'come back']),
    (
        {'gripper': {'scael': 0.8}},
        ["unknown key 'scael'", '{scale, offset, invert, lower, upper,'],
    ),
    ({'griper': {'scale': 0.8}}, ['{griper}', 'neither in state.joints', 'gripper']),
    ({}, ['joints is {}', 'at least one entry']),
    ([{'name': 'gripper'}], ['joints is [', 'a mapping']),
]


@pytest.mark.parametrize(('joints', 'words'), WRONG)
def test_wrong_units_are_refused_at_load(load, joints, words):
    with pytest.raises(OxygenError) as caught:
        load(joints)
    for word in ['robot.yaml', *words]:
        assert word in str(caught.value)


def test_a_joint_of_the_state_alone_may_have_units(tmp_path):
    tree = yaml.safe_load(contract_path('demo').read_text())
    tree['state']['joints'].append({'name': 'lift'})
    tree['joints'] = {'lift': {'scale': 0.001}}
    file = tmp_path / 'robot.yaml'
    file.write_text(yaml.safe_dump(tree))
    contract = load_contract(file)
    assert contract.state.joints[-1] == Joint('lift', 0.001)
    assert not any(joint.is_mapped for joint in contract.actions.joints)
