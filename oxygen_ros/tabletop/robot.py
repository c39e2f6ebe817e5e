"""The simulated robot as a process: cameras, joints, instructions and questions on real topics.

    python -m oxygen_ros.tabletop.robot --episodes 20 --json FILE

The arm moves by the node's ~/action alone, in real time. Without --episodes it goes on until it
is stopped. What is true of each frame is compared with the words that come back.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.replay.files import check_writable
from oxygen_ros.ros import process, qos
from oxygen_ros.ros.contract import Contract, load_contract
from oxygen_ros.ros.conversions import stamp_ns, time_ns
from oxygen_ros.ros.messages import doubles, time_msg
from oxygen_ros.tabletop import ROBOT
from oxygen_ros.tabletop.episode import FRAME_TICKS
from oxygen_ros.tabletop.render import CAMERAS
from oxygen_ros.tabletop.scores import by_kind, percentiles, score, share
from oxygen_ros.tabletop.stage import ASKED, SETTLE_S, Stage
from oxygen_ros.tabletop.world import JOINTS, TICK_S
from oxygen_ros.types import OxygenError

NODE = 'oxygen'
SCORE = 'tabletop/score'
ASK_PERIOD_S = 0.15
POLL_S = 0.05
MOST_LATE_TICKS = 20  # the world stands still for what is beyond
SCORE_PERIOD_TICKS = 14


class Robot:
    """Topics around a stage; ticks come from one thread, actions and words from another."""

    def __init__(self, node: Node, stage: Stage, contract: Contract) -> None:
        self._node, self._stage = node, stage
        self._lock = threading.Lock()
        self._command: msg.ActionStep | None = None
        self._begun_ns = 0
        self._texts: dict[str, str] = {}
        self._asked = 0
        self.latency_ms: list[float] = []
        self.steps = 0
        self.failure = ''  # why the node cannot serve
        self.served_as: dict[str, Any] = {}  # mode and cameras, as the node says
        self._joint_names = list(contract.state.names)
        create = node.create_publisher
        self._cameras = [create(Image, camera.topic, 5) for camera in contract.cameras]
        self._joints = create(JointState, contract.state.topic, 5)
        self._instruction = create(String, contract.instruction.topic, qos.INSTRUCTION_LATCHED)
        self._requests = create(msg.LanguageRequest, f'{NODE}/language/request', qos.REQUEST)
        self._score = create(String, SCORE, qos.STATUS)
        listen = node.create_subscription
        listen(msg.ActionStep, f'{NODE}/action', self._on_action, qos.ACTION)
        listen(msg.ActionChunk, f'{NODE}/action_chunk', self._on_chunk, qos.CHUNK)
        listen(msg.EngineStatus, f'{NODE}/status', self._on_status, qos.STATUS)
        listen(String, f'{NODE}/contract', self._on_contract, qos.CONTRACT)
        for task in (*ASKED, 'refused'):
            listen(msg.LanguageToken, f'{NODE}/language/{task}', self._on_token, qos.TOKEN)
        self._announce()

    def served(self) -> bool:
        """Whether the node listens to every camera: it does only while it serves."""
        return all(camera.get_subscription_count() for camera in self._cameras)

    def tick(self, number: int) -> bool:
        """One tick of the world and of what is published; True when an episode is over."""
        with self._lock:
            command, frame = self._due_command()
            over = self._stage.tick(command, frame)
            if over:
                self._stage.begin()
                self._announce()
            self._publish(number)
        return over

    def ask(self) -> None:
        """The next question: the node's tasks in turn."""
        task = list(ASKED)[self._asked % len(ASKED)]
        with self._lock:
            request_id = f'{task}-{self._asked}'
            prompt = self._stage.ask(request_id, task)
            self._asked += 1
        self._requests.publish(
            msg.LanguageRequest(id=request_id, task=task, prompt=prompt, max_tokens=48)
        )

    def _due_command(self) -> tuple[np.ndarray | None, int | None]:
        """The newest step of a chunk that answers a frame of this episode."""
        step = self._command
        if step is None or not self._stage.settled:
            return None, None
        if time_ns(step.source_stamp) < self._begun_ns:
            return None, None
        return np.asarray(step.values, float), int(step.frame)

    def _announce(self) -> None:
        now_ns = self._node.get_clock().now().nanoseconds
        self._begun_ns = now_ns + round(SETTLE_S * 0.6e9)
        self._instruction.publish(String(data=self._stage.task.text))

    def _publish(self, number: int) -> None:
        stamp = self._node.get_clock().now().nanoseconds
        joints = JointState(name=self._joint_names)
        joints.header.stamp = time_msg(stamp)
        joints.position = doubles(self._stage.scenes.joints[0])
        self._joints.publish(joints)
        if number % FRAME_TICKS == 0:
            pictures = zip(self._cameras, self._stage.picture(stamp), strict=True)
            for camera, picture in reversed(list(pictures)):  # optional ones first: they count
                camera.publish(_image(picture, stamp))
        if number % SCORE_PERIOD_TICKS == 0:
            self._score.publish(String(data=json.dumps(self._stage.standing())))

    # On the executor's thread.

    def _on_action(self, step: msg.ActionStep) -> None:
        self._command = step
        self.steps += 1

    def _on_chunk(self, chunk: msg.ActionChunk) -> None:
        now_ns = self._node.get_clock().now().nanoseconds
        self.latency_ms.append((now_ns - stamp_ns(chunk.header)) / 1e6)

    def _on_status(self, status: msg.EngineStatus) -> None:
        self.failure = status.detail if status.state == 'failed' else ''

    def _on_contract(self, effective: String) -> None:
        told = json.loads(effective.data)
        self.served_as = {
            'mode': told['model']['effective']['mode'],
            'cameras': [camera['slot'] for camera in told['robot']['cameras']],
        }

    def _on_token(self, token: msg.LanguageToken) -> None:
        text = self._texts.pop(token.id, '') + token.text
        if not token.final:
            self._texts[token.id] = text
            return
        with self._lock:
            said = text if token.reason == 'stop' else f'({token.reason}) {text}'
            self._stage.hear(token.id, stamp_ns(token.header), said)


def _image(picture: np.ndarray, stamp: int) -> Image:
    height, width, _ = picture.shape
    image = Image(height=height, width=width, encoding='rgb8', step=3 * width)
    image.header.stamp = time_msg(stamp)
    image.data = array('B', picture.tobytes())
    return image


def play(robot: Robot, stop: threading.Event, episodes: int) -> float:
    """Tick in real time until so many episodes are over, 0 for ever; seconds it took."""
    begin_s = time.monotonic()
    next_s, ask_s = begin_s, begin_s + 1.0
    number = over = 0
    while not stop.is_set() and (not episodes or over < episodes):
        if stop.wait(max(next_s - time.monotonic(), 0.0)):
            break
        over += robot.tick(number)
        number += 1
        next_s = max(next_s + TICK_S, time.monotonic() - MOST_LATE_TICKS * TICK_S)
        if time.monotonic() >= ask_s:
            robot.ask()
            ask_s = time.monotonic() + ASK_PERIOD_S
    return time.monotonic() - begin_s


def summary(robot: Robot, stage: Stage, seconds: float) -> dict[str, Any]:
    """The score of a run through the node. mode, cameras: as the node itself says."""
    answered = stage.answered
    total = answered.right + answered.wrong
    scored = score(stage.runs)
    of_the_policy = ('language_while_moving', 'actions_sha256')
    return {
        **{key: value for key, value in scored.items() if not key.startswith(of_the_policy)},
        **robot.served_as,
        'seconds': round(seconds, 1),
        'action_stream_hz': round(robot.steps / seconds, 1),
        'camera_to_chunk_ms': percentiles(robot.latency_ms),
        'language': share(right for _, right in answered.by_kind),
        'language_best': round(answered.best / total, 4) if total else 0.0,
        'language_by_kind': by_kind(answered.by_kind),
        'language_skipped': answered.skipped,
        'mistakes': answered.mistakes[:50],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run until the episodes are over or a signal comes; returns the exit code."""
    parser = argparse.ArgumentParser(prog='oxygen_ros.tabletop.robot', description=__doc__)
    parser.add_argument('--episodes', type=int, default=0, help='0 for ever')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', type=Path, help='where the score goes at the end')
    parser.add_argument('--robot', default=ROBOT, help='contract: whose cameras are there')
    given = parser.parse_args(argv)
    try:
        contract = _own_contract(given.robot)
        if given.json:
            check_writable(given.json)
    except OxygenError as error:
        print(f'robot: {error}', file=sys.stderr)
        return 2
    return _run(given, contract)


def _own_contract(path: str) -> Contract:
    """A contract of this robot. Raises OxygenError for another's."""
    contract = load_contract(path)
    unknown = [slot for slot in contract.slots if slot not in CAMERAS]
    if unknown or contract.state.names != JOINTS:
        raise OxygenError(
            f'--robot {path} is of another robot: this one has the cameras {", ".join(CAMERAS)} '
            f'and the joints {", ".join(JOINTS)}'
        )
    return contract


def _run(given: argparse.Namespace, contract: Contract) -> int:
    stop = process.stop_on_signals()
    process.init_rclpy([])
    node = rclpy.create_node('robot')
    stage = Stage(given.seed, contract.slots)
    robot = Robot(node, stage, contract)
    spinner = process.Spinner(node, threading.Event())
    while not (robot.served() or stop.wait(POLL_S)):
        if given.episodes and robot.failure:  # without a number of them it may be set right yet
            print(f'robot: the node cannot serve: {robot.failure}', file=sys.stderr)
            spinner.close()
            node.destroy_node()
            rclpy.try_shutdown()
            return 1
    seconds = play(robot, stop, given.episodes)
    if given.json and stage.runs:
        given.json.write_text(json.dumps(summary(robot, stage, seconds)), encoding='utf-8')
    spinner.close()
    process.leave(node)


if __name__ == '__main__':
    sys.exit(main())
