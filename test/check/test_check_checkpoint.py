"""Checkpoint, contract and memory: what fits, and every misfit by its name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from misfits import CASES, GOLDEN, copy_checkpoint, write_contract
from safetensors.numpy import load_file, save_file

from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.checkpoint.random_pi05 import write_random_checkpoint
from oxygen_ros.devices import host_bytes
from oxygen_ros.engine.request import Limits
from oxygen_ros.models.registry import footprint
from oxygen_ros.policy import Policy, PolicyOptions
from oxygen_ros.types import Verdict


def test_what_fits(check):
    answer = check()
    assert answer.code == 0
    assert list(answer.findings) == [
        'checkpoint', 'weights', 'statistics', 'tokenizer', 'KV pool', 'memory', 'cameras',
        'state', 'actions', 'horizon',
    ]  # fmt: skip
    assert answer.verdicts('note') == {'statistics', 'cameras'}
    assert '10 checks, no misfits, 2 notes: all fits' in answer.out


def test_notes_name_what_they_are_about(check):
    findings = check().findings
    assert 'state [7]' in findings['statistics']['detail']
    assert '{right_wrist_0_rgb}' in findings['cameras']['detail']


def test_a_rule_that_is_supposed_is_noted(check, tmp_path):
    folder = copy_checkpoint(tmp_path / 'copy')
    for name, index in (('policy_preprocessor.json', 2), ('policy_postprocessor.json', 1)):
        steps = json.loads((folder / name).read_text())
        steps['steps'].pop(index)
        (folder / name).write_text(json.dumps(steps))
    answer = check(checkpoint=folder)
    assert answer.code == 0 and 'prompt' in answer.verdicts('note')
    assert 'set prompt_state_dim to 32' in answer.findings['prompt']['detail']


@pytest.mark.parametrize('name', CASES)
def test_each_misfit_is_refused_with_names(check, tmp_path, name):
    case = CASES[name]
    answer = check(
        checkpoint=copy_checkpoint(tmp_path / 'copy', case.checkpoint),
        robot=write_contract(tmp_path / 'robot.yaml', case.contract),
        parameters=case.parameters,
    )
    assert answer.code == 1
    finding = answer.findings[case.check]
    assert finding['verdict'] == 'misfit'
    for word in case.words:
        assert word in finding['detail']
    line = next(line for line in answer.out.splitlines() if line.startswith(case.check))
    assert line.endswith('misfit') and 'mend what does not fit' in answer.out
    # one fault must not hide that the rest fits, nor be blamed on it
    others = answer.verdicts('misfit') - {case.check}
    assert others <= ({'state'} if name == 'more joints than the model has actions' else set())


def test_several_faults_are_seen_at_once(check, tmp_path):
    folder = copy_checkpoint(tmp_path / 'copy')
    for name in ('no tokenizer', 'no statistics', 'extra tensor'):
        CASES[name].checkpoint(folder)
    robot = write_contract(tmp_path / 'robot.yaml', CASES['cameras of another robot'].contract)
    answer = check(checkpoint=folder, robot=robot)
    assert answer.verdicts('misfit') == {'tokenizer', 'statistics', 'weights', 'cameras'}


def test_what_could_not_be_checked_is_not_said_to_fit(check, tmp_path):
    answer = check(
        checkpoint=copy_checkpoint(tmp_path / 'x', CASES['truncated weights'].checkpoint)
    )
    assert answer.verdicts('misfit') == {'weights'}
    assert {'tokenizer', 'contract'} <= answer.verdicts('note')
    assert answer.verdicts('ok') == {'checkpoint'}


def test_the_other_format_fits_too(check):
    openpi = check(checkpoint=GOLDEN.parents[1] / 'pi05_openpi_format' / 'checkpoint')
    assert openpi.code == 0 and openpi.findings['checkpoint']['found'] == 'openpi, pi05'


@pytest.fixture
def xiaomi(tmp_path):
    """A function: the golden Xiaomi checkpoint for a robot of 8 joints, and a contract for it."""
    folder = Path(shutil.copytree(GOLDEN.parents[1] / 'xr0' / 'checkpoint', tmp_path / 'xr0'))
    (folder / 'oxygen.json').write_text('{"state_dim": 8, "action_dim": 7}')

    def make(merge='replace'):
        def change(tree):
            base, wrist = tree['cameras'].values()
            tree['cameras'] = {'base_view': base, 'left_wrist_view': wrist}
            tree['actions']['merge'] = merge

        return {'checkpoint': folder, 'robot': write_contract(tmp_path / f'{merge}.yaml', change)}

    return make


def test_another_family_fits_too(check, xiaomi):
    answer = check(**xiaomi(), parameters={'robot_tag': 'libero_tiny'})
    assert answer.code == 0
    assert answer.findings['checkpoint']['found'] == 'mibot, xiaomi_robotics_0'
    assert 'of robot libero_tiny' in answer.findings['statistics']['found']
    assert '[(9, 3)]' in answer.findings['statistics']['detail']
    assert answer.findings['horizon']['needed'].startswith('10 rows')


def test_a_robot_tag_that_is_not_there_lists_those_that_are(check, xiaomi):
    answer = check(**xiaomi(), parameters={'robot_tag': 'aloha'})
    assert answer.verdicts('misfit') == {'statistics'}
    assert 'bridge_tiny, libero_tiny' in answer.findings['statistics']['detail']


def test_a_merge_that_the_model_cannot_take_part_in(check, xiaomi):
    answer = check(**xiaomi('realtime'), parameters={'robot_tag': 'libero_tiny'})
    assert answer.verdicts('misfit') == {'merge'}
    finding = answer.findings['merge']
    assert finding['needed'] == 'replace, blend, average'
    assert 'prefix_length is 0' in finding['detail']


def test_c50_a_narrow_robot_on_a_wide_head(check, tmp_path):
    """Statistics as wide as the head, a robot of 7 joints: fits once oxygen.json says so."""
    folder = write_random_checkpoint(tmp_path / 'wide', state_dim=32, action_dim=32)
    refused = check(checkpoint=folder, robot='demo')
    assert refused.verdicts('misfit') == {'state', 'actions'}
    for part in ('state', 'action'):
        name = 'actions' if part == 'action' else part
        detail = refused.findings[name]['detail']
        assert 'names 7 joints, the model has 32' in detail
        assert f'set {part}_dim to 7 in oxygen.json' in detail
    file = folder / 'oxygen.json'
    file.write_text(file.read_text().replace('{', '{"state_dim": 7, "action_dim": 7,', 1))
    assert check(checkpoint=folder, robot='demo').code == 0
    policy = Policy.from_checkpoint(folder, denoise_steps=1)
    assert (policy.info.state_dim, policy.info.action_dim) == (7, 7)
    assert policy.engine.model.spec.action_dim == 32


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('tied', [True, False])
def test_the_memory_foreseen_is_the_memory_taken(tmp_path, dtype, tied):
    folder = copy_checkpoint(tmp_path / 'copy')
    if tied:
        path = folder / 'model.safetensors'
        tensors = load_file(path)
        del tensors['model.paligemma_with_expert.paligemma.lm_head.weight']
        save_file(tensors, path)
    options = PolicyOptions(dtype=dtype, max_rows=3, max_prompt_tokens=5, max_new_tokens=7)
    policy = Policy.from_checkpoint(folder, options)
    model, pool = policy.engine.model, policy.engine.pool
    held = {p.data_ptr(): p.numel() * p.itemsize for p in model.parameters()}
    kv = sum(tensor.numel() * tensor.itemsize for tensor in [*pool.keys, *pool.values])
    sizes = footprint(inspect_checkpoint(folder), 3, model.dtype.itemsize)
    # found equal on loading, two matrices become one as well
    head = model.lm_head.weight.numel() * model.dtype.itemsize
    assert sum(held.values()) == sizes.weight_bytes - (0 if tied else head)
    _, findings = Policy.preflight(folder, options)
    pool_line = next(f for f in findings if f.check == 'KV pool')
    assert pool_line.found.endswith(f'{kv / 2**20:.1f} MB')


def test_what_is_just_allowed_is_made_and_one_row_more_is_refused(tmp_path):
    """The pre-flight and the engine draw the line at the same row."""
    limits = {'max_new_tokens': 200, 'max_kv_mb': 2}
    fits = [
        all(f.verdict is not Verdict.MISFIT for f in Policy.preflight(GOLDEN, options)[1])
        for options in (PolicyOptions(max_rows=rows, **limits) for rows in range(1, 20))
    ]
    rows = fits.count(True)
    assert fits == [True] * rows + [False] * (19 - rows) and 0 < rows < 19
    policy = Policy.from_checkpoint(GOLDEN, max_rows=rows, **limits)
    assert policy.engine.scheduler.limits == Limits(rows, 32, 64, 200)
    with pytest.raises(ValueError, match='KV rows'):
        Policy.from_checkpoint(GOLDEN, max_rows=rows + 1, **limits)


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ('groups', 'files', 'expected'),
    [
        ('', {}, 8000 * 1024),
        # version 2: a limit on a group above this process's
        (
            '0::/robot.slice/oxygen.service\n',
            {
                'robot.slice/memory.max': '5000000',
                'robot.slice/memory.current': '1000000',
                'robot.slice/memory.stat': 'anon 5\ninactive_file 300000\n',
                'robot.slice/oxygen.service/memory.max': 'max',
                'robot.slice/oxygen.service/memory.current': '900000',
                'robot.slice/oxygen.service/memory.stat': 'inactive_file 0\n',
            },
            4_300_000,
        ),
        # version 1 in a container, which is told a path that it cannot see
        (
            '4:memory:/docker/0123\n3:cpuset:/\n',
            {
                'memory/memory.limit_in_bytes': '3000000',
                'memory/memory.usage_in_bytes': '1000000',
                'memory/memory.stat': 'total_inactive_file 500000\n',
            },
            2_500_000,
        ),
        # version 1 without a limit
        (
            '4:memory:/\n',
            {
                'memory/memory.limit_in_bytes': '9223372036854771712',
                'memory/memory.usage_in_bytes': '1000000',
                'memory/memory.stat': 'total_inactive_file 500000\n',
            },
            8000 * 1024,
        ),
    ],
)
def test_free_memory_of_machines_and_containers(tmp_path, groups, files, expected):
    write(tmp_path, 'proc/meminfo', 'MemTotal: 9000 kB\nMemAvailable: 8000 kB\nHugePages: 0\n')
    write(tmp_path, 'proc/self/cgroup', groups)
    for path, text in files.items():
        write(tmp_path, f'sys/fs/cgroup/{path}', text)
    assert host_bytes(tmp_path) == expected


def test_free_memory_here():
    lines = Path('/proc/meminfo').read_text().splitlines()
    total = next(line for line in lines if line.startswith('MemTotal:'))
    assert 0 < host_bytes() <= int(total.split()[1]) * 1024


def test_no_weight_is_read(tmp_path):
    """All weights replaced by a hole in the file: only the header is there to be read."""
    folder = copy_checkpoint(tmp_path / 'copy')
    path = folder / 'model.safetensors'
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], 'little')
    with open(path, 'r+b') as file:
        file.truncate(header)
        file.truncate(len(whole))
    info, findings = Policy.preflight(folder, PolicyOptions())
    assert info is not None and all(f.verdict is not Verdict.MISFIT for f in findings)


def test_as_a_process_without_ros(tmp_path):
    """The command itself, where importing rclpy or the messages would fail."""
    code = (
        'import sys; sys.modules["rclpy"] = sys.modules["oxygen_ros.msg"] = None\n'
        'from oxygen_ros.check.cli import main\n'
        'sys.exit(main())'
    )
    robot = write_contract(tmp_path / 'robot.yaml')
    command = [sys.executable, '-c', code, '--checkpoint', str(GOLDEN), '--robot', str(robot)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('oxygen_check: checkpoint ') and 'all fits' in done.stdout
    refused = subprocess.run([*command, '--live'], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and '--live needs ROS 2' in refused.stderr
    assert 'Traceback' not in refused.stderr


def test_names_are_not_broken_in_the_table(check, tmp_path):
    shutil.copytree(GOLDEN, tmp_path / 'copy')
    CASES['renamed tensor'].checkpoint(tmp_path / 'copy')
    answer = check(checkpoint=tmp_path / 'copy')
    for word in CASES['renamed tensor'].words:
        assert word.split()[0] in answer.out
