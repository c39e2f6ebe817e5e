"""The emergency stop: ~/stop, ~/emergency_stop and ~/resume, latched whatever else happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from oxygen_ros.ros import qos
from oxygen_ros.ros.publishers import Once


class EmergencyStop:
    """Lives as long as the node. reason: why it is stopped, or ''.

    on_change(reason) is called when a stop begins and, with '', when it is lifted.
    """

    def __init__(self, node: Node, on_change: Callable[[str], None]) -> None:
        self._node = node
        self._on_change = on_change
        self._pressed = False  # what ~/emergency_stop said last
        self._once = Once()
        self.reason = ''
        node.create_service(Trigger, '~/stop', self._on_stop)
        node.create_service(Trigger, '~/resume', self._on_resume)
        # A stop must be heard from whatever publisher: none of these matches all without loss.
        for profile in qos.EMERGENCY:
            node.create_subscription(
                Bool,
                '~/emergency_stop',
                self._on_topic,
                profile,
                event_callbacks=SubscriptionEventCallbacks(incompatible_qos=lambda _: None),
            )

    def release(self) -> str:
        """Lift the stop; why that is refused, or ''."""
        if self._pressed:
            return 'the last ~/emergency_stop is true: publish false first'
        if self.reason:
            self._node.get_logger().warning('the stop is lifted')
            self.reason = ''
            self._on_change('')
        return ''

    def _stop(self, reason: str) -> None:
        if not self.reason:
            self._node.get_logger().warning(f'stopped by {reason}: call ~/resume to go on')
        self.reason = self.reason or f'by {reason}, call ~/resume to go on'
        self._on_change(self.reason)

    def _on_topic(self, message: Bool, info: Mapping[str, Any]) -> None:
        if not self._once.is_news(info, message.data):
            return
        pressed, self._pressed = self._pressed, message.data
        if message.data and not pressed:
            self._stop('~/emergency_stop')

    def _on_stop(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._stop('~/stop')
        response.success, response.message = True, f'stopped {self.reason}'
        return response

    def _on_resume(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        was = self.reason
        refused = self.release()
        response.success = not refused
        response.message = refused or ('actions go on' if was else 'was not stopped')
        return response
