"""Publishers between configure and cleanup. Thread-safe: each publishes whole messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from rclpy.node import Node
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros import msg
from oxygen_ros.ros import qos
from oxygen_ros.ros.contract import Actions
from oxygen_ros.ros.diagnostics import Drops, Rates
from oxygen_ros.ros.messages import chunk_to_msg, step_to_msg, token_to_msg, trajectory_msg
from oxygen_ros.ros.motion.mover import DueStep
from oxygen_ros.types import ActionChunk, Reason, TokenDelta

MAX_REASON_CHARS = 300  # a refusal quotes what was asked


class Outputs:
    """Chunks, steps, words and the contract, on the topics of one configuration."""

    def __init__(
        self, node: Node, actions: Actions, tasks: Sequence[str], rates: Rates, drops: Drops
    ) -> None:
        self._node = node
        self._actions = actions
        self._rates = rates
        self._drops = drops
        self._contract = node.create_publisher(String, '~/contract', qos.CONTRACT)
        self._chunk = node.create_publisher(msg.ActionChunk, '~/action_chunk', qos.CHUNK)
        self._step = node.create_publisher(msg.ActionStep, '~/action', qos.ACTION)
        self._trajectory = (
            node.create_publisher(JointTrajectory, actions.trajectory_topic, qos.TRAJECTORY)
            if actions.trajectory_topic
            else None
        )
        self._refused = node.create_publisher(msg.LanguageToken, '~/language/refused', qos.TOKEN)
        self._tokens = {
            task: node.create_publisher(msg.LanguageToken, f'~/language/{task}', qos.TOKEN)
            for task in tasks
        }

    @property
    def tasks(self) -> tuple[str, ...]:
        """Language tasks that have a topic."""
        return tuple(self._tokens)

    @property
    def moving(self) -> list[str]:
        """Topics that move the robot, on which nobody else should publish."""
        return ['~/action', *filter(None, [self._actions.trajectory_topic])]

    def close(self) -> None:
        """Destroy every publisher."""
        for publisher in (
            self._contract,
            self._chunk,
            self._step,
            self._refused,
            *([self._trajectory] if self._trajectory else []),
            *self._tokens.values(),
        ):
            self._node.destroy_publisher(publisher)

    def contract(self, effective: Mapping[str, object]) -> None:
        """Latch the effective configuration as JSON."""
        self._contract.publish(String(data=json.dumps(effective, indent=1, default=str)))

    def chunk(self, chunk: ActionChunk) -> None:
        """Publish a chunk now and note how long it took from the camera."""
        actions = self._actions
        self._chunk.publish(
            chunk_to_msg(chunk, actions.names, actions.step_period_s, actions.valid_for_s)
        )
        now_ns = self._node.get_clock().now().nanoseconds
        self._rates.camera_to_chunk_ms = (now_ns - chunk.stamp_ns) / 1e6
        self._rates.frames.add()
        self._rates.actions.add(len(chunk.actions))

    def step(self, step: DueStep) -> None:
        """Publish the row that is due."""
        self._step.publish(step_to_msg(step, self._actions.names))
        self._rates.stream.add()

    def trajectory(self, start_ns: int, rows: np.ndarray, times_ns: Sequence[int]) -> None:
        """Publish rows [n, A] that are still to come, if the contract names a topic for them."""
        if self._trajectory is not None and len(rows):
            names = self._actions.names
            self._trajectory.publish(trajectory_msg(start_ns, names, rows, times_ns))

    def token(self, delta: TokenDelta) -> None:
        """Publish a word on its task's topic; a refusal also on ~/language/refused."""
        message = token_to_msg(delta)
        if delta.reason is Reason.REFUSED:
            self._refused.publish(message)
            self._drops.add(
                'request_refused',
                '~/language/request',
                f'{delta.request_id!r:.80} refused: {delta.text}',
            )
        if delta.task in self._tokens:
            self._tokens[delta.task].publish(message)
        self._rates.tokens.add(int(delta.token_id >= 0))

    def refuse(self, request_id: str, task: str, text: str) -> None:
        """Tell whoever asked why a request never reached the policy."""
        if len(text) > MAX_REASON_CHARS:
            text = text[:MAX_REASON_CHARS] + '…'
        delta = TokenDelta(request_id, task, -1, 0, 0, -1, text, True, Reason.REFUSED)
        now_ns = self._node.get_clock().now().nanoseconds
        self.token(replace(delta, began_ns=now_ns, ended_ns=now_ns))
