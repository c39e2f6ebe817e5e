"""From a checkpoint folder to its family; the only place that knows them all."""

from __future__ import annotations

from pathlib import Path

import torch

from oxygen_ros.checkpoint.info import Layout, Survey
from oxygen_ros.models.pi05_recipe import PI05
from oxygen_ros.models.recipe import Family, Footprint, Progress, Recipe
from oxygen_ros.types import OxygenError, PolicyInfo

_recipes: dict[str, Recipe] = {}


def register(family: str, recipe: Recipe) -> None:
    """Make a family known; surveys of its recipe must name it. Raises OxygenError on a second."""
    if family in _recipes:
        raise OxygenError(f'family {family!r} is registered already: give yours another name')
    _recipes[family] = recipe


def supported() -> str:
    """What is known, for a message."""
    return '; '.join(recipe.formats for recipe in _recipes.values())


def survey(path: str | Path, robot_tag: str = '') -> Survey:
    """Read what can be read of a checkpoint without its weights. Raises OxygenError.

    robot_tag: which robot's statistics, where a checkpoint has those of several. The family is
    recognised by what the folder holds, never by its name.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise OxygenError(f'{folder}: is not a folder; give the folder of a checkpoint')
    for recipe in _recipes.values():
        if recipe.claims(folder):
            return recipe.survey(folder, robot_tag)
    raise OxygenError(f'{folder}: is no checkpoint of a known family; supported: {supported()}')


def load(
    found: Survey, device: torch.device, dtype: torch.dtype, progress: Progress = None
) -> Family:
    """Read a checkpoint's weights straight to the device. Raises OxygenError.

    progress is called with the fraction that is read.
    """
    found.check()
    assert found.layout is not None, 'a survey without a problem has a layout'
    return recipe_of(found.layout).load(found, device, dtype, progress)


def footprint(layout: Layout, rows: int, value_bytes: int) -> Footprint:
    """Sizes of a checkpoint's model with so many KV rows; value_bytes of one number."""
    return recipe_of(layout).footprint(layout, rows, value_bytes)


def recipe_of(layout: Layout) -> Recipe:
    """The recipe of a surveyed checkpoint."""
    return _recipes[layout.family]


def describe(layout: Layout) -> PolicyInfo:
    """What a checkpoint expects and gives, without its weights."""
    return PolicyInfo(
        family=layout.family,
        cameras=layout.cameras,
        state_dim=layout.state_dim,
        action_dim=layout.action_dim,
        horizon=layout.horizon,
        max_prefix_tokens=layout.max_prefix_tokens,
    )


register('pi05', PI05)
