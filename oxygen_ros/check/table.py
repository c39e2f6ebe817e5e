"""The table that oxygen_check prints: one line per finding, and below it what to change."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from oxygen_ros.types import Finding, Verdict

HEAD = ('check', 'found', 'needed', 'result')
_WIDTHS = (22, 40, 38)  # a longer cell goes on in the next line
_LINE = 110


def table(findings: Sequence[Finding]) -> str:
    """Findings in columns."""
    cells = [HEAD, *((f.check, f.found, f.needed, f.verdict.value) for f in findings)]
    widths = [min(limit, max(len(row[i]) for row in cells)) for i, limit in enumerate(_WIDTHS)]
    details = ['', *(f.detail for f in findings)]
    lines = []
    for row, detail in zip(cells, details, strict=True):
        lines += _row(row, widths)
        lines += _wrap(detail, _LINE, '    ')
    return '\n'.join(lines)


def summary(findings: Sequence[Finding]) -> str:
    """How many notes and misfits, and what they mean."""
    count = Counter(finding.verdict for finding in findings)
    misfits, notes = count[Verdict.MISFIT], count[Verdict.NOTE]
    seen = f'{len(findings)} checks, {_number(misfits, "misfit")}, {_number(notes, "note")}: '
    return seen + ('mend what does not fit' if misfits else 'all fits')


def _number(count: int, what: str) -> str:
    return f'{count or "no"} {what}{"s" * (count != 1)}'


def _row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    *texts, result = row
    columns = [
        [f'{line:<{width}}' for line in _wrap(text, width) or ['']]
        for text, width in zip(texts, widths, strict=True)
    ]
    height = max(len(column) for column in columns)
    blanks = [' ' * width for width in widths]
    lines = [
        '  '.join(c[i] if i < len(c) else b for c, b in zip(columns, blanks, strict=True))
        for i in range(height)
    ]
    return [f'{lines[0]}  {result}', *(line.rstrip() for line in lines[1:])]


def _wrap(text: str, width: int, indent: str = '') -> list[str]:
    """Lines in which no name is broken, so that names can be searched for and copied."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
