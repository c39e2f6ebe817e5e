"""The simulated table, what its cameras see, and the expert."""

import numpy as np
import pytest

from oxygen_ros.tabletop.episode import LIMIT_S
from oxygen_ros.tabletop.expert import Expert, rollout
from oxygen_ros.tabletop.render import CAMERAS, SIZE, render
from oxygen_ros.tabletop.samples import HORIZON, examples
from oxygen_ros.tabletop.tasks import KINDS, TRAINING, UNSEEN, Task, draw
from oxygen_ros.tabletop.world import (
    HELD_GAP,
    NOTHING,
    TICK_S,
    Scenes,
    done,
    layout,
)

RED = 0


def one_block(x, y, joints):
    scenes = Scenes(
        joints=np.array([joints], float),
        blocks=np.zeros((1, 5, 2)),
        present=np.zeros((1, 5), bool),
        held=np.array([NOTHING]),
        trays=np.array([[[-0.14, 0.125], [0.14, 0.125]]]),
        light=np.ones((1, 3)),
    )
    scenes.blocks[0, RED] = x, y
    scenes.present[0, RED] = True
    return scenes


def move(scenes, ticks, **joints):
    """Command some joints for some ticks; the others stay."""
    names = ('x', 'y', 'z', 'grip')
    command = scenes.joints.copy()
    for name, value in joints.items():
        command[:, names.index(name)] = value
    for _ in range(ticks):
        scenes.step(command)


def test_a_block_is_grasped_lifted_carried_and_let_go():
    scenes = one_block(0.05, 0.0, [0.045, 0.01, 0.01, 1.0])
    move(scenes, 30, grip=0.0)
    assert scenes.held[0] == RED
    assert scenes.joints[0, 3] == HELD_GAP
    move(scenes, 30, z=0.1)
    move(scenes, 60, x=0.14, y=0.125)
    np.testing.assert_allclose(scenes.blocks[0, RED], [0.14, 0.125])
    task = [Task('put', 'red', 'right', '')]
    assert not done(scenes, task)[0]  # still in the gripper
    move(scenes, 30, grip=1.0)
    assert scenes.held[0] == NOTHING
    assert done(scenes, task)[0]
    assert not done(scenes, [Task('put', 'red', 'left', '')])[0]


@pytest.mark.parametrize('joints', [[0.09, 0.0, 0.01, 1.0], [0.05, 0.0, 0.05, 1.0]])
def test_beside_or_above_a_block_nothing_is_grasped(joints):
    scenes = one_block(0.05, 0.0, joints)
    move(scenes, 30, grip=0.0)
    assert scenes.held[0] == NOTHING


def test_a_closed_gripper_pushes_and_a_high_one_does_not():
    low = one_block(0.05, 0.0, [0.0, 0.0, 0.01, 0.0])
    high = one_block(0.05, 0.0, [0.0, 0.0, 0.08, 0.0])
    for scenes in (low, high):
        move(scenes, 60, x=0.22)
    task = [Task('push', 'red', 'right', '')]
    assert done(low, task)[0]
    assert not done(high, task)[0]
    np.testing.assert_array_equal(high.blocks[0, RED], [0.05, 0.0])
    low.blocks[0, RED, 0] = 0.185
    assert not done(low, task)[0]
    assert done(low, task, slack=0.01)[0]


def test_joints_are_no_faster_than_their_motors():
    scenes = one_block(0.2, 0.0, [0.0, 0.0, 0.1, 1.0])
    before = scenes.joints.copy()
    move(scenes, 1, x=0.2, z=0.0)
    assert np.abs(scenes.joints - before).max() == pytest.approx(0.6 * TICK_S)


@pytest.mark.parametrize('pool', [TRAINING, UNSEEN])
def test_the_expert_always_reaches_its_goal_and_stays_there(pool):
    rng = np.random.default_rng(5)
    tasks = draw(rng, pool, 150)
    assert {task.kind for task in tasks} == set(KINDS)
    scenes = layout(rng, tasks)
    rollout(scenes, Expert(tasks), round(LIMIT_S / TICK_S))
    assert done(scenes, tasks).all()


def test_the_expert_finds_its_way_from_any_state():
    made = examples(np.random.default_rng(6), 300)
    rollout(made.scenes, Expert(made.tasks), round(LIMIT_S / TICK_S))
    reached = done(made.scenes, made.tasks)
    # A block that was let go in the way of a push may be carried along; nothing else may fail.
    assert reached.mean() > 0.97


def test_one_seed_gives_one_world():
    first, again, other = (examples(np.random.default_rng(seed), 20) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.actions, again.actions)
    np.testing.assert_array_equal(render(first.scenes), render(again.scenes))
    assert [task.text for task in first.tasks] == [task.text for task in again.tasks]
    assert not np.array_equal(first.actions, other.actions)
    assert first.actions.shape == (20, HORIZON, 4)


def test_many_scenes_are_drawn_as_each_alone():
    scenes = examples(np.random.default_rng(3), 8).scenes
    together = render(scenes)
    assert together.shape == (8, len(CAMERAS), SIZE, SIZE, 3)
    assert together.dtype == np.uint8
    for row in range(8):
        np.testing.assert_array_equal(render(scenes.take([row]))[0], together[row])


def test_the_overview_shows_a_block_where_it_is():
    picture = render(one_block(0.10, -0.10, [-0.2, 0.1, 0.1, 1.0]), CAMERAS[:1])[0, 0]
    red = (picture[..., 0] > 180) & (picture[..., 1] < 70)
    rows, columns = np.nonzero(red)
    # 0.54 m wide around x = 0, y = 0.02
    assert columns.mean() == pytest.approx(SIZE * (0.10 + 0.27) / 0.54, abs=1.0)
    assert rows.mean() == pytest.approx(SIZE * (0.29 + 0.10) / 0.54, abs=1.0)


def test_unseen_wordings_are_not_trained():
    assert not {task.text for task in TRAINING} & {task.text for task in UNSEEN}
    drawn = examples(np.random.default_rng(4), 300).tasks
    assert {task.text for task in drawn} <= {task.text for task in TRAINING}
