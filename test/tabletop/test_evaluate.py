"""The shipped model in the closed loop, and what the evaluation says of it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from oxygen_ros.policy import Policy
from oxygen_ros.tabletop import SHIPPED, evaluate
from oxygen_ros.tabletop.episode import Referee, Run, Spoken, episode_scene
from oxygen_ros.tabletop.evaluate import MODES, main
from oxygen_ros.tabletop.language import Facts, Question
from oxygen_ros.tabletop.loop import run_episode
from oxygen_ros.tabletop.render import CAMERAS
from oxygen_ros.tabletop.scores import score
from oxygen_ros.tabletop.tasks import COLOURS, UNSEEN, Task
from oxygen_ros.tabletop.world import PUSH_WALL
from oxygen_ros.types import OxygenError

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
    assert scores['episodes'] == 2 and scores['complete']
    assert 0.0 < scores['language_best'] <= scores['language']
    assert scores['modes']['isolated']['success'] <= scores['modes']['isolated']['success_near']
    assert set(scores['modes']) == set(MODES)
    assert scores['actions_equal']
    assert len({scores['modes'][mode]['success'] for mode in MODES}) == 1
    assert len({scores['modes'][mode]['actions_sha256'] for mode in MODES}) == 1
    assert 0.0 < scores['language'] <= 1.0
    assert set(scores['language_by_kind']) >= {'where', 'subtask', 'scene'}
    out = capsys.readouterr().out
    assert 'bit-equal in all modes: True' in out
    assert '10 mm early' in out and 'the best answer' in out


def test_the_small_model_does_without_its_right_wrist(policy):
    cameras = ('base_0_rgb', 'left_wrist_0_rgb')
    runs = [run_episode(policy, SEED, number, cameras) for number in range(4)]
    assert sum(run.reached_s is not None for run in runs) >= 3


def test_a_folder_that_is_no_checkpoint_is_explained(tmp_path, capsys):
    assert main(['--checkpoint', str(tmp_path / 'none'), '--episodes', '1']) == 2
    assert 'none' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['--json', '/proc/x/scores.json'], 'the folder /proc/x does not exist'),
        (['--json', '/proc/scores.json'], 'the folder /proc cannot be written'),
        (['--without', *CAMERAS], '--without names all cameras'),
        (['--lag-ms', '-1'], '--lag-ms is -1: must be from 0 to 500'),
        (['--seed', '-1'], '--seed is -1: must be 0 or more'),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(monkeypatch, capsys, arguments, words):
    def load(*_, **__):
        raise AssertionError('loaded')

    monkeypatch.setattr(Policy, 'from_checkpoint', load)
    assert main(['--episodes', '1', *arguments]) == 2
    text = capsys.readouterr().err
    assert words in text and len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ('error', 'code', 'problem'),
    [(KeyboardInterrupt(), 130, 'interrupted'), (OxygenError('broken'), 1, 'broken')],
)
def test_scores_until_an_interruption_or_an_error_are_kept(
    tmp_path, monkeypatch, capsys, error, code, problem
):
    run_all = evaluate.run_episode

    def run_two(policy, seed, number, *given, **more):
        if number == 2:
            raise error
        return run_all(policy, seed, number, *given, **more)

    monkeypatch.setattr(evaluate, 'run_episode', run_two)
    file = tmp_path / 'scores.json'
    given = ['--episodes', '3', '--modes', 'continuous', 'isolated', '--json', str(file)]
    assert main(given) == code
    scores = json.loads(file.read_text())
    assert (scores['complete'], scores['problem']) == (False, problem)
    assert scores['modes']['continuous']['episodes'] == 2
    assert 'isolated' not in scores['modes'] and 'language' not in scores
    assert f'INCOMPLETE: {problem}' in capsys.readouterr().out


def test_an_error_that_nobody_foresaw_keeps_them_too(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, 'held_out_answers', lambda *_: 1 / 0)
    file = tmp_path / 'scores.json'
    with pytest.raises(ZeroDivisionError):
        main(['--episodes', '1', '--modes', 'isolated', '--json', str(file)])
    scores = json.loads(file.read_text())
    assert not scores['complete'] and 'division' in scores['problem']
    assert scores['modes']['isolated']['episodes'] == 1


def test_a_push_that_ends_before_its_line_is_near_and_not_there():
    scenes, task = next(
        (scenes, task)
        for scenes, task, _ in (episode_scene(SEED, number) for number in range(20))
        if task.kind == 'push'
    )
    sign, colour = (1 if task.side == 'right' else -1), COLOURS.index(task.colour)
    for beyond, near, there in ((-0.02, False, False), (-0.005, True, False), (0.001, True, True)):
        run = Run(task)
        referee = Referee(run)
        scenes.blocks[0, colour, 0] = sign * (PUSH_WALL + beyond)
        ends = [referee.reached(scenes, tick) for tick in range(40)]
        assert ends[-1] == there
        assert (run.near_s is not None, run.reached_s is not None) == (near, there)


def test_near_a_border_only_one_answer_is_right_without_a_margin():
    known = Facts({'red': ('at the front left', 'at the front middle')}, (), (), '', {})
    where = Question('where', '', 'red')
    first, second = (Spoken(where, known, f' at the front {side}') for side in ('left', 'middle'))
    assert first.right and first.best
    assert second.right and not second.best


def test_a_number_of_episodes_below_one_is_refused():
    done = subprocess.run(
        [sys.executable, '-m', 'oxygen_ros.tabletop.evaluate', '--episodes', '0'],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == 'evaluate: --episodes is 0: must be at least 1\n'


def test_scores_count_goals_answers_and_jolts():
    known = Facts({'red': ('at the front left',)}, ('go',), ('nothing yet',), '', {})
    where = Question('where', '', 'red')
    reached = Run(Task('put', 'red', 'left', ''), 2.0, 2.0)
    # 1 mm a tick, then at the third chunk's first tick 4 mm, then on with it.
    steps = np.array([0, 1, 2, 3, 4, 8, 12, 16]) * 1e-3
    reached.commands = [np.array([x, 0.0, 0.0, 1.0]) for x in steps]
    reached.seams = [0, 5]
    reached.spoken = [
        Spoken(where, known, ' at the front left'),
        Spoken(where, known, ' at the back left'),
    ]
    missed = Run(Task('lift', 'red', 'left', ''), commands=reached.commands[:3])
    scored = score([reached, missed])
    assert (scored['success'], scored['success_near'], scored['not_reached']) == (0.5, 0.5, [1])
    assert scored['by_kind'] == {
        'lift': {'right': 0.0, 'of': 1},
        'put': {'right': 1.0, 'of': 1},
    }
    assert scored['time_to_success_s']['max'] == 2.0
    assert scored['jolt_at_seams_mm']['max'] == pytest.approx(3.0)
    assert scored['jolt_elsewhere_mm']['max'] == pytest.approx(0.0, abs=1e-9)
    assert scored['language_while_moving'] == 0.5
