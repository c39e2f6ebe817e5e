"""The table of many bags as a Ray Data job: each worker loads the checkpoint once.

Bags, checkpoint and the folder of reports must have the same paths on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oxygen_ros.replay.evaluate import Evaluator
from oxygen_ros.replay.many import report_names, row_for
from oxygen_ros.types import OxygenError


def ray_rows(
    bags: Sequence[str], evaluator: Evaluator, with_measured: bool, out: str | None
) -> list[dict[str, Any]]:
    """The rows that many.local_rows gives, made on the Ray cluster that is there, or on a new one.

    Raises OxygenError where ray is not installed.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise OxygenError(
            f'--ray needs ray, which is not installed ({error}): '
            'pip install -r requirements/ray.txt'
        ) from error
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    paths = [str(Path(bag).expanduser().resolve()) for bag in bags]
    folder = None if out is None else str(Path(out).expanduser().resolve())
    gpus = 1 if str(evaluator.values['device']).startswith('cuda') else 0
    total = ray.cluster_resources().get('GPU' if gpus else 'CPU', 1)
    items = [
        {'number': number, 'bag': path, 'name': name}
        for number, (path, name) in enumerate(zip(paths, report_names(bags), strict=True))
    ]
    rows = (
        ray.data.from_items(items, override_num_blocks=len(items))
        .map_batches(
            _Worker,
            fn_constructor_args=(evaluator.setting(), with_measured, folder),
            batch_size=1,
            num_gpus=gpus,
            compute=ray.data.ActorPoolStrategy(size=max(1, min(len(items), int(total)))),
        )
        .take_all()
    )
    return [json.loads(row['row']) for row in sorted(rows, key=lambda row: row['number'])]


class _Worker:
    """One process of the job. Rows travel as JSON, because some of their values may be None."""

    def __init__(self, setting: Mapping[str, Any], with_measured: bool, out: str | None) -> None:
        self._evaluator = Evaluator(**setting, quiet=True)
        self._with_measured = with_measured
        self._out = out

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        rows = [
            json.dumps(
                row_for(str(bag), str(name), self._evaluator, self._with_measured, self._out)
            )
            for bag, name in zip(batch['bag'], batch['name'], strict=True)
        ]
        return {'number': [int(number) for number in batch['number']], 'row': rows}
