"""What sharing and batching give: modes on the same kernels, in turn, in one run.

    python -m oxygen_ros.bench --preset paper --size small --json result.json

Every number stands beside its setting, and beside what the chip could do where that is known.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from oxygen_ros.bench.bars import bars
from oxygen_ros.bench.families import build_model
from oxygen_ros.bench.plan import Plan, read_plan
from oxygen_ros.bench.report import print_growth, print_result, speed_ups
from oxygen_ros.bench.run import describe, record, run_arrivals, run_growth, run_modes
from oxygen_ros.bench.sweep import run_sweep
from oxygen_ros.checkpoint.library import check_transformers
from oxygen_ros.types import OxygenError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a preset; exit code 2 with one line when something given cannot be used."""
    try:
        check_transformers()
        plan = read_plan(argv)
        _run(plan, build_model(plan.room, plan.pools))
    except OxygenError as error:
        print(f'bench: {error}', file=sys.stderr)
        return 2
    return 0


def _run(plan: Plan, model: Any) -> None:
    result: dict[str, Any] = {'setting': describe(plan.closed)}
    try:
        plan = _measure(result, model, plan)
    except BaseException as error:
        result['stopped'] = f'{type(error).__name__}: {error}'
        print('bench: stopped; what was measured until then is kept', file=sys.stderr)
        raise
    finally:
        if 'modes' in result:
            result |= speed_ups(result, plan.closed)
        result['bars'] = [bar.report() for bar in bars(result)]
        plan.outputs.write(result)
    _print(result, plan)
    _draw(result, model, plan)


def _measure(result: dict[str, Any], model: Any, plan: Plan) -> Plan:
    """Fill in the result -> the plan in the execution that ran, if another was asked for."""
    if plan.preset == 'growth':
        run_growth(result, model, plan.setting, plan.rounds)
        return plan
    run_modes(result, model, plan.closed, plan.modes, plan.rounds, plan.frames)
    used = result['setting']['execution_used']
    plan = replace(plan, setting=replace(plan.setting, execution=used))
    if plan.preset == 'sweep':
        run_sweep(result, model, plan.setting, plan.grid, plan.modes, plan.frames)
    if plan.preset == 'arrivals':
        run_arrivals(result, model, plan.setting, plan.frame_hz, plan.request_hz, plan.seconds)
    return plan


def _print(result: dict[str, Any], plan: Plan) -> None:
    if plan.closed != plan.setting:
        print(
            f"budget 'auto' needs a camera that says when a frame is due: modes in turn run with "
            f'{plan.closed.budget}'
        )
    (print_growth if plan.preset == 'growth' else print_result)(result)
    for bar in bars(result):
        print(bar.line())


def _draw(result: dict[str, Any], model: Any, plan: Plan) -> None:
    """The trace first: it needs no matplotlib."""
    outputs, timeline = plan.outputs, None
    if outputs.trace or outputs.pictures:
        timeline = record(model, plan.closed, 1.0)
    if timeline is not None and outputs.trace is not None:
        timeline.write_trace(outputs.trace)
        print(f'wrote {outputs.trace}')
    if outputs.pictures is not None:
        from oxygen_ros.bench.plots import draw

        for path in draw(result, timeline, outputs.pictures):
            print(f'wrote {path}')


if __name__ == '__main__':
    sys.exit(main())
