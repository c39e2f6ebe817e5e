"""How old an input is and what is said of it. Times in ns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InputState:
    """How one input is doing. name: 'camera <slot>' or 'joint state'.

    count: messages with a stamp that was new. age_s: since the last of them arrived; stamp_age_s:
    since its stamp; None before the first. limit_s: the age at which it is stale.
    """

    name: str
    topic: str
    required: bool
    count: int
    age_s: float | None
    stamp_age_s: float | None
    limit_s: float


def since(time_ns: int | None, now_ns: int) -> float | None:
    """Seconds since a time, None before the first."""
    return None if time_ns is None else (now_ns - time_ns) / 1e9


def in_ns(milliseconds: float) -> int:
    """Nanoseconds."""
    return round(milliseconds * 1e6)


def is_fresh(arrival_ns: int, now_ns: int, limit_ns: int) -> bool:
    """Whether what arrived then is young enough."""
    # a negative age is a clock that jumped back: what came is from another time
    return 0 <= now_ns - arrival_ns <= limit_ns


def missing(name: str, what: str, arrival_ns: int | None, now_ns: int, limit_ns: int) -> list[str]:
    """A sentence when nothing came, or nothing for too long."""
    if arrival_ns is None:
        return [f'{name}: no {what} yet']
    if is_fresh(arrival_ns, now_ns, limit_ns):
        return []
    age_s = (now_ns - arrival_ns) / 1e9
    return [f'{name}: last {what} is {age_s:.2f} s old (limit {limit_ns / 1e9:g} s)']


def behind_text(name: str, age_ns: int, limit_ns: int) -> str:
    """A sentence on messages that are too old by their stamps when they arrive."""
    seconds = age_ns / 1e9
    age = f'{seconds / 86400:.0f} days' if seconds > 2 * 86400 else f'{seconds:.2f} s'
    hint = 'check that both use one clock'
    if seconds > 60:
        hint = 'set use_sim_time if a bag is played, and play it with --clock'
    return (
        f'{name}: what comes is {age} old by its stamp (limit {limit_ns / 1e9:g} s): no actions '
        f'come of it: {hint}'
    )
