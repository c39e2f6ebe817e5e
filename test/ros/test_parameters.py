"""The parameter table, its file, its documentation and its checks."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from oxygen_ros.policy import PolicyOptions
from oxygen_ros.ros.parameters import (
    ROWS,
    TABLE,
    check,
    check_all,
    missed_files,
    policy_options,
    read_yaml,
)
from oxygen_ros.ros.task_parameters import FIELDS
from oxygen_ros.tasks import TaskRule
from oxygen_ros.types import OxygenError

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / 'config' / 'oxygen.yaml'
DOCS = ROOT / 'docs' / 'topics-and-parameters.md'


def plain(value):
    return list(value) if isinstance(value, tuple) else value


def test_the_shipped_file_holds_every_parameter_with_its_default():
    section = yaml.safe_load(FILE.read_text())['/**']['ros__parameters']
    assert section == {row.name: plain(row.default) for row in TABLE}
    assert read_yaml(FILE) == (check_all({}), [])


def test_every_parameter_of_the_shipped_file_has_a_comment_above_it():
    lines = FILE.read_text().splitlines()
    for row in TABLE:
        index = next(i for i, line in enumerate(lines) if line.strip().startswith(f'{row.name}:'))
        assert lines[index - 1].strip().startswith('#'), row.name


@pytest.mark.parametrize('row', TABLE, ids=lambda row: row.name)
def test_every_parameter_has_its_row_in_the_docs(row):
    shown = next(
        (line for line in DOCS.read_text().splitlines() if line.startswith(f'| `{row.name}` |')),
        None,
    )
    assert shown is not None
    cells = [cell.strip() for cell in shown.strip('|').split('|')]
    assert (
        yaml.safe_load(cells[1].strip('`')) == yaml.safe_load(yaml.safe_dump(plain(row.default)))
        or cells[1] == '`5`'
    )
    assert cells[2] == row.allowed
    assert cells[3].startswith(row.description)


def test_the_engine_defaults_are_the_policys():
    options = policy_options(check_all({}))
    assert PolicyOptions(**options) == PolicyOptions()
    assert set(options) == {f.name for f in dataclasses.fields(PolicyOptions)}


@pytest.mark.parametrize(
    ('name', 'given', 'kept'),
    [
        ('action_rate_hz', 70, 70.0),
        ('status_period_s', 1, 1.0),
        ('budget', 7, '7'),
        ('budget', 'auto', 'auto'),
        ('budget', 'unlimited', 'unlimited'),
        ('device', 'cuda:1', 'cuda:1'),
        ('language_tasks', ['plan'], ('plan',)),
    ],
)
def test_what_is_accepted(name, given, kept):
    value = check(name, given)
    assert value == kept and type(value) is type(ROWS[name].default)


@pytest.mark.parametrize(
    ('name', 'given'),
    [
        ('action_rate_hz', float('nan')),
        ('action_rate_hz', 0),
        ('action_rate_hz', '70'),
        ('action_rate_hz', True),
        ('autostart', 'true'),
        ('autostart', 1),
        ('budget', '-1'),
        ('budget', 'some'),
        ('budget', 2.5),
        ('device', 'gpu'),
        ('dtype', 'float16'),
        ('mode', ''),
        ('max_rows', 0),
        ('max_rows', 2.0),
        ('max_rows', None),
        ('seed', -1),
        ('checkpoint', ['a']),
        ('language_tasks', ['cancel']),
        ('language_tasks', ['a b']),
        ('language_tasks', ['a', 'a']),
        ('language_tasks', 'conversation'),
        ('language_tasks', [1]),
    ],
)
def test_what_is_refused_by_name_with_what_is_allowed(name, given):
    with pytest.raises(OxygenError) as caught:
        check(name, given)
    assert str(caught.value) == f'parameter {name} is {given!r}: must be {ROWS[name].allowed}'


def test_tasks_become_rules_and_those_not_given_have_their_defaults(tmp_path):
    file = tmp_path / 'p.yaml'
    file.write_text(
        '/**:\n  ros__parameters:\n    language_tasks: [subtask, plan]\n'
        '    tasks: {subtask: {prompt: "what now?", every_s: 1, max_tokens: 24}}\n'
        '    tasks.plan.every_frames: 30\n'
    )
    values, warnings = read_yaml(file)
    assert warnings == []
    assert values['tasks.subtask.every_s'] == 1.0 and values['tasks.plan.max_pending'] == 1
    assert policy_options(values)['tasks'] == (
        TaskRule('subtask', 'what now?', every_s=1.0, max_tokens=24),
        TaskRule('plan', every_frames=30),
    )


@pytest.mark.parametrize(
    ('given', 'named'),
    [
        ({'tasks.memory.every_s': -1}, 'tasks.memory.every_s is -1: must be a number from 0'),
        ({'tasks.memory.max_pending': 0}, 'tasks.memory.max_pending is 0'),
        ({'tasks.memory.prompt': 3.5}, 'tasks.memory.prompt is 3.5: must be a text'),
        ({'tasks.memory.every_s': 1, 'tasks.memory.every_frames': 2}, 'memory: every_frames is 2'),
        (
            {'tasks.memory.every_s': 1, 'tasks.memory.max_tokens': 300},
            'tasks.memory.max_tokens is 300: must be at most max_new_tokens',
        ),
    ],
)
def test_a_task_that_cannot_be_used_is_refused_by_name(given, named):
    with pytest.raises(OxygenError, match=named):
        check_all(given)


def test_a_task_or_field_that_does_not_exist_is_a_warning(tmp_path):
    file = tmp_path / 'p.yaml'
    file.write_text(
        '/**:\n  ros__parameters:\n'
        '    tasks: {subtask: {promt: a}, dance: {prompt: b}, memory: 1}\n'
    )
    values, warnings = read_yaml(file)
    assert values == check_all({})
    assert warnings == [
        'unknown parameter tasks.dance.prompt: dance is not in language_tasks '
        '(conversation, memory, subtask)',
        'unknown parameter tasks.memory: did you mean tasks.memory.prompt?',
        'unknown parameter tasks.subtask.promt: did you mean tasks.subtask.prompt?',
    ]


def test_the_documented_example_of_a_task_is_one(tmp_path):
    file = tmp_path / 'p.yaml'
    text = FILE.read_text()
    example = text[text.index('    # tasks:') :].replace('    # ', '    ')
    file.write_text('/**:\n  ros__parameters:\n' + example)
    values, warnings = read_yaml(file)
    assert warnings == [] and len(policy_options(values)['tasks']) == 2


@pytest.mark.parametrize('row', FIELDS, ids=lambda row: row.name)
def test_every_field_of_a_task_has_its_row_in_the_docs(row):
    shown = repr(row.default) if row.kind is str else f'{row.default}'
    line = f'| `tasks.<task>.{row.name}` | `{shown}` | {row.allowed} | {row.description} |'
    assert line in DOCS.read_text().splitlines()


@pytest.mark.parametrize(
    ('key', 'name', 'is_missed'),
    [
        ('oxygen', '/robot1/oxygen', True),
        ('/robot2/oxygen', '/robot1/oxygen', True),
        ('oxygen', '/oxygen', False),
        ('/robot1/oxygen', '/robot1/oxygen', False),
        ('/**', '/robot1/oxygen', False),
        ('/*/oxygen', '/robot1/oxygen', False),
    ],
)
def test_c64_a_file_that_ros_passes_over_is_named(tmp_path, key, name, is_missed):
    file = tmp_path / 'p.yaml'
    file.write_text(f'"{key}": {{ros__parameters: {{seed: 1}}}}\n')
    arguments = ['oxygen_node', '--ros-args', '--params-file', str(file), '-r', '__ns:=/robot1']
    warnings = missed_files(arguments, name)
    assert len(warnings) == is_missed
    assert not is_missed or f'nothing for {name}, only for {key}' in warnings[0]


def test_an_unknown_name_is_a_warning_with_the_nearest(tmp_path):
    file = tmp_path / 'p.yaml'
    file.write_text('/**:\n  ros__parameters: {max_rowz: 3, use_sim_time: true, xyzzy: 1}\n')
    values, warnings = read_yaml(file)
    assert values == check_all({})
    assert warnings == [
        'unknown parameter max_rowz: did you mean max_rows?',
        'unknown parameter xyzzy: it has no effect',
    ]


@pytest.mark.parametrize('key', ['/**', 'oxygen', '/oxygen', '/robot1/oxygen', '/**/oxygen'])
def test_sections_for_this_node_are_read_and_later_ones_win(tmp_path, key):
    file = tmp_path / 'p.yaml'
    file.write_text(
        '/**: {ros__parameters: {seed: 1, max_rows: 2}}\n'
        f'"{key}": {{ros__parameters: {{seed: 2}}}}\n'
        'other: {ros__parameters: {seed: 3}}\n'
    )
    assert read_yaml(file)[0]['seed'] == 2


@pytest.mark.parametrize(
    ('text', 'named'),
    [
        ('other: {ros__parameters: {seed: 3}}', 'no section for this node'),
        ('seed: 3', 'no section for this node'),
        ('/**: {ros__parameters: 3}', 'no section for this node'),
        ('', 'no section for this node'),
        ('a: [', 'cannot be read'),
        ('/**: {ros__parameters: {mode: fast}}', "parameter mode is 'fast'"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, text, named):
    file = tmp_path / 'p.yaml'
    file.write_text(text)
    with pytest.raises(OxygenError, match=named):
        read_yaml(file)
    with pytest.raises(OxygenError, match='cannot be read'):
        read_yaml(tmp_path / 'absent.yaml')


def test_reading_parameters_needs_no_ros(tmp_path):
    import subprocess
    import sys

    code = (
        'import sys; sys.modules["rclpy"] = None; from oxygen_ros.ros import parameters; '
        f'print(len(parameters.read_yaml({str(FILE)!r})[0]))'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == str(len(check_all({}))), done.stderr
