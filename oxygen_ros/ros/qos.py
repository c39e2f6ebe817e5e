"""Quality of service of every topic (REP-2003); docs/topics-and-parameters.md says why."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy


def _profile(depth: int, *, reliable: bool = True, latched: bool = False) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def reliable(profile: QoSProfile) -> QoSProfile:
    """The same, but what is lost on the way is sent again."""
    return _profile(profile.depth)


# Best effort matches every publisher; a reliable reader gets nothing from a best-effort camera.
CAMERA = _profile(2, reliable=False)
JOINT_STATES = _profile(5, reliable=False)

# A latched reader gets nothing from a volatile writer and a volatile one misses what was
# latched before it came, so the node reads instruction with both.
INSTRUCTION_LATCHED = _profile(1, latched=True)
INSTRUCTION_LIVE = _profile(1)

# Together they hear every publisher, without loss where it allows that, and what was latched.
EMERGENCY = (_profile(5), _profile(5, reliable=False), _profile(1, latched=True))

REQUEST = _profile(64)
CHUNK = _profile(5)
ACTION = _profile(10)
TRAJECTORY = _profile(1)
TOKEN = _profile(256)
STATUS = _profile(5)
DIAGNOSTICS = _profile(5)
CONTRACT = _profile(1, latched=True)
