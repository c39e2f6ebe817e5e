"""Two reports side by side: what differs, and why two of them say nothing about each other."""

import json
import shutil

import numpy as np
import pytest
import yaml
from bags import REQUEST, request, session, write_bag
from safetensors.numpy import load_file, save_file

from oxygen_ros.replay import cli
from oxygen_ros.replay.compare import distinct_names
from oxygen_ros.replay.made_by import checkpoint_digests
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
    assert found['settings'] == {'seed': ['0', '1']}
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
    assert text.startswith('bag: a.json against b.json')
    assert 'seed: 0 -> 1' in text and '0 of 4 chunks are equal' in text
    assert '<svg' in page.read_text() and 'src="http' not in page.read_text()
    # only one of them was measured, so there is nothing to compare
    assert not any('tokens/s' in row['what'] for row in found['numbers'])


def test_a_parameter_that_asks_for_what_is_anyway_is_no_difference(saved, lines, capsys):
    """denoise_steps 0 is what the checkpoint says."""
    a = saved('a', lines, '--set', 'denoise_steps=10')
    b, c = saved('b', lines, '--set', 'denoise_steps=0'), saved('c', lines)
    _, text, _ = run(capsys, '--compare', a, b)
    assert 'denoise_steps' not in text and '4 of 4 chunks are equal' in text
    _, text, _ = run(capsys, '--compare', c, b)
    assert 'denoise_steps: 2 -> 10' in text


def test_weights_that_were_changed_in_place_are_a_difference(
    saved, lines, checkpoint, tmp_path, capsys
):
    mine = tmp_path / 'mine'
    shutil.copytree(checkpoint, mine)
    a = saved('a', lines, '--checkpoint', str(mine))
    (file,) = mine.glob('model*.safetensors')
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith('action_out_proj.bias'))
    tensors[name] += 0.01
    save_file(tensors, file, metadata={'format': 'pt'})
    b = saved('b', lines, '--checkpoint', str(mine))
    _, text, _ = run(capsys, '--compare', a, b, '--json', tmp_path / 'c.json')
    found = json.loads((tmp_path / 'c.json').read_text())['settings']
    assert list(found) == ['weights_sha256'] and 'weights_sha256: ' in text
    description = mine / 'config.json'
    description.write_text(description.read_text() + ' ')
    before, after = made_by(b), checkpoint_digests(str(mine), '', None)
    assert after['weights_sha256'] == before['weights_sha256']
    assert after['descriptions_sha256'] != before['descriptions_sha256']


def made_by(path):
    return json.loads(path.read_text())['made_by']


def test_two_versions_are_a_difference_and_two_runs_are_none(saved, lines, tmp_path, capsys):
    a, b = saved('a', lines), saved('b', lines)
    assert a.read_bytes() == b.read_bytes()
    assert set(made_by(a)) >= {'oxygen_ros', 'code_sha256', 'torch', 'transformers'}
    report = json.loads(a.read_text())
    report['made_by'] |= {'oxygen_ros': '0.0.9', 'torch': '2.0.0'}
    b.write_text(json.dumps(report))
    _, text, _ = run(capsys, '--compare', b, a)
    assert 'oxygen_ros: 0.0.9 -> ' in text and 'torch: 2.0.0 -> ' in text


def test_the_digest_is_of_what_is_in_the_files_not_of_where_they_lie(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / 'copy')
    given = checkpoint_digests(str(checkpoint), '', None)
    assert given == checkpoint_digests(str(tmp_path / 'copy'), '', None)
    (tmp_path / 'copy' / 'training.pt').write_bytes(b'x')
    assert given == checkpoint_digests(str(tmp_path / 'copy'), '', None)


@pytest.mark.parametrize(
    ('paths', 'names'),
    [
        (('/r/a/report.json', '/r/b/report.json'), ['a/report.json', 'b/report.json']),
        (('/r/a/x/r.json', '/r/b/x/r.json'), ['a/x/r.json', 'b/x/r.json']),
        (('/r/a.json', '/r/b.json'), ['a.json', 'b.json']),
        (('/r/a.json', '/r/a.json'), ['a.json', 'a.json']),
        (('/report.json', '/r/report.json'), ['/report.json', 'r/report.json']),
    ],
)
def test_columns_are_named_by_the_shortest_paths_that_differ(paths, names):
    assert distinct_names(paths) == names


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
        (old, 'has schema 1, this version of oxygen_ros reads schema 3: replay the bag again'),
        (tmp_path / 'nowhere.json', 'cannot be read: No such file'),
    ]:
        code, out, err = run(capsys, '--compare', a, other)
        assert code == 2 and out == '' and len(err.splitlines()) == 1
        assert words in err, err
