"""Devices: whether one is there, and how much memory it still has to give."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from oxygen_ros.types import OxygenError

# Names of a control group's limit, use and reclaimable file cache, in versions 2 and 1.
_FILES = {
    '': ('memory.max', 'memory.current', 'inactive_file'),
    'memory': ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file'),
}


def find_device(name: str) -> torch.device:
    """The device 'cpu', 'cuda' or 'cuda:N'. Raises OxygenError if it is not there."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise OxygenError(f'device {name!r} is not there: {error}; use cpu or cuda') from error
    if device.type not in ('cpu', 'cuda'):
        raise OxygenError(f'device {name!r} cannot run a model here: use cpu or cuda')
    return device


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on a device now without pushing anything out."""
    if device.type == 'cuda' and not torch.cuda.get_device_properties(device).is_integrated:
        return int(torch.cuda.mem_get_info(device)[0])
    return host_bytes()


def host_bytes(root: Path = Path('/')) -> int:
    """Of main memory, the limits of this process's control groups considered.

    root: where proc and sys are found.
    """
    try:
        lines = (root / 'proc/meminfo').read_text().splitlines()
    except OSError:  # no Linux: the whole memory is the best guess
        return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    kilobytes = dict(line.split()[:2] for line in lines)
    return min([int(kilobytes['MemAvailable:']) * 1024, *_group_bytes(root)])


def _group_bytes(root: Path) -> Iterator[int]:
    """What is left in each control group that this process is in and that has a limit."""
    try:
        lines = (root / 'proc/self/cgroup').read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controller, path = line.split(':', 2)
        if controller not in _FILES:
            continue
        top = root / 'sys/fs/cgroup' / controller
        group = top / path.lstrip('/')
        # A container may see its own group as the top, under another path than the one it is told.
        for folder in {top, *(f for f in (group, *group.parents) if f.is_relative_to(top))}:
            yield from _left(folder, *_FILES[controller])


def _left(folder: Path, limit: str, used: str, reclaimable: str) -> Iterator[int]:
    try:
        limit_text = (folder / limit).read_text().strip()
        stat = dict(line.split() for line in (folder / 'memory.stat').read_text().splitlines())
        in_use = int((folder / used).read_text()) - int(stat.get(reclaimable, 0))
    except (OSError, ValueError):  # not a group with these files
        return
    if limit_text != 'max':
        yield int(limit_text) - in_use
