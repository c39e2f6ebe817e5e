"""Small files, safetensors and pickled tensors, with failures that name the file."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from oxygen_ros.types import OxygenError


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises OxygenError that names the file."""
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise OxygenError(f'{path}: cannot be read as JSON ({error})') from error
    if not isinstance(value, dict):
        raise OxygenError(f'{path}: holds a {type(value).__name__}, a JSON object is expected')
    return value


@contextmanager
def open_tensors(file: Path, framework: str) -> Iterator[Any]:
    """safe_open whose failures are OxygenErrors that name the file.

    A .pt file is opened alike: only tensors are taken from it, no code is run.
    """
    if not file.is_file():
        raise OxygenError(f'{file}: does not exist; copy the complete checkpoint')
    if file.suffix == '.pt':
        yield _Pickled(file)
        return
    try:
        handle = safe_open(file, framework=framework)
    except (SafetensorError, OSError) as error:
        raise OxygenError(
            f'{file}: truncated or not a safetensors file ({error}); copy it again'
        ) from error
    with handle:
        yield handle


@contextmanager
def json_kinds(folder: Path) -> Iterator[None]:
    """Turn what a value of the wrong kind in some JSON file raises into an OxygenError."""
    try:
        yield
    except OxygenError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise OxygenError(
            f'{folder}: a JSON file holds something of the wrong kind ({error}); compare '
            "config.json and the processor files with the maker's"
        ) from error


class _Pickled:
    """A state dict that torch.save wrote, mapped into memory, behind safe_open's interface."""

    _NAMES = {
        torch.float64: 'F64',
        torch.float32: 'F32',
        torch.float16: 'F16',
        torch.bfloat16: 'BF16',
    }

    def __init__(self, file: Path) -> None:
        try:
            state = torch.load(file, map_location='cpu', weights_only=True, mmap=True)
        except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise OxygenError(
                f'{file}: truncated, or holds more than tensors ({error}); copy it again, or '
                'store the state dict as safetensors'
            ) from error
        tensors = isinstance(state, Mapping) and all(
            isinstance(value, torch.Tensor) for value in state.values()
        )
        if not tensors:
            raise OxygenError(f'{file}: is no state dict, a mapping of names to tensors')
        self._state: Mapping[str, torch.Tensor] = state

    def offset_keys(self) -> list[str]:
        """Names, in the order in which they are stored."""
        return list(self._state)

    def get_slice(self, key: str) -> _Pickled._Header:
        """What a header says of one tensor."""
        return self._Header(self._state[key])

    def get_tensor(self, key: str) -> torch.Tensor:
        """One tensor, a view of the file."""
        return self._state[key]

    class _Header:
        def __init__(self, tensor: torch.Tensor) -> None:
            self._tensor = tensor

        def get_shape(self) -> list[int]:
            """Sizes."""
            return list(self._tensor.shape)

        def get_dtype(self) -> str:
            """As safetensors names it."""
            return _Pickled._NAMES.get(self._tensor.dtype, str(self._tensor.dtype))
