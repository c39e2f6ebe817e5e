"""Two reports side by side: what differs, and why two of them say nothing about each other."""

import json

import numpy as np
import pytest
import yaml
from bags import REQUEST, request, session, write_bag

from oxygen_ros.replay import cli
from oxygen_ros.ros.contract import contract_path


@pytest.fixture
def lines():
    return session(frames=4, extra=[(REQUEST, 5, request('q', max_tokens=4))])


@pytest.fixture
def saved(replay, tmp_path):
    """Replay lines with some arguments and keep the report in a file."""

    def run(name, lines, *arguments):
        bag = write_bag(tmp_path / name / 'bag', lines)
        replay(bag, *arguments)
        path = tmp_path / f'{name}.json'
        path.write_bytes(replay.bytes)
        return path

    return run


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_two_settings(saved, lines, tmp_path, capsys):
    a, b = saved('a', lines), saved('b', lines, '--set', 'seed=1', '--measured')
    out, page = tmp_path / 'c.json', tmp_path / 'c.html'
    code, text, _ = run(capsys, '--compare', a, b, '--json', out, '--html', page)
    assert code == 0
    found, first, second = (json.loads(path.read_text()) for path in (out, a, b))
    assert found['settings'] == {'seed': [0, 1]}
    chunks = found['chunks']
    assert (chunks['in_both'], chunks['equal'], chunks['only']) == (4, 0, [0, 0])
    actions = [np.array([f['actions'] for f in r['frames']]) for r in (first, second)]
    largest = np.abs(actions[0] - actions[1]).max(axis=(0, 1))
    names = first['settings']['contract']['action_joints']
    for name, value in zip(names, largest, strict=True):
        assert chunks['largest_difference'][name] == pytest.approx(value, rel=1e-4)
    for row in found['joints']:
        before, after = (r['scores']['error'][row['what']]['mean'] for r in (first, second))
        assert row['values'] == [before, after]
        assert row['verdict'] == ('better' if after < before else 'worse')
    assert [row['what'] for row in found['joints']] == list(names)
    assert found['answers'][0]['equal'] == (
        first['requests'][0]['tokens'] == second['requests'][0]['tokens']
    )
    assert 'seed: 0 -> 1' in text and '0 of 4 chunks are equal' in text
    assert '<svg' in page.read_text() and 'src="http' not in page.read_text()
    # only one of them was measured, so there is nothing to compare
    assert not any('tokens/s' in row['what'] for row in found['numbers'])


def test_a_report_equals_itself(saved, lines, capsys):
    a = saved('a', lines, '--measured')
    code, text, _ = run(capsys, '--compare', a, a)
    assert code == 0 and '4 of 4 chunks are equal to the last bit, 1 of 1 answers' in text
    assert 'better' not in text and 'worse' not in text and 'tokens/s' in text


def test_reports_that_do_not_fit_are_refused(saved, lines, tmp_path, capsys):
    a = saved('a', lines)
    other_bag = saved('b', session(frames=3))
    tree = yaml.safe_load(contract_path('demo').read_text())
    tree['actions']['joints'][-1]['name'] = 'suction'
    robot = tmp_path / 'robot.yaml'
    robot.write_text(yaml.safe_dump(tree))
    other_joints = saved('c', lines, '--robot', str(robot))
    tree['actions']['joints'][-1]['name'] = 'gripper'
    tree['actions']['step_period_s'] = 0.1
    robot.write_text(yaml.safe_dump(tree))
    other_period = saved('d', lines, '--robot', str(robot))
    table, text = tmp_path / 'table.json', tmp_path / 'text.json'
    table.write_text('{"kind": "summary", "bags": []}')
    text.write_text('hello')
    old = tmp_path / 'old.json'
    old.write_text(json.dumps({**json.loads(a.read_text()), 'schema': 1}))
    for other, words in [
        (other_bag, 'of two bags: bag (15 messages'),
        (other_joints, 'only in the first gripper; only in the second suction'),
        (other_period, 'step_period_s is 0.05 and 0.1'),
        (table, 'is a table of several bags'),
        (text, 'is no JSON'),
        (old, 'replay the bag again'),
        (tmp_path / 'nowhere.json', 'cannot be read: No such file'),
    ]:
        code, out, err = run(capsys, '--compare', a, other)
        assert code == 2 and out == '' and len(err.splitlines()) == 1
        assert words in err, err
