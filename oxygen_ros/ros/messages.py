"""Messages made from what the policy gives.

Numbers go into messages as array('d') from raw bytes: an element-wise copy costs a hundred
times more.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import KeyValue
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from oxygen_ros import msg
from oxygen_ros.ros.motion.mover import DueStep
from oxygen_ros.types import ActionChunk, TokenDelta

BASE_FRAME = 'base_link'


def time_msg(ns: int) -> Time:
    """A stamp from nanoseconds; below 0 is 0."""
    sec, nanosec = divmod(max(ns, 0), 1_000_000_000)
    return Time(sec=sec, nanosec=nanosec)


def doubles(values: np.ndarray) -> array:
    """float32 of any shape -> array('d'), row-major."""
    out = array('d')
    out.frombytes(np.ascontiguousarray(values, np.float64).tobytes())
    return out


def chunk_to_msg(
    chunk: ActionChunk, joint_names: Sequence[str], step_s: float, valid_s: float
) -> msg.ActionChunk:
    """A chunk with everything a consumer needs to use its rows in time."""
    message = msg.ActionChunk(
        frame=chunk.frame,
        joint_names=list(joint_names),
        step_period=step_s,
        horizon=len(chunk.actions),
    )
    message.header.stamp = time_msg(chunk.stamp_ns)
    message.header.frame_id = BASE_FRAME
    message.valid_until = time_msg(chunk.stamp_ns + round(valid_s * 1e9))
    message.actions = doubles(chunk.actions)
    message.inference_begin = time_msg(chunk.began_ns)
    message.inference_end = time_msg(chunk.ended_ns)
    return message


def step_to_msg(step: DueStep, joint_names: Sequence[str]) -> msg.ActionStep:
    """One row, stamped with the moment it is due."""
    chunk = step.chunk
    message = msg.ActionStep(
        frame=chunk.frame, index=step.index, hold=step.hold, joint_names=list(joint_names)
    )
    message.header.stamp = time_msg(step.due_ns)
    message.header.frame_id = BASE_FRAME
    message.source_stamp = time_msg(chunk.stamp_ns)
    message.values = doubles(step.values)
    message.inference_begin = time_msg(chunk.began_ns)
    message.inference_end = time_msg(chunk.ended_ns)
    return message


def trajectory_msg(
    start_ns: int, joint_names: Sequence[str], rows: np.ndarray, times_ns: Sequence[int]
) -> JointTrajectory:
    """Positions [n, A] and when each is due, for a joint_trajectory_controller.

    header.stamp is start_ns, when row 0 of the chunk is due; points count from there.
    """
    message = JointTrajectory(joint_names=list(joint_names))
    message.header.stamp = time_msg(start_ns)
    message.header.frame_id = BASE_FRAME
    for row, time_ns in zip(rows, times_ns, strict=True):
        sec, nanosec = divmod(int(time_ns) - start_ns, 1_000_000_000)
        message.points.append(
            JointTrajectoryPoint(
                positions=doubles(row), time_from_start=Duration(sec=sec, nanosec=nanosec)
            )
        )
    return message


def token_to_msg(delta: TokenDelta) -> msg.LanguageToken:
    """One token or the end of an answer."""
    message = msg.LanguageToken(
        id=delta.request_id,
        task=delta.task,
        frame=delta.frame,
        index=max(delta.index, 0),
        token=delta.token_id,
        text=delta.text,
        final=delta.final,
        reason=delta.reason.value if delta.reason else '',
    )
    message.header.stamp = time_msg(delta.stamp_ns)
    message.inference_begin = time_msg(delta.began_ns)
    message.inference_end = time_msg(delta.ended_ns)
    return message


def key_values(values: Mapping[str, object]) -> list[KeyValue]:
    """Sorted pairs, as text."""
    return [KeyValue(key=str(key), value=str(values[key])) for key in sorted(values)]
