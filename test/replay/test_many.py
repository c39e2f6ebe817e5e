"""Many bags: one table, a report each, and the same rows from a Ray job where ray is installed."""

import json
import sys

import pytest
from bags import session, write_bag

from oxygen_ros.replay import cli


@pytest.fixture
def bags(tmp_path):
    """Three bags, two of them of one name."""
    return [
        str(write_bag(tmp_path / folder / name, session(frames=frames)))
        for folder, name, frames in [('x', 'one', 2), ('x', 'two', 3), ('y', 'one', 4)]
    ]


@pytest.fixture
def arguments(checkpoint):
    return ['--checkpoint', str(checkpoint), '--robot', 'demo', '--set', 'denoise_steps=2']


def test_a_row_and_a_report_for_each_and_a_bad_one_costs_only_its_row(
    bags, arguments, tmp_path, capsys, replay
):
    out = tmp_path / 'reports'
    code = cli.main([*bags, str(tmp_path / 'gone'), *arguments, '--out', str(out)])
    text = capsys.readouterr().out
    assert code == 1
    summary = json.loads((out / 'summary.json').read_text())
    rows = summary['bags']
    assert [(row['bag'], row['status'], row['chunks']) for row in rows] == [
        ('one', 'ok', 2), ('two', 'ok', 3), ('one-2', 'ok', 4), ('gone', 'failed', None),
    ]  # fmt: skip
    assert 'does not exist' in rows[3]['problem'] and not summary['complete']
    lines = text.splitlines()
    assert lines[0].split()[0] == 'bag' and [line.split()[0] for line in lines[1:4]] == [
        'one', 'two', 'one-2',
    ]  # fmt: skip
    assert f'gone: {rows[3]["problem"]}' in text
    page = (out / 'summary.html').read_text()
    assert 'one-2' in page and 'does not exist' in page
    # a policy that has answered other bags before gives the bytes of a fresh one
    for bag, name in zip(bags, ('one', 'two', 'one-2'), strict=True):
        replay(bag)
        assert (out / f'{name}.json').read_bytes() == replay.bytes
        assert '<svg' in (out / f'{name}.html').read_text()
    assert rows[0]['error'] == pytest.approx(_mean_error(out / 'one.json'), rel=1e-4)


def _mean_error(path):
    errors = json.loads(path.read_text())['scores']['error'].values()
    return sum(error['mean'] for error in errors) / len(errors)


def test_a_setting_that_cannot_be_used_is_no_table_of_failures(bags, arguments, capsys):
    code = cli.main([*bags, *arguments, '--checkpoint', '/no/such'])
    out, err = capsys.readouterr()
    assert code == 2 and out == '' and '/no/such' in err


def test_ray_gives_the_same_table(bags, arguments, tmp_path, capsys):
    ray = pytest.importorskip('ray', reason='ray is an optional extra: requirements/ray.txt')
    found = []
    try:
        for name, extra in (('here', []), ('ray', ['--ray', '--out', str(tmp_path / 'out')])):
            path = tmp_path / f'{name}.json'
            code = cli.main(
                [*bags, str(tmp_path / 'gone'), *arguments, '--json', str(path), *extra]
            )
            assert code == 1
            found.append(path.read_bytes())
    finally:
        ray.shutdown()
    assert found[0] == found[1]
    assert (tmp_path / 'out' / 'one-2.html').exists()


def test_without_ray_it_says_what_to_install(bags, arguments, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'ray', None)
    assert cli.main([*bags, *arguments, '--ray']) == 2
    assert 'requirements/ray.txt' in capsys.readouterr().err
