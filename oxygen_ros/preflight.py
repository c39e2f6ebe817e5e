"""What can be known of a checkpoint before its weights are read: what fits and what does not."""

from __future__ import annotations

from pathlib import Path

import torch

from oxygen_ros.checkpoint import Layout, Survey, check_tensors, survey_checkpoint
from oxygen_ros.checkpoint.inspection import supported
from oxygen_ros.devices import available_bytes, find_device
from oxygen_ros.engine.kv_size import KVSize, kv_size
from oxygen_ros.engine.request import Limits
from oxygen_ros.models.family import Footprint
from oxygen_ros.models.registry import check_tokenizer, describe, footprint
from oxygen_ros.types import Finding, OxygenError, PolicyInfo, Verdict


def check_checkpoint(
    path: str | Path,
    limits: Limits,
    device: str,
    dtype: torch.dtype,
    max_kv_bytes: int,
    robot_tag: str = '',
) -> tuple[PolicyInfo | None, list[Finding]]:
    """Look at every part of a checkpoint, and at the memory that it will take. Reads no weight.

    The description is None if it cannot be read whole.
    """
    try:
        survey = survey_checkpoint(path, robot_tag)
    except OxygenError as error:
        return None, [_misfit('checkpoint', 'not usable', supported(), str(error))]
    layout, sizes = survey.layout, None
    if layout is not None:
        try:
            sizes = footprint(layout, limits.max_rows, dtype.itemsize)
        except OxygenError as error:  # a network that cannot be
            found = f'{layout.format}, {layout.family}'
            return None, [_misfit('checkpoint', found, supported(), str(error))]
    findings = [_format(layout)]
    findings += [_weights(survey, sizes), _statistics(survey), _tokenizer(survey)]
    findings += [
        Finding(part, 'supposed', 'as in training', Verdict.NOTE, words)
        for part, words in survey.notes.items()
    ]
    if sizes is None:
        return None, findings
    size = kv_size(sizes.spec, limits, dtype.itemsize)
    findings += [_kv_pool(size, max_kv_bytes), _memory(sizes, size, device, dtype)]
    return describe(layout) if layout is not None else None, findings


def _format(layout: Layout | None) -> Finding:
    found = 'one of them' if layout is None else f'{layout.format}, {layout.family}'
    return Finding('checkpoint', found, supported())


def _weights(survey: Survey, sizes: Footprint | None) -> Finding:
    needed = 'every tensor of the network, no other'
    if 'weights' in survey.problems:
        return _misfit('weights', 'not usable', needed, survey.problems['weights'])
    if survey.layout is None or sizes is None:
        return _unknown('weights', needed, 'the statistics tell how wide the network is used')
    layout = survey.layout
    try:
        check_tensors(layout, sizes.tensors)
    except OxygenError as error:
        return _misfit('weights', 'other tensors', needed, str(error))
    files = f'{len(layout.weight_files)} file{"s" * (len(layout.weight_files) > 1)}'
    return Finding('weights', f'{len(sizes.tensors)} tensors, {layout.dtype}, in {files}', needed)


def _statistics(survey: Survey) -> Finding:
    needed = 'of state and actions, with a range'
    norm = survey.normalization
    if norm is None:
        return _misfit('statistics', 'not usable', needed, survey.problems['statistics'])
    found, still = norm.summary(), norm.never_moved()
    return Finding('statistics', found, needed, Verdict.NOTE if still else Verdict.OK, still)


def _tokenizer(survey: Survey) -> Finding:
    needed = 'local, <bos> and <eos> with an embedding'
    folder, layout = survey.tokenizer_dir, survey.layout
    if folder is None:
        return _misfit('tokenizer', 'none', needed, survey.problems['tokenizer'])
    if layout is None:
        return _unknown('tokenizer', needed, 'the number of embeddings is not known')
    inside = folder.is_relative_to(layout.path)
    found = str(folder.relative_to(layout.path)) if inside else str(folder)
    try:
        check_tokenizer(folder, layout)
    except OxygenError as error:
        return _misfit('tokenizer', found, needed, str(error))
    return Finding('tokenizer', f'in {found}', needed)


def _kv_pool(size: KVSize, limit: int) -> Finding:
    found = f'{size.rows} rows of {size.capacity} tokens, {_amount(size.bytes)}'
    needed = f'at most {_amount(limit)} (max_kv_mb)'
    try:
        size.check(limit)
    except OxygenError as error:
        return _misfit('KV pool', found, needed, str(error))
    return Finding('KV pool', found, needed)


def _memory(sizes: Footprint, size: KVSize, device: str, dtype: torch.dtype) -> Finding:
    parts = {'weights': sizes.weight_bytes, 'KV': size.bytes, 'work': sizes.work_bytes}
    total = sum(parts.values())
    found = f'about {_amount(total)} in {str(dtype).removeprefix("torch.")}: ' + ', '.join(
        f'{name} {_amount(amount)}' for name, amount in parts.items()
    )
    try:
        free = available_bytes(find_device(device))
    except OxygenError as error:
        return _misfit('memory', found, f'free on {device}', str(error))
    needed = f'at most {_amount(free)}, free on {device}'
    if total <= free:
        return Finding('memory', found, needed)
    detail = (
        f'{_amount(total)} are needed and {_amount(free)} are free on {device}: lower max_rows '
        f'(a row takes {_amount(size.row_bytes)}), max_prompt_tokens or max_new_tokens'
        f'{"" if dtype is torch.bfloat16 else ", set dtype to bfloat16"}, or free memory'
    )
    return _misfit('memory', found, needed, detail)


def _misfit(check: str, found: str, needed: str, detail: str) -> Finding:
    return Finding(check, found, needed, Verdict.MISFIT, detail)


def _unknown(check: str, needed: str, why: str) -> Finding:
    """Something that only a mended misfit elsewhere will let us see."""
    return Finding(check, 'not checked', needed, Verdict.NOTE, f'not checked: {why}')


def _amount(count: int) -> str:
    return f'{count / 2**30:.2f} GB' if count >= 2**30 else f'{count / 2**20:.1f} MB'
