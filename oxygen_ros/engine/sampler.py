"""From logits to tokens: greedy, or temperature and top-p with a seed per request."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from oxygen_ros.types import LanguageRequest

Best = tuple[torch.Tensor, torch.Tensor]  # of each row: its largest logit, and the token's id


class Sampler:
    """Keeps a random generator per request, so that answers do not depend on neighbours."""

    def __init__(self) -> None:
        self._generators: dict[str, torch.Generator] = {}

    def sample(
        self,
        logits: torch.Tensor,
        best: Best,
        rows: Sequence[int],
        requests: Sequence[LanguageRequest],
    ) -> list[int | None]:
        """Logits [B, V], best: their maxima, rows: which of them -> next tokens of the requests.

        None where a row is not finite: a NaN anywhere in it is its maximum.
        """
        # In float64 both fit into one transfer; ids are exact. Logits stay where they are.
        largest, greedy = torch.stack([value.double() for value in best]).tolist()
        tokens: list[int | None] = []
        for row, request in zip(rows, requests, strict=True):
            if not math.isfinite(largest[row]):
                tokens.append(None)
            elif request.temperature > 0.0:
                tokens.append(self._draw(logits[row], request))
            else:
                tokens.append(int(greedy[row]))
        return tokens

    def forget(self, request_id: str) -> None:
        """Drop an ended request's generator."""
        self._generators.pop(request_id, None)

    def _draw(self, logits: torch.Tensor, request: LanguageRequest) -> int:
        """Inverse transform over the smallest set of tokens whose probability reaches top_p."""
        probabilities, order = torch.softmax(logits.float() / request.temperature, -1).sort(
            descending=True
        )
        reached = probabilities.cumsum(-1)
        kept = int((reached - probabilities < request.top_p).sum())
        point = torch.rand((), generator=self._generator(request)).item() * reached[kept - 1]
        return int(order[min(int(torch.searchsorted(reached, point)), kept - 1)])

    def _generator(self, request: LanguageRequest) -> torch.Generator:
        if request.request_id not in self._generators:
            seed = request.seed % 2**63
            self._generators[request.request_id] = torch.Generator().manual_seed(seed)
        return self._generators[request.request_id]
