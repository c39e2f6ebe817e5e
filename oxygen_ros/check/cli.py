"""oxygen_check: say what fits and what does not, before a robot waits for it.

    oxygen_check --checkpoint my_pi05 --robot my_robot.yaml
    oxygen_check --params my.yaml --bag recordings/kitchen
    oxygen_check --params my.yaml --live --seconds 10 --json findings.json

Exit code 0 if all fits, 1 on any misfit, 2 if an argument cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oxygen_ros.check.bag import check_bag
from oxygen_ros.check.table import summary, table
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.files import check_writable, to_json, write_json
from oxygen_ros.ros.arguments import add_arguments, values_of
from oxygen_ros.ros.contract import Contract, load_contract
from oxygen_ros.ros.preflight import preflight
from oxygen_ros.types import Finding, OxygenError, Verdict

SCHEMA = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return _check(arguments)
    except OxygenError as error:
        print(f'oxygen_check: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('oxygen_check: interrupted', file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='oxygen_check',
        description='Say what of checkpoint, contract and robot fits, without loading weights.',
        epilog='Exit code 0: all fits; 1: a misfit; 2: an argument cannot be used.',
    )
    add_arguments(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument('--bag', help='a recording that should hold what the contract names')
    source.add_argument(
        '--live', action='store_true', help='look at the running robot (needs ROS)'
    )
    parser.add_argument(
        '--seconds', type=_seconds, default=5.0, help='how long to listen with --live; default 5'
    )
    parser.add_argument('--json', metavar='OUT', help="where the findings go; '-' is the terminal")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f'{text} is not from above 0 to 3600')
    return value


def _check(arguments: argparse.Namespace) -> int:
    values, warnings = values_of(arguments)
    out = None if arguments.json in (None, '-') else Path(arguments.json).expanduser()
    if out is not None:
        check_writable(out)
    contract = load_contract(values['robot'])
    if not Path(values['checkpoint']).is_dir():
        raise OxygenError(f'checkpoint {values["checkpoint"]} is not a folder')
    findings = [
        Finding('parameters', 'unknown', 'known names', Verdict.NOTE, text) for text in warnings
    ]
    findings += preflight(values, contract)
    findings += _inputs(arguments, contract, values['default_instruction'])
    _say(arguments, values, contract, findings, out)
    return int(any(finding.verdict is Verdict.MISFIT for finding in findings))


def _inputs(arguments: argparse.Namespace, contract: Contract, instruction: str) -> list[Finding]:
    """What the bag or the running robot has, if one is given."""
    if arguments.bag is not None:
        with Bag(arguments.bag) as bag:
            return check_bag(bag, contract, instruction, arguments.namespace)
    if arguments.live:
        try:
            from oxygen_ros.check.live import check_live
        except ImportError as error:
            raise OxygenError(f'--live needs ROS 2, which is not installed: {error}') from error
        return check_live(contract, instruction, arguments.namespace, arguments.seconds)
    return []


def _say(
    arguments: argparse.Namespace,
    values: dict[str, Any],
    contract: Contract,
    findings: list[Finding],
    out: Path | None,
) -> None:
    """The table for people, the same as JSON for programs."""
    robot = f'robot {contract.robot} ({contract.path})'
    heading = f'oxygen_check: checkpoint {values["checkpoint"]}, {robot}'
    report = {
        'schema': SCHEMA,
        'fits': all(finding.verdict is not Verdict.MISFIT for finding in findings),
        'checkpoint': values['checkpoint'],
        'robot': contract.path,
        'findings': [{**asdict(f), 'verdict': f.verdict.value} for f in findings],
    }
    text = f'{heading}\n\n{table(findings)}\n\n{summary(findings)}'
    print(text, file=sys.stderr if arguments.json == '-' else sys.stdout)
    if out is not None:
        write_json(report, out)
    elif arguments.json == '-':
        sys.stdout.write(to_json(report))
