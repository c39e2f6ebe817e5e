"""oxygen_replay: answer recorded bags again and score the answers.

    oxygen_replay BAG --params config/oxygen.yaml --json report.json --html report.html
    oxygen_replay BAG --checkpoint my_pi05 --robot demo --set mode=isolated --json -
    oxygen_replay BAG BAG BAG --params my.yaml --out reports
    oxygen_replay BAG --params my.yaml --timeline live --html live.html
    oxygen_replay --compare before.json after.json --html difference.html

Exit code 0; 1 where a report is partial or one of several bags could not be used; 2, with one
line on stderr, when something given cannot be used; 130 when interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oxygen_ros.replay import many
from oxygen_ros.replay.compare import compare_command
from oxygen_ros.replay.evaluate import Evaluation, Evaluator
from oxygen_ros.replay.files import check_writable, make_folder, to_json, write_json, write_text
from oxygen_ros.replay.table import summary, table
from oxygen_ros.ros.arguments import add_arguments, values_of
from oxygen_ros.types import OxygenError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        _check_outputs(arguments)
        if arguments.compare:
            return compare_command(arguments.compare, arguments.json, arguments.html)
        return _replay(arguments)
    except OxygenError as error:
        print(f'oxygen_replay: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('oxygen_replay: interrupted, no report was written', file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='oxygen_replay',
        description='Answer recorded bags again, without a robot, and score the answers.',
        epilog='On the timeline of the bag, the same bag, parameters and seed give the same '
        'bytes of JSON.',
    )
    parser.add_argument(
        'bags', nargs='*', metavar='BAG',
        help='rosbag2 folder (sqlite3 or mcap), or one .mcap or .db3 file; several give a table',
    )  # fmt: skip
    parser.add_argument(
        '--json', metavar='OUT', help="where the report or table goes; '-' is the terminal"
    )
    parser.add_argument('--html', metavar='OUT', help='the same as one page with pictures')
    parser.add_argument('--out', metavar='FOLDER', help='JSON and a page of every bag')
    parser.add_argument(
        '--timeline',
        choices=('bag', 'live'),
        default='bag',
        help='bag: as fast as possible, the same every time; live: in real time through the node '
        'and its topics (needs ROS 2). Default bag',
    )
    parser.add_argument(
        '--measured',
        action='store_true',
        help='also what this machine took, which no two runs share; always with --timeline live',
    )
    parser.add_argument(
        '--ray', action='store_true', help='several bags as a Ray Data job (needs ray)'
    )
    parser.add_argument(
        '--compare', nargs=2, metavar=('A.json', 'B.json'), help='two reports of one bag'
    )
    add_arguments(parser)
    return parser


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse what cannot work before any work begins."""
    if bool(arguments.bags) == bool(arguments.compare):
        raise OxygenError('give bags to replay, or two reports with --compare')
    if arguments.json not in (None, '-'):
        check_writable(Path(arguments.json).expanduser(), '--json')
    if arguments.html is not None:
        check_writable(Path(arguments.html).expanduser(), '--html')
    if arguments.out is not None:
        make_folder(Path(arguments.out).expanduser(), '--out')
    if arguments.html is not None or arguments.out is not None:
        from oxygen_ros.replay.page import check_libraries

        check_libraries()
    if arguments.ray and arguments.timeline == 'live':
        raise OxygenError('--ray replays on the timeline of the bag: leave --timeline live out')


def _replay(arguments: argparse.Namespace) -> int:
    values, notes = values_of(arguments)
    if arguments.ray:
        from oxygen_ros.replay.ray_job import ray_rows

        evaluator = Evaluator(values, notes, namespace=arguments.namespace)
        evaluator.check()
        rows = ray_rows(arguments.bags, evaluator, arguments.measured, arguments.out)
        return _finish_many(rows, evaluator, arguments)
    evaluator = Evaluator(
        values, notes, namespace=arguments.namespace, timeline=arguments.timeline
    )
    if len(arguments.bags) > 1:
        evaluator.check()
        rows = many.local_rows(arguments.bags, evaluator, _with_measured(arguments), arguments.out)
        return _finish_many(rows, evaluator, arguments)
    return _finish_one(evaluator(arguments.bags[0]), evaluator, arguments)


def _finish_one(
    evaluation: Evaluation, evaluator: Evaluator, arguments: argparse.Namespace
) -> int:
    report = many.report_of(evaluation, _with_measured(arguments))
    if arguments.out is not None:
        folder, (name,) = Path(arguments.out).expanduser(), many.report_names(arguments.bags)
        many.write_reports(evaluation, report, folder, name)
    _write_json(report, arguments.json)
    if arguments.html is not None:
        from oxygen_ros.replay.page import replay_page

        write_text(replay_page(evaluation), Path(arguments.html).expanduser(), '--html')
    _say(report, evaluation.measured)
    if evaluator.interrupted:
        return 130
    return 0 if report['complete'] else 1


def _finish_many(
    rows: list[dict[str, Any]], evaluator: Evaluator, arguments: argparse.Namespace
) -> int:
    report = summary(rows, evaluator.values, evaluator.made_by)
    _write_json(report, arguments.json)
    pages = [Path(arguments.html).expanduser()] if arguments.html is not None else []
    if arguments.out is not None:
        folder = Path(arguments.out).expanduser()
        write_json(report, folder / 'summary.json')
        pages.append(folder / 'summary.html')
    for path in pages:
        from oxygen_ros.replay.page import summary_page

        write_text(summary_page(report), path, '--html')
    print(table(rows), file=sys.stderr if arguments.json == '-' else sys.stdout)
    return 0 if report['complete'] else 1


def _with_measured(arguments: argparse.Namespace) -> bool:
    return bool(arguments.measured or arguments.timeline == 'live')


def _write_json(report: dict[str, Any], where: str | None) -> None:
    if where == '-':
        sys.stdout.write(to_json(report))
    elif where is not None:
        write_json(report, Path(where).expanduser())


def _say(report: dict[str, Any], measured: dict[str, Any]) -> None:
    """Notes, what came of it and speed, for people."""
    for note in report['notes']:
        print(f'note: {note}', file=sys.stderr)
    if report['problem']:
        print(f'PARTIAL: {report["problem"]}', file=sys.stderr)
    totals, counters = report['totals'], report['counters']
    dropped = ', '.join(f'{n} {reason}' for reason, n in sorted(counters['dropped'].items()))
    seconds = report['bag']['duration_ns'] / 1e9
    print(
        f'{report["bag"]["name"]}: {totals["chunks"]} chunks of {totals["frames"]} frames, '
        f'{totals["tokens"]} tokens of {totals["requests"]} requests; '
        f'dropped: {dropped or "nothing"}; '
        f'{seconds:.1f} s of bag in {measured["wall_s"]:.1f} s '
        f'({measured["times_real_time"] or 0:.1f}x)',
        file=sys.stderr,
    )
