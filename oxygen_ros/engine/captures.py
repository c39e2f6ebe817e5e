"""Functions of fixed shapes: on a GPU each is captured once as a CUDA graph and replayed after."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]
# (function, its inputs) -> what runs it again on these inputs, and the outputs that this fills
Recorder = Callable[[Function, Tensors], tuple[Callable[[], None], Tensors]]
_WARM_UPS = 2  # runs before a capture: libraries allocate and choose kernels in the first
_POISON = -1  # in integer outputs, which are never negative
_TOLERANCE = 5e-2  # of the largest value: a replay runs the function's own kernels


class Captures:
    """Captured functions by key; all graphs share one memory pool.

    On a CPU the same functions run on the same shapes and buffers, without a capture.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._captured: dict[Hashable, _Captured] = {}
        self._record = recorder(device)

    def __len__(self) -> int:
        """How many were captured."""
        return len(self._captured)

    def add(
        self,
        key: Hashable,
        function: Function,
        example: Tensors,
        other: Tensors,
        written: Tensors = (),
    ) -> None:
        """Capture function(*inputs) for inputs shaped like the example's.

        The capture is then tried on `other` inputs of that shape, and must do what the function
        does, to its outputs and to the tensors `written` by it. Raises RuntimeError.
        """
        made = _Captured(function, example, self._device, self._record)
        if self._record is not None:
            made.check(key, other, written)
        else:
            function(*made.inputs)  # what is compiled at its first use is compiled now
        self._captured[key] = made

    def run(self, key: Hashable, inputs: Tensors) -> Tensors:
        """Run one on new inputs, from any device; the result is overwritten by its next run."""
        return self._captured[key].run(inputs)


def recorder(device: torch.device) -> Recorder | None:
    """What captures on that device; None where functions just run."""
    return _CudaGraphs(device) if device.type == 'cuda' else None


class _CudaGraphs:
    """Records on one stream of the device: graphs that share memory must share the stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, function: Function, inputs: Tensors) -> tuple[Callable[[], None], Tensors]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        # Device and stream are restored from here: a capture that fails leaves its stream current.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                function(*inputs)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                outputs = function(*inputs)
        current.wait_stream(self._stream)
        return graph.replay, outputs


class _Captured:
    def __init__(
        self,
        function: Function,
        example: Tensors,
        device: torch.device,
        record: Recorder | None,
    ) -> None:
        self.inputs = tuple(tensor.to(device, copy=True) for tensor in example)
        self._function = function
        self._replay: Callable[[], None] | None = None
        self._outputs: Tensors = ()
        if record is not None:
            self._replay, self._outputs = record(function, self.inputs)

    def run(self, inputs: Tensors) -> Tensors:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        if self._replay is None:
            return self._function(*self.inputs)
        self._replay()
        return self._outputs

    def check(self, key: Hashable, inputs: Tensors, written: Tensors) -> None:
        """Raise RuntimeError if a replay does not give what the function gives.

        What it should fill is wiped before: an empty graph, and one that reads or writes
        elsewhere, would go on giving its first outputs for ever.
        """
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        for tensor in written:
            tensor.zero_()
        wanted = [tensor.clone() for tensor in (*self._function(*self.inputs), *written)]
        for tensor in written:
            tensor.zero_()
        for tensor in self._outputs:
            tensor.fill_(torch.nan if tensor.is_floating_point() else _POISON)
        found = (*self.run(inputs), *written)
        if not all(_agree(*pair) for pair in zip(found, wanted, strict=True)):
            raise RuntimeError(f'the capture of {key} does not repeat what it recorded')


def _agree(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Numbers up to rounding; of indices, of which two may be as good, that they were written."""
    if not wanted.is_floating_point():
        return bool((found != _POISON).all())
    nearly = _TOLERANCE * float(wanted.abs().max())
    return bool(((found - wanted).abs() <= nearly).all())
