"""The set-up tells what is missing, mends the wheels, and keeps a sourced ROS 2 out."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / 'tools' / 'setup_env.py'
_spec = importlib.util.spec_from_file_location('setup_env', SCRIPT)
setup_env = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(setup_env)


def run_setup(venv, *arguments, **environment):
    return subprocess.run(
        [sys.executable, str(SCRIPT), '--venv', str(venv), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize('variable', ['CC', 'CXX'])
def test_missing_compiler_is_named_before_anything_is_made(tmp_path, variable):
    result = run_setup(tmp_path / 'venv', **{variable: 'no-such-compiler'})
    assert result.returncode == 1
    assert result.stderr.count('\n') == 1 and 'no-such-compiler is not found' in result.stderr
    assert not (tmp_path / 'venv').exists()


def test_unknown_distro_is_answered_with_those_there_are(tmp_path):
    result = run_setup(tmp_path / 'venv', '--distro', 'humble')
    assert result.returncode == 1
    assert "'humble': use jazzy, kilted" in result.stderr


@pytest.mark.parametrize('version', [(2, 7, 18), (3, 9, 18), (3, 14, 0)])
def test_unsupported_python_is_named(version):
    with pytest.raises(setup_env.SetupError, match=r'but 3\.10 to 3\.13 is needed'):
        setup_env.check_python(version)


def test_failed_command_shows_why(capsys):
    with pytest.raises(setup_env.SetupError, match='last lines are above'):
        setup_env.run(['sh', '-c', 'echo the reason; exit 3'], dict(os.environ))
    assert capsys.readouterr().err == 'the reason\n'


def test_exports_are_mended_once(tmp_path):
    python = tmp_path / 'bin' / 'python'
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    export = tmp_path / 'share' / 'a_msgs' / 'cmake' / 'a_msgsExport.cmake'
    export.parent.mkdir(parents=True)
    build = '/opt/python/cp312-cp312'
    numpy_include = f'{build}/lib/python3.12/site-packages/numpy/_core/include'
    export.write_text(f'X "${{ROOT}}/include;{build}/include/python3.12;{numpy_include}"\n')
    assert setup_env.mend_exports(tmp_path) == 1
    root, include, numpy_include = export.read_text().split('"')[1].split(';')
    assert root == '${ROOT}/include'
    assert Path(include, 'Python.h').is_file()
    assert Path(numpy_include, 'numpy', 'arrayobject.h').is_file()
    assert setup_env.mend_exports(tmp_path) == 0


def test_no_export_of_this_environment_names_a_foreign_folder():
    files = list(Path(sys.prefix, 'share').glob('*/cmake/*Export.cmake'))
    assert [path for path in files if '/opt/python/' in path.read_text()] == []


def test_sourced_ros_does_not_reach_the_environment(tmp_path, monkeypatch):
    (tmp_path / 'rclpy').mkdir()
    (tmp_path / 'rclpy' / '__init__.py').write_text('raise ImportError("of another ROS 2")')
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path))
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    monkeypatch.setenv('LD_LIBRARY_PATH', f'/drivers:{tmp_path}/lib')
    monkeypatch.setenv('RMW_IMPLEMENTATION', 'rmw_of_another_ros')
    environment = setup_env.clean_environment(Path(sys.prefix))
    assert environment['LD_LIBRARY_PATH'] == '/drivers'
    code = 'import rclpy; rclpy.init(); rclpy.create_node("a"); rclpy.shutdown()'
    subprocess.run(['python', '-c', code], cwd=tmp_path.parent, env=environment, check=True)


def test_stamp_is_of_contents_and_of_a_finished_part(tmp_path):
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'python').touch()
    message = tmp_path / 'A.msg'
    message.write_text('uint8 a\n')
    stamp = setup_env.digest([message], '3.11')
    assert not setup_env.is_current(tmp_path, 'messages', stamp)
    setup_env.write_stamp(tmp_path, 'messages', stamp)
    assert setup_env.is_current(tmp_path, 'messages', stamp)
    message.write_text('uint8 b\n')
    assert not setup_env.is_current(tmp_path, 'messages', setup_env.digest([message], '3.11'))
