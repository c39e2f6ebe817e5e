"""Which language requests still wait for their last word, so that each gets one."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

from oxygen_ros.types import LanguageRequest, Reason, TokenDelta


class Answers:
    """Filled from any thread; a request is open from asked() or its first word to its last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, TokenDelta] = {}  # request id -> its newest word
        self._open: Counter[str] = Counter()  # several of one id: all but one are refused
        self._over = False

    def asked(self, request: LanguageRequest) -> None:
        """A request was handed in."""
        with self._lock:
            self._open[request.request_id] += 1
            self._last.setdefault(
                request.request_id, TokenDelta(request.request_id, request.task, -1, 0, 0, -1, '')
            )

    def said(self, delta: TokenDelta) -> bool:
        """Note a word; False if its request had its last one by end()."""
        name = delta.request_id
        with self._lock:
            if not delta.final:
                self._open[name] = max(self._open[name], 1)  # 0: a task asked by itself
                self._last[name] = delta
            else:
                self._open[name] -= 1
                if self._open[name] <= 0:
                    del self._open[name]
                    self._last.pop(name, None)
            return not self._over

    def end(self, reason: Reason, text: str) -> list[TokenDelta]:
        """The last words of all that are open; whatever comes later is none."""
        with self._lock:
            self._over = True
            last, self._last = self._last, {}
            self._open.clear()
        return [
            replace(
                delta,
                index=delta.index + (delta.token_id >= 0),
                token_id=-1,
                text=text,
                final=True,
                reason=reason,
            )
            for delta in last.values()
        ]
