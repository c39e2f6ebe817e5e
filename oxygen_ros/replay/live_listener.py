"""Hears everything the node answers while a bag is played to it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import numpy as np
from rclpy.node import Node
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.replay.live_player import PRIVATE, Player
from oxygen_ros.replay.measured import Measured, Work
from oxygen_ros.replay.outcome import OTHER_CLOCK_NS, Answer, Frame
from oxygen_ros.replay.recorded import RecordedMotion
from oxygen_ros.replay.stream import Stream, Streamed
from oxygen_ros.ros import qos
from oxygen_ros.ros.contract import Contract
from oxygen_ros.ros.conversions import stamp_ns, time_ns
from oxygen_ros.types import ActionChunk, Reason

ENGINE_COUNTERS = ('frames', 'rows_max', 'kv_bytes_copied_between_frames')


class Listener:
    """Callbacks run on the executor's thread; lock guards what they fill while they may run."""

    def __init__(
        self,
        node: Node,
        contract: Contract,
        player: Player,
        motion: RecordedMotion,
        tasks: list[str],
        rate_hz: float,
    ) -> None:
        self.lock = threading.Lock()
        self.status: Any = None
        self.contract: dict[str, Any] = {}
        self.frames: list[Frame] = []
        self.answers: dict[str, Answer] = {}
        self.streamed = Streamed()
        self.measured = Measured()
        self.chunks = Stream(contract, rate_hz)  # for the seams by joint, which no topic has
        self._slots = contract.slots
        self._player = player
        self._motion = motion
        self._tick_s = 1.0 / rate_hz
        self._words: Counter[tuple[int, int]] = Counter()  # tokens by begin and end
        heard = [
            ('status', msg.EngineStatus, qos.STATUS, self._on_status),
            ('contract', String, qos.CONTRACT, self._on_contract),
            ('action_chunk', msg.ActionChunk, qos.CHUNK, self._on_chunk),
            ('action', msg.ActionStep, qos.ACTION, self._on_step),
            *((f'language/{t}', msg.LanguageToken, qos.TOKEN, self._on_token) for t in tasks),
            ('language/refused', msg.LanguageToken, qos.TOKEN, self._on_token),
        ]
        for name, kind, profile, callback in heard:
            node.create_subscription(kind, PRIVATE + name, callback, profile)

    @property
    def state(self) -> str:
        """The node's state and detail, '' before it said anything."""
        return f'{self.status.state}: {self.status.detail}' if self.status else ''

    def open_answers(self) -> int:
        """Requests that have not ended."""
        with self.lock:
            return sum(answer.reason is None for answer in self.answers.values())

    def ask(self, request: Any) -> None:
        """A request was published."""
        with self.lock:
            self.answers.setdefault(
                request.id, Answer(request.id, request.task, request.prompt, self._player.now_ns)
            )

    def engine(self) -> dict[str, int]:
        """The counters of the last status."""
        return {name: int(getattr(self.status, name)) for name in ENGINE_COUNTERS}

    def dropped(self) -> Counter[str]:
        """Reason -> count of the last status."""
        return Counter({pair.key: int(pair.value) for pair in self.status.dropped})

    def words(self) -> list[Work]:
        """Decode steps, as far as the tokens tell them."""
        return [Work('decode', *span, rows) for span, rows in self._words.items()]

    def _on_status(self, message: Any) -> None:
        self.status = message

    def _on_contract(self, message: Any) -> None:
        self.contract = json.loads(message.data)

    def _on_chunk(self, message: Any) -> None:
        now_ns = self._player.now_ns
        stamp, joints = stamp_ns(message.header), len(message.joint_names)
        began_ns, ended_ns = time_ns(message.inference_begin), time_ns(message.inference_end)
        actions = np.array(message.actions, np.float32).reshape(message.horizon, joints)
        chunk = ActionChunk(actions, int(message.frame), stamp, began_ns, ended_ns)
        whole_ns = self._player.taken.get(stamp, now_ns)
        with self.lock:
            segment = self._motion.segment
            self.frames.append(Frame(chunk.frame, whole_ns, stamp, self._slots, segment, chunk))
            self.chunks.offer(chunk, segment, now_ns)
            self.measured.frame_ms.append((ended_ns - began_ns) / 1e6)
            if abs(now_ns - stamp) < OTHER_CLOCK_NS:
                self.measured.latency_ms.append((now_ns - stamp) / 1e6)

    def _on_step(self, message: Any) -> None:
        due_ns = stamp_ns(message.header)
        with self.lock:
            if message.hold:
                self.streamed.held_s += self._tick_s
                return
            self.streamed.times_ns.append(due_ns)
            self.streamed.values.append(np.array(message.values))
            self.streamed.ages_ns.append(due_ns - time_ns(message.source_stamp))
            self.streamed.segments.append(self._motion.segment)

    def _on_token(self, message: Any) -> None:
        now_ns = self._player.now_ns
        with self.lock:
            answer = self.answers.get(message.id)
            if answer is None:  # the node asked by itself, of a frame
                asked_ns = self._player.taken.get(stamp_ns(message.header), now_ns)
                answer = Answer(message.id, message.task, '', asked_ns)
                self.answers[message.id] = answer
            if answer.reason is None:
                self._take(answer, message, now_ns)

    def _take(self, answer: Answer, message: Any, now_ns: int) -> None:
        if message.frame >= 0:
            answer.frame, answer.stamp_ns = int(message.frame), stamp_ns(message.header)
        reason = Reason(message.reason) if message.final else None
        if reason in (Reason.FAILED, Reason.REFUSED):
            answer.detail = message.text
        else:
            answer.text += message.text
        answer.reason = reason
        if message.token < 0:
            return
        answer.tokens.append(int(message.token))
        self.measured.tokens += 1
        self._words[time_ns(message.inference_begin), time_ns(message.inference_end)] += 1
        if answer.first_ns is None:
            answer.first_ns = now_ns
            self.measured.first_token_ms.append((now_ns - answer.time_ns) / 1e6)
