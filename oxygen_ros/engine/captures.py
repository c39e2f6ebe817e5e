"""Functions of fixed shapes: on a GPU each is captured once as a CUDA graph and replayed after."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

Tensors = tuple[torch.Tensor, ...]
_WARM_UPS = 2  # runs before a capture: libraries allocate and choose kernels in the first


class Captures:
    """Captured functions by key; all graphs share one memory pool.

    On a CPU the same functions run on the same shapes and buffers, without a capture.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._captured: dict[Hashable, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == 'cuda' else None

    def __len__(self) -> int:
        """How many were captured."""
        return len(self._captured)

    def add(self, key: Hashable, function: Callable[..., Tensors], example: Tensors) -> None:
        """Capture function(*inputs) for inputs shaped like the example's."""
        self._captured[key] = _Captured(function, example, self._device, self._pool)

    def run(self, key: Hashable, inputs: Tensors) -> Tensors:
        """Run one on new inputs, from any device; the result is overwritten by its next run."""
        return self._captured[key].run(inputs)


class _Captured:
    def __init__(
        self,
        function: Callable[..., Tensors],
        example: Tensors,
        device: torch.device,
        pool: tuple[int, int] | None,
    ) -> None:
        self._inputs = tuple(tensor.to(device, copy=True) for tensor in example)
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: Tensors = ()
        if pool is not None:
            self._capture(device, pool)

    def _capture(self, device: torch.device, pool: tuple[int, int]) -> None:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._function(*self._inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._outputs = self._function(*self._inputs)

    def run(self, inputs: Tensors) -> Tensors:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        if self._graph is None:
            return self._function(*self._inputs)
        self._graph.replay()
        return self._outputs
