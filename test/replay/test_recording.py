"""The demo's recording: deterministic, small, and what the demo's contract asks for."""

import numpy as np
import pytest

from oxygen_ros.demo import recording
from oxygen_ros.demo.recording import BASE, JOINTS, REQUEST, STATE, TASK, WRIST, write_recording
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.sources import find_sources
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.ros.conversions import (
    compressed_to_rgb,
    image_to_rgb,
    joint_vector,
    request_from_msg,
    stamp_ns,
)
from oxygen_ros.types import OxygenError


@pytest.fixture(scope='module')
def path(tmp_path_factory):
    return write_recording(tmp_path_factory.mktemp('rec') / 'demo', seconds=1.5, seed=4)


@pytest.fixture(scope='module')
def messages(path):
    with Bag(path) as bag:
        read = list(bag.messages([topic.name for topic in bag.topics]))
    return {topic: [m for m in read if m.topic == topic] for topic in {m.topic for m in read}}


def test_it_fits_the_demo_contract(path):
    contract = load_contract('demo')
    with Bag(path) as bag:
        sources = find_sources(bag, contract)
    assert set(sources.by_topic) == {BASE, WRIST, STATE, TASK, REQUEST}
    assert sources.notes == () and contract.state.names == JOINTS


def test_rates_and_size(path, messages):
    assert len(messages[BASE]) == len(messages[WRIST]) == 45
    assert len(messages[STATE]) == 150 and len(messages[TASK]) == 1
    assert sum(file.stat().st_size for file in path.iterdir()) < 1.5 * 4_000_000
    for topic in (BASE, WRIST, STATE):
        stamps = [stamp_ns(m.value.header) for m in messages[topic]]
        assert all(m.time_ns > stamp for m, stamp in zip(messages[topic], stamps, strict=True))
        assert len(set(stamps)) == len(stamps)


def test_pictures_show_something_that_moves(messages):
    base = [image_to_rgb(m.value) for m in messages[BASE]]
    wrist = [compressed_to_rgb(m.value) for m in messages[WRIST]]
    assert base[0].shape == wrist[0].shape == (240, 320, 3)
    for pictures in (base, wrist):
        assert (np.abs(pictures[0].astype(int) - pictures[-1]).max(axis=2) > 40).mean() > 0.01
    red = (base[0][..., 0] > 180) & (base[0][..., 1] < 80)
    assert 50 < red.sum() < 2000  # the block, and nothing as big as the table


def test_joints_move_smoothly(messages):
    states = np.array([joint_vector(m.value, JOINTS) for m in messages[STATE]])
    steps = np.abs(np.diff(states, axis=0))
    assert (steps.max(axis=0)[:6] > 0).all() and steps.max() < 0.05  # rad in 10 ms


def test_requests_are_sound_and_of_several_tasks(messages):
    requests = [request_from_msg(m.value) for m in messages[REQUEST]]
    assert {r.task for r in requests} == {'conversation', 'memory', 'subtask'}
    assert len({r.request_id for r in requests}) == len(requests) == 5
    assert all(r.problem() == '' for r in requests)


def test_same_seed_same_bytes_other_seed_other_scene(tmp_path, path, messages):
    again = write_recording(tmp_path / 'demo', seconds=1.5, seed=4)
    assert (again / 'demo.mcap').read_bytes() == (path / 'demo.mcap').read_bytes()
    other = write_recording(tmp_path / 'other', seconds=0.1, seed=5)
    with Bag(other) as bag:
        first = next(iter(bag.messages([BASE])))
    assert not np.array_equal(first.value.data, messages[BASE][0].value.data)


def test_the_whole_script_is_smooth_and_returns():
    scene = recording.Scene(1)
    moments = [scene.at(t / 100) for t in range(1700)]
    tips = np.array([m.tip for m in moments])
    reds = np.array([m.red for m in moments])
    for path in (tips, reds):
        assert np.abs(np.diff(path, axis=0)).max() < 0.01  # m in 10 ms
    assert np.hypot(*(reds[790] - scene.tray)) < 0.001  # carried to the tray ...
    assert np.hypot(*(reds[1599] - reds[0])) < 0.001  # ... and back


def test_an_existing_folder_is_left_alone(tmp_path, capsys):
    (tmp_path / 'mine').write_text('x')
    with pytest.raises(OxygenError, match='exists already'):
        write_recording(tmp_path / 'mine')
    assert recording.main([str(tmp_path / 'mine')]) == 2
    assert 'exists already' in capsys.readouterr().err
    assert (tmp_path / 'mine').read_text() == 'x'
