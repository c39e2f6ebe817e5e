"""oxygen_replay: answer a recorded bag without ROS, faster than real time.

    oxygen_replay BAG --params config/oxygen.yaml --json report.json
    oxygen_replay BAG --checkpoint my_pi05 --robot demo --set mode=isolated --json -

Exit code 0, or 2 with one line on stderr when something given cannot be used.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from oxygen_ros.policy import Policy
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.report import build_report, check_writable, to_json, write_json
from oxygen_ros.replay.runner import BagClock, Runner
from oxygen_ros.replay.sources import Sources, find_sources
from oxygen_ros.ros import parameters
from oxygen_ros.ros.arguments import add_arguments, values_of
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.ros.preflight import notes_of, preflight, refuse_misfits
from oxygen_ros.types import OxygenError

# What 'auto' becomes: measured step times would make two runs differ.
AUTO_BUDGET = '5'


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        _replay(arguments)
    except OxygenError as error:
        print(f'oxygen_replay: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('oxygen_replay: interrupted, no report was written', file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='oxygen_replay',
        description='Answer a recorded bag without ROS, faster than real time.',
        epilog='The same bag, parameters and seed give the same bytes of JSON.',
    )
    parser.add_argument('bag', help='rosbag2 folder (sqlite3 or mcap), or one .mcap or .db3 file')
    parser.add_argument('--json', metavar='OUT', help="where the report goes; '-' is the terminal")
    add_arguments(parser)
    return parser


def _replay(arguments: argparse.Namespace) -> None:
    values, notes = _values(arguments)
    out = None if arguments.json in (None, '-') else Path(arguments.json).expanduser()
    if out is not None:
        check_writable(out)
    contract = load_contract(values['robot'])
    with Bag(arguments.bag) as bag:
        instruction = values['default_instruction']
        sources = find_sources(
            bag, contract, instruction=instruction, namespace=arguments.namespace
        )
        findings = preflight(values, contract)
        refuse_misfits(findings)
        clock = BagClock(bag.start_ns)
        policy = _policy(values, clock)
        notes = [*notes, *sources.notes, *notes_of(findings)]
        runner = Runner(
            policy,
            contract,
            sources.by_topic,
            clock,
            tasks=values['language_tasks'],
            instruction=instruction,
            idle_period_ns=round(values['idle_step_period_ms'] * 1e6),
        )
        began = time.monotonic()
        _run(bag, sources, runner)
        wall_s = time.monotonic() - began
        report = build_report(bag, contract, sources, values, runner, notes)
        duration_s = (bag.end_ns - bag.start_ns) / 1e9
    if out is not None:
        write_json(report, out)
    elif arguments.json == '-':
        sys.stdout.write(to_json(report))
    _say(report, duration_s, wall_s)


def _values(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Every parameter, and notes on what was changed."""
    values, notes = values_of(arguments)
    if values['budget'] == 'auto':
        values['budget'] = AUTO_BUDGET
        notes.append(
            f"budget 'auto' depends on measured time: replay uses {AUTO_BUDGET} steps per frame"
        )
    return values, notes


def _policy(values: dict[str, Any], clock: BagClock) -> Policy:
    options = parameters.policy_options(values)
    form = 'loading {percentage:3.0f}%|{bar}|'
    with tqdm(total=1.0, bar_format=form, leave=False, disable=None) as bar:

        def progress(fraction: float) -> None:
            bar.update(fraction - bar.n)

        return Policy.from_checkpoint(
            values['checkpoint'], clock=clock, progress=progress, **options
        )


def _run(bag: Bag, sources: Sources, runner: Runner) -> None:
    total = sum(topic.messages for topic in bag.topics if topic.name in sources.by_topic)
    # disable=None: no bar where stderr is no terminal
    with tqdm(total=total, unit='msg', desc=bag.name, leave=False, disable=None) as bar:
        for message in bag.messages(sources.by_topic):
            runner.feed(message)
            bar.update()
    ended = runner.finish()
    if ended:
        print(
            f'note: {ended} language requests outlived the bag and were run to their end',
            file=sys.stderr,
        )


def _say(report: dict[str, Any], duration_s: float, wall_s: float) -> None:
    """Notes and speed, for people; the numbers of wall time are in no file."""
    for note in report['notes']:
        print(f'note: {note}', file=sys.stderr)
    totals, counters = report['totals'], report['counters']
    dropped = ', '.join(f'{n} {reason}' for reason, n in sorted(counters['dropped'].items()))
    print(
        f'{report["bag"]["name"]}: {totals["chunks"]} chunks of {totals["frames"]} frames, '
        f'{totals["tokens"]} tokens of {totals["requests"]} requests; '
        f'dropped: {dropped or "nothing"}; '
        f'{duration_s:.1f} s of bag in {wall_s:.1f} s ({duration_s / max(wall_s, 1e-9):.1f}x)',
        file=sys.stderr,
    )
