"""Copies of the golden checkpoints that a test may damage."""

import json
import shutil
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / 'golden'


@pytest.fixture
def copy_of(tmp_path):
    """Case name -> path of a private copy of its checkpoint."""

    def copy(case):
        return Path(shutil.copytree(GOLDEN / case / 'checkpoint', tmp_path / case))

    return copy


@pytest.fixture
def edit():
    """Change a JSON file in place: edit(path, key=value), or with a function of its contents."""

    def change(path, function=None, **values):
        contents = json.loads(path.read_text()) if path.exists() else {}
        if function is not None:
            function(contents)
        path.write_text(json.dumps({**contents, **values}))

    return change
