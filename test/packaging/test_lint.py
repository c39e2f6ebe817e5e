"""Lint are tests: what `make lint` runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    'command',
    [['ruff', 'check', '.'], ['ruff', 'format', '--check', '.'], ['mypy']],
    ids=['ruff', 'format', 'mypy'],
)
def test_tool_finds_nothing(command):
    result = subprocess.run(
        [sys.executable, '-m', *command], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
