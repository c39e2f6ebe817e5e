"""oxygen_check on private copies of the golden checkpoint."""

import json
import sys
from pathlib import Path

import pytest

# The bags of test/replay and the peer of test/ros serve here too.
sys.path += [str(Path(__file__).parents[1] / name) for name in ('replay', 'ros')]

from misfits import GOLDEN, write_contract

from oxygen_ros.check import cli


class Answer:
    """What one run of oxygen_check said."""

    def __init__(self, code, report, out):
        self.code = code
        self.out = out
        self.findings = {f['check']: f for f in report['findings']}
        assert report['fits'] == (code == 0)

    def verdicts(self, verdict):
        """Checks with this verdict."""
        return {name for name, f in self.findings.items() if f['verdict'] == verdict}


@pytest.fixture
def check(tmp_path, capsys):
    """Run oxygen_check; the golden checkpoint and a contract that fits it if not told else."""

    def run(*arguments, checkpoint=GOLDEN, robot=None, parameters=None):
        robot = robot or write_contract(tmp_path / 'fitting.yaml')
        settings = [f'{name}={value}' for name, value in (parameters or {}).items()]
        out = tmp_path / 'findings.json'
        code = cli.main([
            '--checkpoint', str(checkpoint), '--robot', str(robot), '--json', str(out),
            *(part for setting in settings for part in ('--set', setting)),
            *map(str, arguments),
        ])  # fmt: skip
        return Answer(code, json.loads(out.read_text()), capsys.readouterr().out)

    return run
