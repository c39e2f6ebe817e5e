"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxygen_ros.replay import plots
from oxygen_ros.replay.page import render


def compare_page(
    found: Mapping[str, Any], first: Mapping[str, Any], second: Mapping[str, Any]
) -> str:
    """Tables of both reports, and the errors over the horizon in one plot per joint."""
    period_s = first['settings']['contract']['step_period_s']
    errors = [report['scores']['error'] for report in (first, second)]
    joints = [
        {
            'name': name,
            'horizon': plots.horizon(
                {label: error[name]['by_step'] for label, error in zip('AB', errors, strict=True)},
                period_s,
            ),
        }
        for name in first['settings']['contract']['action_joints']
        if name in errors[0] and name in errors[1]
    ]
    return render('compare.html', c=found, joints=joints, first=first, second=second)
