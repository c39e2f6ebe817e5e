"""The simulated robot's world while it is live: episodes, questions, and the real node."""

import json

import numpy as np
import pytest

from oxygen_ros.tabletop import SHIPPED, evaluate, language, robot
from oxygen_ros.tabletop.episode import LIMIT_S
from oxygen_ros.tabletop.expert import Expert
from oxygen_ros.tabletop.live import evaluate_node
from oxygen_ros.tabletop.render import CAMERAS
from oxygen_ros.tabletop.stage import SETTLE_S, Stage
from oxygen_ros.tabletop.world import TICK_S
from oxygen_ros.types import OxygenError


def play(stage, drive=True):
    """Ticks until the episode is over, driven by the expert or by nobody."""
    expert = Expert([stage.task])
    for tick in range(10_000):
        command = expert.command(stage.scenes)[0] if drive and stage.settled else None
        if stage.tick(command, tick // 7):
            return tick
    raise AssertionError('the episode has no end')


def test_an_episode_that_reaches_its_goal_counts_and_another_follows():
    stage = Stage(seed=5)
    play(stage)
    first = stage.task
    stage.begin()
    play(stage)
    standing = stage.standing()
    assert (standing['episodes'], standing['successes']) == (2, 2)
    assert 0.5 < stage.runs[0].reached_s < LIMIT_S
    assert stage.runs[0].task == first
    assert len(stage.runs[0].seams) > 3


def test_an_arm_that_is_not_driven_fails_in_time():
    stage = Stage(seed=5)
    before = stage.scenes.joints.copy()
    ticks = play(stage, drive=False)
    assert ticks * TICK_S == pytest.approx(LIMIT_S + SETTLE_S, abs=0.1)
    np.testing.assert_array_equal(stage.scenes.joints, before)
    assert stage.standing()['successes'] == 0


def test_answers_are_compared_with_the_scene_of_their_frame():
    stage = Stage(seed=5)
    for number, task in enumerate(('subtask', 'memory', 'conversation')):
        stage.ask(f'r{number}', task)
        stage.picture(1000 + number)
        _, question = stage._asked[f'r{number}']
        (known,) = language.facts(stage.scenes, [stage.task])
        stage.hear(f'r{number}', 1000 + number, language.answers(question, known)[0])
    assert (stage.answered.right, stage.answered.wrong) == (3, 0)
    stage.ask('bad', 'subtask')
    stage.hear('bad', 1000, 'fly to the moon')
    assert (stage.answered.wrong, stage.answered.mistakes[0][1]) == (1, 'fly to the moon')


def test_an_answer_about_another_episodes_frame_does_not_count():
    stage = Stage(seed=5)
    stage.ask('late', 'conversation')
    stage.begin()
    stage.picture(2000)
    stage.hear('late', 2000, 'whatever')
    stage.hear('never asked', 2000, 'whatever')
    stage.ask('lost', 'conversation')
    stage.hear('lost', 1, 'whatever')
    assert stage.answered.skipped == 3
    assert stage.standing()['answers'] == 0


def test_the_arm_reaches_its_goals_through_the_real_node():
    scored = evaluate_node(SHIPPED, episodes=4, seed=21)
    assert scored['episodes'] == 4
    assert scored['success'] >= 0.5  # real time on a busy machine
    assert scored['action_stream_hz'] > 0
    assert sum(kind['of'] for kind in scored['language_by_kind'].values()) > 0
    assert scored['camera_to_chunk_ms']['p50'] > 0
    assert (scored['mode'], scored['cameras']) == ('continuous', list(CAMERAS))


def test_a_camera_that_is_taken_away_and_the_mode_reach_the_node(tmp_path):
    """The score says what the node says of itself."""
    file = tmp_path / 'scores.json'
    given = ['--episodes', '1', '--node', '--modes', 'isolated', '--json', str(file)]
    assert evaluate.main([*given, '--without', 'right_wrist_0_rgb', 'base_0_rgb']) == 0
    scores = json.loads(file.read_text())
    assert scores['cameras'] == scores['node']['cameras'] == ['left_wrist_0_rgb']
    assert scores['node']['mode'] == 'isolated' and list(scores['node']['modes']) == ['isolated']


def test_a_node_that_fails_leaves_what_there_is(tmp_path):
    scores = {}
    with pytest.raises(
        OxygenError, match='(?s)the run through the node failed.*the node cannot serve: .*none'
    ):
        evaluate_node(tmp_path / 'none', 1, 1, into=scores)
    assert scores == {}


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [(['--robot', 'demo'], 'is of another robot'), (['--json', '/proc/x/j'], 'does not exist')],
)
def test_a_robot_that_cannot_be_is_refused(capsys, arguments, words):
    assert robot.main(arguments) == 2
    assert words in capsys.readouterr().err
