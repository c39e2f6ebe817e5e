"""Installs the package with CMake through pip into an environment of its own, and removes it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns('.*', 'build', 'install', 'log', '__pycache__', 'test', 'golden')
CODE = """
import oxygen_ros.types
from oxygen_ros.msg import EngineStatus
from rclpy.serialization import deserialize_message, serialize_message
status = deserialize_message(serialize_message(EngineStatus(state='serving')), EngineStatus)
print(status.state, oxygen_ros.types.__file__, EngineStatus.__module__)
"""


@pytest.fixture(scope='module')
def prefix(tmp_path_factory):
    """An environment that sees this one's packages, as a prefix laid over that of ROS 2."""
    folder = tmp_path_factory.mktemp('install')
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', folder / 'venv'], check=True)
    site = next((folder / 'venv').glob('lib/python3.*/site-packages'))
    (site / 'ros.pth').write_text(sysconfig.get_path('purelib') + '\n')
    return folder / 'venv'


@pytest.fixture(scope='module')
def environment(prefix):
    environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    environment['PATH'] = f'{prefix}/bin:{sys.prefix}/bin:{os.environ["PATH"]}'
    environment['AMENT_PREFIX_PATH'] = f'{prefix}:{sys.prefix}'
    environment['LD_LIBRARY_PATH'] = f'{prefix}/lib:{os.environ["LD_LIBRARY_PATH"]}'
    return environment


def run(*command, environment, cwd):
    result = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_pip_installs_runs_and_removes_everything(prefix, environment, tmp_path):
    source = shutil.copytree(ROOT, tmp_path / 'oxygen_ros', ignore=IGNORED)
    pip = ['python', '-m', 'pip', '--disable-pip-version-check']
    install = [*pip, 'install', '--no-build-isolation', '--no-deps', str(source)]
    run(*install, environment=environment, cwd=tmp_path)

    state, module, message = run(
        'python', '-c', CODE, environment=environment, cwd=tmp_path
    ).split()
    assert state == 'serving' and message.startswith('oxygen_ros.msg')
    assert Path(module).is_relative_to(prefix)
    for executable in ('bin/oxygen_replay', 'lib/oxygen_ros/oxygen_replay'):
        usage = run(str(prefix / executable), '--help', environment=environment, cwd=tmp_path)
        assert '--params' in usage
    assert os.access(prefix / 'lib' / 'oxygen_ros' / 'oxygen_node', os.X_OK)
    for name in ('config', 'launch'):
        sources = {p.relative_to(ROOT) for p in (ROOT / name).rglob('*.*')}
        share = prefix / 'share' / 'oxygen_ros'
        assert sources and {p for p in sources if not (share / p).exists()} == set()

    run(*pip, 'uninstall', '-y', 'oxygen_ros', environment=environment, cwd=tmp_path)
    left = [p for p in prefix.rglob('*') if 'oxygen' in str(p.relative_to(prefix))]
    assert [p for p in left if not p.is_dir()] == []


def test_pip_refuses_an_environment_that_uses_the_tree_in_place(prefix, environment, tmp_path):
    site = next(prefix.glob('lib/python3.*/site-packages'))
    (site / 'oxygen_ros.pth').write_text(f'{ROOT}\n')
    command = ['python', 'setup.py', 'build']
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    (site / 'oxygen_ros.pth').unlink()
    assert result.returncode != 0 and 'uses the source tree in place' in result.stderr
