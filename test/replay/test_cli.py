"""The command: what beats what, and one clear line and exit code 2 for everything wrong."""

import json
import subprocess
import sys

import pytest
from bags import BASE, session, write_bag

from oxygen_ros.checkpoint.random_pi05 import write_random_checkpoint
from oxygen_ros.replay import cli

PARAMS = """\
/**:
  ros__parameters:
    checkpoint: {checkpoint}
    robot: demo
    denoise_steps: 2
    budget: 3
    seed: 7
"""


@pytest.fixture
def bag(tmp_path):
    return write_bag(tmp_path / 'bag', session(frames=1))


@pytest.fixture
def params(tmp_path, checkpoint):
    file = tmp_path / 'params.yaml'
    file.write_text(PARAMS.format(checkpoint=checkpoint))
    return file


def run(capsys, *arguments):
    """Exit code and the last line of stderr."""
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refusal(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == ''
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith('oxygen_replay: ')
    return lines[0]


def test_argument_beats_file_beats_default(capsys, bag, params):
    code, out, _ = run(capsys, bag, '--params', params, '--set', 'seed=9', '--json', '-')
    assert code == 0
    used = json.loads(out)['settings']['parameters']
    assert (used['seed'], used['budget'], used['mode']) == (9, '3', 'continuous')


def test_without_json_only_the_summary(capsys, bag, params):
    code, out, err = run(capsys, bag, '--params', params)
    assert code == 0 and out == '' and '1 chunks of 1 frames' in err


def test_unknown_parameter_in_the_file_is_a_note(capsys, bag, params):
    params.write_text(params.read_text() + '    buget: 4\n')
    code, _, err = run(capsys, bag, '--params', params)
    assert code == 0 and 'unknown parameter buget' in err


def test_missing_params_file(capsys, bag):
    text = refusal(capsys, bag, '--params', 'nowhere.yaml', '--checkpoint', 'x')
    assert 'nowhere.yaml' in text


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['--checkpoint', 'c'], 'robot is not given'),
        (['--robot', 'demo'], 'checkpoint is not given'),
        (['--robot', 'demo', '--checkpoint', '/no/such'], '/no/such'),
        (['--robot', 'nobody', '--checkpoint', 'c'], 'robot contract nobody does not exist'),
        (['--set', 'buget=3'], 'unknown parameter buget: did you mean budget?'),
        (['--set', 'budget'], 'NAME=VALUE'),
        (['--set', 'max_rows=0'], 'max_rows is 0: must be'),
        (['--set', 'mode=fast'], 'isolated, shared_kv, continuous'),
        (['--set', 'seed=['], 'not valid YAML'),
        (['--compare', 'a.json', 'b.json'], 'give bags to replay, or two reports'),
        (['--ray', '--timeline', 'live'], '--ray replays on the timeline of the bag'),
    ],
)
def test_wrong_arguments(capsys, bag, arguments, words):
    assert words in refusal(capsys, bag, *arguments)


def test_wrong_bags(capsys, tmp_path, params):
    lacking = write_bag(tmp_path / 'a', [line for line in session() if line[0] != BASE])
    text = refusal(capsys, lacking, '--params', params)
    assert 'lacks camera base_0_rgb' in text and '/joint_states' in text
    empty = write_bag(tmp_path / 'b', [], topics=[BASE])
    assert 'is empty' in refusal(capsys, empty, '--params', params)
    torn = write_bag(tmp_path / 'c', session())
    file = torn / 'c.mcap'
    file.write_bytes(file.read_bytes()[:2000])
    assert 'truncated' in refusal(capsys, torn, '--params', params)
    assert 'no rosbag2 folder' in refusal(capsys, tmp_path, '--params', params)


def test_a_checkpoint_of_another_robot(capsys, bag, tmp_path):
    write_random_checkpoint(tmp_path / 'other', 'tiny', cameras=['front', 'side'], state_dim=8)
    text = refusal(capsys, bag, '--robot', 'demo', '--checkpoint', tmp_path / 'other')
    assert '{base_0_rgb, left_wrist_0_rgb}' in text and '{front, side}' in text
    assert 'names 7 joints, the model has 8' in text


def test_output_that_cannot_be_written(capsys, bag, params, tmp_path):
    text = refusal(capsys, bag, '--params', params, '--json', tmp_path / 'no' / 'r.json')
    assert 'does not exist' in text
    assert 'is a folder' in refusal(capsys, bag, '--params', params, '--json', tmp_path)
    assert '--html' in refusal(capsys, bag, '--params', params, '--html', tmp_path / 'no' / 'r')
    file = tmp_path / 'file'
    file.write_text('')
    assert '--out' in refusal(capsys, bag, '--params', params, '--out', file / 'reports')


def test_as_a_process_without_ros(bag, params, tmp_path):
    """The command itself, where importing rclpy or the messages would fail."""
    code = (
        'import sys; sys.modules["rclpy"] = sys.modules["oxygen_ros.msg"] = None\n'
        'from oxygen_ros.replay.cli import main\n'
        'sys.exit(main())'
    )
    out = tmp_path / 'report.json'
    done = subprocess.run(
        [sys.executable, '-c', code, bag, '--params', params, '--json', out],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 'Warning' not in done.stderr and 'Traceback' not in done.stderr
    assert json.loads(out.read_text())['totals']['chunks'] == 1
