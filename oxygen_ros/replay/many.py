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
    with tqdm(total=len(bags), unit='bag', desc='bags', leave=False, disable=None) as bar:
        for bag, name in zip(bags, report_names(bags), strict=True):
            rows.append(row_for(bag, name, evaluator, with_measured, out))
            bar.update()
            if evaluator.interrupted:
                break
    return rows


def row_for(
    bag: str, name: str, evaluator: Evaluator, with_measured: bool, out: str | None
) -> dict[str, Any]:
    """Replay one bag; name: of its files in the folder out."""
    try:
        evaluation = evaluator(bag)
    except OxygenError as error:
        return failed_row(name, str(error))
    report = report_of(evaluation, with_measured)
    if out is not None:
        write_reports(evaluation, report, Path(out).expanduser(), name)
    return {**row_of(report), 'bag': name}


def report_names(bags: Sequence[str]) -> list[str]:
    """A name for each bag's files: its own, with a number from the second of that name on."""
    names: list[str] = []
    for bag in bags:
        name = stem = Path(bag).expanduser().resolve().stem or 'bag'
        number = 2
        while name in names:
            name, number = f'{stem}-{number}', number + 1
        names.append(name)
    return names


def report_of(evaluation: Evaluation, with_measured: bool) -> dict[str, Any]:
    """The report, with what this machine took if that is asked for."""
    if not with_measured:
        return evaluation.report
    return {**evaluation.report, 'measured': evaluation.measured}


def write_reports(evaluation: Evaluation, report: dict[str, Any], folder: Path, name: str) -> None:
    """FOLDER/<name>.json and .html."""
    from oxygen_ros.replay.page import replay_page

    write_json(report, folder / f'{name}.json')
    write_text(replay_page(evaluation), folder / f'{name}.html', '--out')
