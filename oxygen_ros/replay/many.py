"""Reports of several bags, one after the other; a bag that cannot be used costs only its row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from oxygen_ros.replay.evaluate import Evaluation, Evaluator
from oxygen_ros.replay.files import write_json, write_text
from oxygen_ros.replay.table import failed_row, row_of
from oxygen_ros.types import OxygenError


def local_rows(
    bags: Sequence[str], evaluator: Evaluator, with_measured: bool, out: str | None
) -> list[dict[str, Any]]:
    """A row for each bag, in order; with out, its report and page as well."""
    rows = []
    taken: set[str] = set()
    with tqdm(bags, unit='bag', desc='bags', leave=False, disable=None) as bar:
        for bag in bar:
            rows.append(row_for(bag, evaluator, with_measured, out, taken))
            if evaluator.interrupted:
                break
    return rows


def row_for(
    bag: str, evaluator: Evaluator, with_measured: bool, out: str | None, taken: set[str]
) -> dict[str, Any]:
    """Replay one bag; taken: names of reports that are written already."""
    try:
        evaluation = evaluator(bag)
    except OxygenError as error:
        return failed_row(Path(bag).name or bag, str(error))
    report = report_of(evaluation, with_measured)
    if out is not None:
        write_reports(evaluation, report, Path(out).expanduser(), taken)
    return row_of(report)


def report_of(evaluation: Evaluation, with_measured: bool) -> dict[str, Any]:
    """The report, with what this machine took if that is asked for."""
    if not with_measured:
        return evaluation.report
    return {**evaluation.report, 'measured': evaluation.measured}


def write_reports(
    evaluation: Evaluation, report: dict[str, Any], folder: Path, taken: set[str]
) -> None:
    """FOLDER/<bag>.json and .html; a second bag of the same name gets a number."""
    from oxygen_ros.replay.page import replay_page

    name = stem = evaluation.path.resolve().stem
    number = 2
    while name in taken:
        name, number = f'{stem}-{number}', number + 1
    taken.add(name)
    write_json(report, folder / f'{name}.json')
    write_text(replay_page(evaluation), folder / f'{name}.html', '--out')
