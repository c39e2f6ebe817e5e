"""package.xml, the requirement files and the executables agree with the sources."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from catkin_pkg.package import parse_package

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = parse_package(ROOT)
# Import name -> name of the rosdep key or of the requirement, where they differ.
NAMES = {'PIL': 'pil', 'yaml': 'yaml'}


def imported_packages():
    files = [*ROOT.glob('oxygen_ros/**/*.py'), *ROOT.glob('launch/*.py')]
    for node in (n for path in files for n in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split('.')[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split('.')[0]


def requirements(*names):
    lines = [line for n in names for line in (ROOT / 'requirements' / n).read_text().split('\n')]
    return [line for line in lines if line and not line.startswith('#')]


def test_every_import_is_declared():
    declared = {dependency.name for dependency in MANIFEST.exec_depends}
    declared |= {re.split(r'==|\[', line)[0] for line in requirements('models.txt', 'ray.txt')}
    used = set(imported_packages()) - set(sys.stdlib_module_names) - {'oxygen_ros'}
    keys = {name: {name, f'python3-{NAMES.get(name, name)}'} for name in used}
    assert [name for name in used if not keys[name] & declared] == []


def test_manifest_is_of_one_cmake_package_with_messages():
    MANIFEST.validate()
    assert (MANIFEST.package_format, MANIFEST.get_build_type()) == (3, 'ament_cmake')
    assert MANIFEST.licenses == ['Apache-2.0']
    assert [group.name for group in MANIFEST.member_of_groups] == ['rosidl_interface_packages']


def test_versions_agree():
    command = [sys.executable, 'setup.py', '--name', '--version']
    answer = subprocess.check_output(command, cwd=ROOT, text=True).split()
    assert answer == [MANIFEST.name, MANIFEST.version]


@pytest.mark.parametrize('path', sorted((ROOT / 'requirements').iterdir()), ids=lambda p: p.name)
def test_every_requirement_is_pinned(path):
    assert [line for line in requirements(path.name) if '==' not in line] == []


def test_executables_can_run_and_are_installed_both_ways():
    scripts = sorted((ROOT / 'scripts').iterdir())
    assert all(os.access(path, os.X_OK) for path in scripts)
    for installer in ('CMakeLists.txt', 'setup.py'):
        text = (ROOT / installer).read_text()
        assert [path.name for path in scripts if path.name not in text] == []
