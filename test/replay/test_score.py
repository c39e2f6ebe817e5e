"""Scores against numbers that were worked out another way."""

import numpy as np
import pytest
import yaml
from bags import MS, REQUEST, STATE, T0, TYPES, joint_state, request, session, write_bag

from oxygen_ros.demo.recording import JOINTS
from oxygen_ros.replay.numbers import spread
from oxygen_ros.replay.recorded import RecordedMotion
from oxygen_ros.ros.contract import contract_path

STEP_NS = 50 * MS  # of config/robots/demo.yaml


def motion(*lines, names=('a', 'b'), max_gap_ms=100):
    """Joint states given as (ms, {name: position})."""
    found = RecordedMotion(names, max_gap_ms * MS)
    for at_ms, positions in lines:
        found.add(joint_state(at_ms, list(positions), list(positions.values())), 0)
    return found


def at(found, joint, *times_ms, segment=0):
    return found.at(segment, joint, np.array([T0 + t * MS for t in times_ms])).tolist()


def test_motion_lies_on_a_line_between_two_joint_states():
    found = motion((0, {'a': 0.0, 'b': 5.0}), (100, {'b': 6.0, 'a': 1.0}))
    assert at(found, 0, 0, 25, 100) == pytest.approx([0.0, 0.25, 1.0])
    assert at(found, 1, 50) == pytest.approx([5.5])


def test_motion_is_not_made_up():
    found = motion((0, {'a': 0.0}), (100, {'a': 1.0}), (300, {'a': 2.0}))
    assert np.isnan(at(found, 0, -1, 101, 200, 301)).all()  # before, in a gap, after
    assert np.isnan(at(found, 1, 50)).all()  # never said
    assert np.isnan(at(motion(), 0, 50)).all()


def test_stamps_that_go_back_begin_a_segment_and_a_little_disorder_does_not():
    found = motion((5000, {'a': 1.0}), (4990, {'a': 9.0}), (5010, {'a': 2.0}), (0, {'a': 7.0}))
    assert found.segment == 1
    assert at(found, 0, 5005) == pytest.approx([1.5])
    assert at(found, 0, 0, segment=1) == [7.0] and np.isnan(at(found, 0, 0)).all()


def test_spread_leaves_out_what_is_no_number():
    assert spread([]) is None and spread([float('nan')]) is None
    found = spread([1.0, 2.0, float('nan'), 3.0])
    assert (found['count'], found['mean'], found['p50'], found['max']) == (3, 2.0, 2.0, 3.0)


@pytest.fixture
def moving(replay, tmp_path):
    """A report on a robot that moves at 1 unit/s, and where it is at times in ns."""
    rate = np.linspace(-0.4, 0.4, 7)
    lines = [line for line in session(frames=12) if line[0] != STATE]
    lines += [(STATE, k * 10, joint_state(k * 10, values=rate + k * 0.01)) for k in range(100)]
    report = replay(write_bag(tmp_path / 'bag', sorted(lines, key=lambda line: line[1])))
    return report, lambda times_ns: rate + ((times_ns - T0) / 1e9)[..., None]


def test_errors_are_the_distance_of_each_row_from_the_motion_when_it_is_due(moving):
    report, recorded = moving
    assert report['scores']['joints'] == list(JOINTS) and report['scores']['not_recorded'] == []
    actions = np.array([frame['actions'] for frame in report['frames']])  # [K, H, A]
    stamps = np.array([frame['stamp_ns'] for frame in report['frames']])
    due = stamps[:, None] + np.arange(actions.shape[1]) * STEP_NS
    within = due <= T0 + 990 * MS
    signed = actions - recorded(due)
    for joint, name in enumerate(JOINTS):
        found = report['scores']['error'][name]
        error = np.abs(signed[..., joint])
        assert found['count'] == within.sum() == error.size
        assert found['mean'] == pytest.approx(error.mean(), rel=1e-4)
        assert found['p90'] == pytest.approx(np.percentile(error, 90), rel=1e-4)
        assert found['bias'] == pytest.approx(signed[..., joint].mean(), rel=1e-4)
        assert found['by_step']['mean'] == pytest.approx(error.mean(axis=0).tolist(), rel=1e-4)
        # standing still is behind by 1 unit/s: 0, 0.05, ... 0.45
        assert found['standing_still'] == pytest.approx(0.225, rel=1e-3)


def test_seams_are_jumps_from_the_row_that_is_due_to_row_0_of_the_next_chunk(moving):
    report, _ = moving
    frames = report['frames']
    assert frames[0]['seam'] is None
    jumps = []
    for before, after in zip(frames, frames[1:], strict=False):
        row = (after['stamp_ns'] - before['stamp_ns']) // STEP_NS
        jump = np.abs(np.array(after['actions'][0]) - np.array(before['actions'][row]))
        assert after['seam'] == pytest.approx(jump.tolist(), rel=1e-4)
        jumps.append(jump)
    seams = report['scores']['seams']
    assert seams['count'] == 11 and seams['after_a_gap'] == 0
    for joint, name in enumerate(JOINTS):
        assert seams['joints'][name]['max'] == pytest.approx(
            np.max(jumps, axis=0)[joint], rel=1e-4
        )
    frame, joint = np.unravel_index(np.argmax(jumps), np.shape(jumps))
    assert (seams['worst']['frame'], seams['worst']['joint']) == (frame + 1, JOINTS[joint])


def test_the_stream_is_what_a_robot_would_have_been_told(moving):
    report, _ = moving
    streamed = report['scores']['streamed']
    # from the first frame's stamp at 12 ms to the end of its last chunk, or the bag's, at 70 Hz
    until_ms = min(12 + 11 * 33 + 500, 990)
    assert streamed['steps'] == pytest.approx((until_ms - 12) * 0.07, abs=1)
    assert streamed['held_s'] == 0 and streamed['limited'] == 0
    assert report['scores']['chunk_age_ms']['p50'] == 33.0
    assert report['scores']['camera_to_frame_ms']['max'] == 0.0


def test_a_pause_between_chunks_is_held_and_no_seam(replay, tmp_path):
    later = [(topic, ms + 2000, value) for topic, ms, value in session(frames=1)]
    for _, ms, value in later:
        if hasattr(value, 'header'):
            at_ns = T0 + ms * MS
            value.header.stamp = TYPES['builtin_interfaces/msg/Time'](*divmod(at_ns, 10**9))
    report = replay(write_bag(tmp_path / 'bag', [*session(frames=1), *later]))
    seams, streamed = report['scores']['seams'], report['scores']['streamed']
    assert (seams['count'], seams['after_a_gap']) == (0, 1)
    assert streamed['held_s'] == pytest.approx(1.5)  # 2 s, of which valid_for_s 0.5 is filled


def test_joints_that_nobody_recorded_are_named(replay, tmp_path):
    """Actions may drive what no joint state tells of, such as a gripper's width."""
    tree = yaml.safe_load(contract_path('demo').read_text())
    tree['actions']['joints'][-1]['name'] = 'suction'
    robot = tmp_path / 'robot.yaml'
    robot.write_text(yaml.safe_dump(tree))
    report = replay(write_bag(tmp_path / 'bag', session()), '--robot', str(robot))
    assert report['scores']['not_recorded'] == ['suction']
    assert sorted(report['scores']['error']) == sorted(JOINTS[:-1])


def test_language_on_the_bag_s_clock(replay, tmp_path):
    lines = session(frames=4, extra=[(REQUEST, 20, request('q', max_tokens=3))])
    report = replay(write_bag(tmp_path / 'bag', lines))
    language = report['scores']['language']
    # asked at 20 ms, answered on the frame that is whole at 45 ms
    assert language['first_token_ms']['max'] == 25.0
    assert language['tokens'] == len(report['requests'][0]['tokens']) > 0
    assert language['answers_done'] == 1
    assert 'measured' not in report and 'error' in report['scores']


def test_what_a_chunk_beyond_the_limits_would_do_is_counted_as_in_the_node(replay, tmp_path):
    tree = yaml.safe_load(contract_path('demo').read_text())
    tree['joints'] = {'elbow': {'lower': -1e-6, 'upper': 1e-6}}
    robot = tmp_path / 'robot.yaml'
    robot.write_text(yaml.safe_dump(tree))
    bag = write_bag(tmp_path / 'bag', session(frames=2))
    report = replay(bag, '--robot', str(robot), code=1)
    assert report['counters']['dropped'] == {'chunk_out_of_limits': 2}
    assert not report['complete'] and 'chunk_out_of_limits' in report['problem']
