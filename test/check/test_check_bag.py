"""A recording against the contract: topics, types, first messages, rates."""

import json

import numpy as np
import pytest
from bags import (
    BASE,
    KIND,
    STATE,
    TASK,
    WRIST,
    compressed,
    damage,
    image,
    joint_state,
    session,
    string,
    write_bag,
)
from misfits import GOLDEN, write_contract

from oxygen_ros.check import cli
from oxygen_ros.demo.recording import JOINTS

NAMES = [*JOINTS, 'lift']
INPUTS = ('camera base_0_rgb', 'camera left_wrist_0_rgb', 'joint state', 'instruction')


def recording(frames=12, names=NAMES, without=(), replaced=()):
    """A session whose joint states hold every joint of the contract."""
    lines = [
        (topic, at, joint_state(at, names) if topic == STATE else value)
        for topic, at, value in session(frames)
        if topic not in without
    ]
    return sorted([*lines, *replaced], key=lambda line: line[1])


@pytest.fixture
def of_bag(check, tmp_path):
    """The answer of oxygen_check on a bag of these lines."""

    def run(lines, *arguments, **keywords):
        return check('--bag', write_bag(tmp_path / 'bag', lines, **keywords), *arguments)

    return run


def test_a_sound_bag(of_bag):
    answer = of_bag(recording())
    assert answer.code == 0
    found = {name: answer.findings[name]['found'] for name in ('bag', *INPUTS)}
    assert found == {
        'bag': '38 messages in 0.4 s',
        'camera base_0_rgb': f'{BASE}: 12 messages, 32.0/s, rgb8 32x24',
        'camera left_wrist_0_rgb': f'{WRIST}: 12 messages, 32.0/s, png 32x24',
        'joint state': f'{STATE}: 13 messages, 34.7/s, 8 joints',
        'instruction': f"{TASK}: 1 message, 'pick up the cup'",
    }
    assert answer.verdicts('note') == {'statistics', 'cameras', 'language requests'}


@pytest.mark.parametrize('topic', [BASE, WRIST, STATE, TASK])
def test_a_missing_topic_is_a_misfit(of_bag, topic):
    answer = of_bag(recording(without=[topic]))
    check = dict(zip((BASE, WRIST, STATE, TASK), INPUTS, strict=True))[topic]
    assert answer.code == 1 and answer.verdicts('misfit') == {check}
    assert 'lacks' in answer.findings[check]['detail']


def test_raw_where_compressed_was_meant(of_bag):
    kinds = {**KIND, WRIST: KIND[BASE]}
    lines = recording(without=[WRIST], replaced=[(WRIST, 40, image(40))])
    answer = of_bag(lines, kinds=kinds)
    assert answer.verdicts('misfit') == {'camera left_wrist_0_rgb'}
    detail = answer.findings['camera left_wrist_0_rgb']['detail']
    assert 'is sensor_msgs/msg/Image; set type: image in the contract' in detail


@pytest.mark.parametrize(
    ('topic', 'messages', 'words'),
    [
        (BASE, [image(40 + i, encoding='16UC1') for i in range(3)], ['16UC1', 'depth image']),
        (WRIST, [compressed(40, text='h264')], ['h264', 'allowed are jpeg and png']),
        (STATE, [joint_state(40, names=JOINTS)], ['lacks lift of the contract']),
        (TASK, [string('  ')], ['instruction is empty']),
        (STATE, [b'\0\1\0\0nonsense'], ['are no sensor_msgs/msg/JointState']),
    ],
)
def test_messages_that_cannot_be_used(of_bag, topic, messages, words):
    replaced = [(topic, 40 + i, message) for i, message in enumerate(messages)]
    answer = of_bag(recording(without=[topic], replaced=replaced))
    check = dict(zip((BASE, WRIST, STATE, TASK), INPUTS, strict=True))[topic]
    assert answer.code == 1 and answer.verdicts('misfit') == {check}
    for word in words:
        assert word in answer.findings[check]['detail']


def test_c32_permuted_names_fit(of_bag):
    names = np.random.default_rng(0).permutation(NAMES).tolist()
    assert of_bag(recording(names=names)).code == 0


def test_some_bad_messages_are_a_note(of_bag):
    """Arms and hands often publish on one topic, each its own joints."""
    hand = [(STATE, 5 + i, joint_state(5 + i, names=['thumb'])) for i in range(4)]
    answer = of_bag(recording(replaced=hand))
    assert answer.code == 0
    finding = answer.findings['joint state']
    assert finding['verdict'] == 'note'
    assert '4 of the first 10 messages are dropped: joint state lacks' in finding['detail']


def test_joint_states_too_rare_for_their_age_limit(of_bag):
    lines = recording(frames=60, without=[STATE])
    rare = [(STATE, at, joint_state(at, NAMES)) for at in range(0, 2000, 500)]
    answer = of_bag(sorted([*lines, *rare], key=lambda line: line[1]))
    assert answer.code == 0
    detail = answer.findings['joint state']['detail']
    assert '2.0 messages a second are too few for state_max_age_ms 200, which needs 5.0' in detail


def test_a_default_makes_the_instruction_optional(of_bag):
    answer = of_bag(recording(without=[TASK]), '--set', 'default_instruction=wave')
    assert answer.code == 0 and answer.findings['instruction']['verdict'] == 'note'


def test_several_robots_in_one_bag(of_bag):
    kinds = {f'/{robot}{topic}': kind for topic, kind in KIND.items() for robot in 'ab'}
    lines = [(f'/{robot}{topic}', at, value) for topic, at, value in recording() for robot in 'ab']
    answer = of_bag(lines, kinds=kinds)
    assert answer.code == 1 and set(INPUTS) <= answer.verdicts('misfit')
    assert 'choose with --namespace' in answer.findings['joint state']['detail']


def test_one_robot_of_several(check, tmp_path):
    kinds = {f'/{robot}{topic}': kind for topic, kind in KIND.items() for robot in 'ab'}
    lines = [(f'/a{topic}', at, value) for topic, at, value in recording()]
    bag = write_bag(tmp_path / 'bag', lines, kinds=kinds)
    assert check('--bag', bag, '--namespace', 'a').code == 0
    assert check('--bag', bag, '--namespace', 'b').code == 1


def test_damage_is_a_misfit_of_what_it_hides(check, tmp_path):
    bag = write_bag(tmp_path / 'bag', recording())
    damage(bag)
    answer = check('--bag', bag)
    assert answer.code == 1 and set(INPUTS) <= answer.verdicts('misfit')
    assert 'damaged' in answer.findings['joint state']['detail']


def run(capsys, tmp_path, *arguments):
    """Exit code, stdout and stderr of a run whose contract fits."""
    robot = write_contract(tmp_path / 'robot.yaml')
    try:
        code = cli.main([*map(str, arguments), '--robot', str(robot)])
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        ([], 'checkpoint is not given'),
        (['--checkpoint', '/no/such'], '/no/such is not a folder'),
        (['--checkpoint', GOLDEN, '--params', '/no/such.yaml'], '/no/such.yaml'),
        (['--checkpoint', GOLDEN, '--bag', '/no/such'], 'bag /no/such does not exist'),
        (['--checkpoint', GOLDEN, '--bag', GOLDEN], 'no rosbag2 folder'),
        (['--checkpoint', GOLDEN, '--set', 'max_rows=0'], 'max_rows is 0: must be'),
        (['--checkpoint', GOLDEN, '--json', '/no/such/out.json'], 'does not exist'),
        (['--checkpoint', GOLDEN, '--bag', 'x', '--live'], 'not allowed with'),
        (['--checkpoint', GOLDEN, '--live', '--seconds', '-1'], 'is not from above 0'),
        (['--checkpoint', GOLDEN, '--live', '--seconds', 'nan'], 'is not from above 0'),
    ],
)
def test_unusable_arguments(capsys, tmp_path, arguments, words):
    code, out, err = run(capsys, tmp_path, *arguments)
    assert (code, out) == (2, '') and words in err


def test_a_contract_that_cannot_be_read(capsys, tmp_path):
    (tmp_path / 'bad.yaml').write_text('robot: [')
    for robot, words in (('nobody', 'does not exist'), (tmp_path / 'bad.yaml', 'not valid YAML')):
        assert cli.main(['--checkpoint', str(GOLDEN), '--robot', str(robot)]) == 2
        assert words in capsys.readouterr().err


def test_json_on_the_terminal_is_json_alone(capsys, tmp_path):
    code, out, err = run(capsys, tmp_path, '--checkpoint', GOLDEN, '--json', '-')
    assert code == 0 and json.loads(out)['fits'] is True and 'all fits' in err


def test_unknown_parameters_are_a_note(check, tmp_path):
    params = tmp_path / 'params.yaml'
    params.write_text('/**:\n  ros__parameters:\n    max_rowz: 3\n')
    answer = check('--params', params)
    assert answer.code == 0
    assert 'did you mean max_rows?' in answer.findings['parameters']['detail']
