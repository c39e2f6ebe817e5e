"""The shipped model in the closed loop, and what the evaluation says of it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from oxygen_ros.policy import Policy
from oxygen_ros.tabletop import SHIPPED
from oxygen_ros.tabletop.episode import Run, Spoken, episode_scene
from oxygen_ros.tabletop.evaluate import MODES, main
from oxygen_ros.tabletop.language import Facts, Question
from oxygen_ros.tabletop.loop import run_episode
from oxygen_ros.tabletop.scores import score
from oxygen_ros.tabletop.tasks import UNSEEN, Task

SEED = 11


@pytest.fixture(scope='module')
def policy():
    return Policy.from_checkpoint(SHIPPED, cpu_threads=1)


def test_the_shipped_model_is_small():
    files = list(SHIPPED.iterdir())
    assert sum(file.stat().st_size for file in files) < 5 * 2**20
    assert not [file for file in files if file.suffix == '.pt']


def test_the_shipped_model_carries_out_instructions_it_has_not_seen(policy):
    runs = [run_episode(policy, SEED, number) for number in range(10)]
    assert sum(run.reached_s is not None for run in runs) >= 8
    assert sum(spoken.right for run in runs for spoken in run.spoken) >= 0.8 * sum(
        len(run.spoken) for run in runs
    )


def test_an_episode_is_the_same_each_time_and_without_questions(policy):
    first, again = (run_episode(policy, SEED, 2) for _ in range(2))
    silent = run_episode(policy, SEED, 2, ask=False)
    np.testing.assert_array_equal(first.commands, again.commands)
    np.testing.assert_array_equal(first.commands, silent.commands)
    assert [s.answer for s in first.spoken] == [s.answer for s in again.spoken]
    assert first.spoken
    assert not silent.spoken


def test_episodes_have_unseen_instructions_and_their_own_layouts():
    scenes, tasks = zip(*(episode_scene(SEED, number)[:2] for number in range(20)), strict=True)
    assert {task.text for task in tasks} <= {task.text for task in UNSEEN}
    places = [scene.blocks.tobytes() for scene in scenes]
    assert len(set(places)) == 20
    assert episode_scene(SEED, 3)[0].blocks.tobytes() == places[3]


def test_the_command_writes_scores_of_all_modes(tmp_path, capsys):
    file = tmp_path / 'scores.json'
    assert main(['--episodes', '2', '--seed', '3', '--json', str(file)]) == 0
    scores = json.loads(file.read_text())
    assert scores['episodes'] == 2
    assert set(scores['modes']) == set(MODES)
    assert scores['actions_equal']
    assert len({scores['modes'][mode]['success'] for mode in MODES}) == 1
    assert len({scores['modes'][mode]['actions_sha256'] for mode in MODES}) == 1
    assert 0.0 < scores['language'] <= 1.0
    assert set(scores['language_by_kind']) >= {'where', 'subtask', 'scene'}
    assert 'bit-equal in all modes: True' in capsys.readouterr().out


def test_the_small_model_does_without_its_right_wrist(policy):
    cameras = ('base_0_rgb', 'left_wrist_0_rgb')
    runs = [run_episode(policy, SEED, number, cameras) for number in range(4)]
    assert sum(run.reached_s is not None for run in runs) >= 3


def test_a_folder_that_is_no_checkpoint_is_explained(tmp_path, capsys):
    assert main(['--checkpoint', str(tmp_path / 'none'), '--episodes', '1']) == 1
    assert 'none' in capsys.readouterr().err


def test_a_number_of_episodes_below_one_is_refused():
    done = subprocess.run(
        [sys.executable, '-m', 'oxygen_ros.tabletop.evaluate', '--episodes', '0'],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert '--episodes is 0: must be at least 1' in done.stderr


def test_scores_count_goals_answers_and_jolts():
    known = Facts({'red': ('at the front left',)}, ('go',), ('nothing yet',), '', {})
    where = Question('where', '', 'red')
    reached = Run(Task('put', 'red', 'left', ''), 2.0)
    # 1 mm a tick, then at the third chunk's first tick 4 mm, then on with it.
    steps = np.array([0, 1, 2, 3, 4, 8, 12, 16]) * 1e-3
    reached.commands = [np.array([x, 0.0, 0.0, 1.0]) for x in steps]
    reached.seams = [0, 5]
    reached.spoken = [
        Spoken(where, known, ' at the front left'),
        Spoken(where, known, ' at the back left'),
    ]
    missed = Run(Task('lift', 'red', 'left', ''), None, reached.commands[:3])
    scored = score([reached, missed])
    assert scored['success'] == 0.5
    assert scored['by_kind'] == {
        'lift': {'right': 0.0, 'of': 1},
        'put': {'right': 1.0, 'of': 1},
    }
    assert scored['time_to_success_s']['max'] == 2.0
    assert scored['jolt_at_seams_mm']['max'] == pytest.approx(3.0)
    assert scored['jolt_elsewhere_mm']['max'] == pytest.approx(0.0, abs=1e-9)
    assert scored['language_while_moving'] == 0.5
