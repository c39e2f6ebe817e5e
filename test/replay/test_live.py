"""A bag in real time through the real node: its own process, Fast DDS, /clock."""

import json
import shutil

import pytest

from oxygen_ros.demo.recording import write_recording
from oxygen_ros.replay import cli, evaluate

pytest.importorskip('rclpy', reason='the live timeline needs ROS 2')


@pytest.fixture(scope='module')
def both(checkpoint, tmp_path_factory):
    """One bag on both timelines; the reports and what the terminal said of the live one."""
    folder = tmp_path_factory.mktemp('live')
    bag = write_recording(folder / 'bag', seconds=2.0)
    reports = []
    for timeline in ('bag', 'live'):
        out = folder / f'{timeline}.json'
        code = cli.main([
            str(bag), '--checkpoint', str(checkpoint), '--robot', 'demo', '--timeline', timeline,
            '--set', 'denoise_steps=2', '--set', 'cpu_threads=1', '--json', str(out),
            *(['--html', str(folder / 'live.html')] if timeline == 'live' else []),
        ])  # fmt: skip
        assert code == 0
        reports.append(json.loads(out.read_text()))
    return *reports, (folder / 'live.html').read_text()


def test_the_node_answers_the_bag_as_the_replay_does(both):
    replayed, live, _ = both
    assert live['complete'] and 10 < live['totals']['chunks'] <= replayed['totals']['chunks']
    there = {frame['stamp_ns']: frame['actions'] for frame in replayed['frames']}
    assert {frame['stamp_ns'] for frame in live['frames']} <= set(there)
    equal = [frame['actions'] == there[frame['stamp_ns']] for frame in live['frames']]
    # where a joint state overtakes an image, or comes later, the frame is another one
    assert sum(equal) > len(equal) / 2
    assert live['settings']['model'] == replayed['settings']['model']
    assert live['settings']['timeline'] != replayed['settings']['timeline']


def test_it_is_scored_and_measured_from_end_to_end(both):
    replayed, live, page = both
    ours, theirs = live['scores']['error'], replayed['scores']['error']
    assert set(ours) == set(theirs)
    assert 0.5 < ours['elbow']['mean'] / theirs['elbow']['mean'] < 2
    assert live['scores']['streamed']['steps'] > 30 and live['scores']['seams']['count'] > 5
    measured = live['measured']
    assert measured['camera_to_chunk_ms']['count'] == live['totals']['chunks']
    # longer than the inference that it contains, on clocks that count in steps of 5 ms
    assert measured['camera_to_chunk_ms']['mean'] > 0 < measured['first_token_ms']['p50']
    assert live['totals']['tokens'] > 0 and live['scores']['language']['answers_done'] > 0
    assert '<svg' in page and 'data:image/jpeg' in page


def test_the_two_can_be_compared(both, tmp_path, capsys):
    paths = [tmp_path / 'a.json', tmp_path / 'b.json']
    for path, report in zip(paths, both[:2], strict=True):
        path.write_text(json.dumps(report))
    assert cli.main(['--compare', *map(str, paths)]) == 0
    assert 'timeline: record times of the bag' in capsys.readouterr().out


def test_a_node_that_fails_is_reported_with_its_words(tmp_path, checkpoint, capsys, monkeypatch):
    """What the checks before the load cannot see."""
    broken = tmp_path / 'broken'
    shutil.copytree(checkpoint, broken)
    tokenizer = next(broken.rglob('tokenizer.json'))
    tokenizer.write_text(tokenizer.read_text()[:-1000])
    monkeypatch.setattr(evaluate, 'preflight', lambda *_: [])
    bag = write_recording(tmp_path / 'bag', seconds=0.2)
    code = cli.main(
        [str(bag), '--checkpoint', str(broken), '--robot', 'demo', '--timeline', 'live']
    )
    text = capsys.readouterr().err
    assert code == 2 and 'the node failed: ' in text and 'tokenizer' in text
