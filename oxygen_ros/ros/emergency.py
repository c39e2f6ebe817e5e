"""The emergency stop: ~/stop, ~/emergency_stop and ~/resume, latched whatever else happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import rclpy
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.parameter import Parameter
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from oxygen_ros.ros import qos
from oxygen_ros.ros.publishers import Once


class Stoppable(Protocol):
    """What is stopped; both are called on the emergency stop's thread, or by attach()."""

    def stop(self, reason: str) -> None:
        """Nothing moves from now on."""

    def resume(self) -> None:
        """Motion may begin anew."""


class EmergencyStop:
    """Lives as long as the main node. reason: why it is stopped, or ''.

    node: one of its own, for an executor of its own, so that a stop waits for no picture and no
    transition of the main one. Its topic and services have the names they would have there.
    on_change() is called, on that executor's thread, when a stop begins or is lifted.
    """

    def __init__(self, main: Node, on_change: Callable[[], None]) -> None:
        self._main = main
        self._on_change = on_change
        # Held from a change of reason until what is attached does as it says.
        self._lock = threading.RLock()
        self._attached: Stoppable | None = None
        self._pressed = False  # what ~/emergency_stop said last
        self._once = Once()
        self.reason = ''
        self.node = rclpy.create_node(
            f'{main.get_name()}_emergency',
            namespace=main.get_namespace(),
            use_global_arguments=False,  # their remaps are in the names that main resolves
            enable_rosout=False,
            start_parameter_services=False,
            parameter_overrides=[Parameter('start_type_description_service', value=False)],
        )
        for service, callback in (('~/stop', self._on_stop), ('~/resume', self._on_resume)):
            self.node.create_service(Trigger, main.resolve_service_name(service), callback)
        # A stop must be heard from whatever publisher: none of these matches all without loss.
        for profile in qos.EMERGENCY:
            self.node.create_subscription(
                Bool,
                main.resolve_topic_name('~/emergency_stop'),
                self._on_topic,
                profile,
                event_callbacks=SubscriptionEventCallbacks(incompatible_qos=lambda _: None),
            )

    def attach(self, what: Stoppable | None) -> None:
        """Stop this from now on; at once, if a stop holds."""
        with self._lock:
            self._attached = what
            if what and self.reason:
                what.stop(self.reason)

    def _release(self) -> str:
        """Lift the stop; why that is refused, or ''."""
        with self._lock:
            if self._pressed:
                return 'the last ~/emergency_stop is true: publish false first'
            if self.reason:
                self.reason = ''
                if self._attached:
                    self._attached.resume()
                self._say('the stop is lifted')
        return ''

    def _stop(self, reason: str) -> None:
        with self._lock:
            was, self.reason = self.reason, self.reason or f'by {reason}, call ~/resume to go on'
            if self._attached:
                self._attached.stop(self.reason)
            if not was:
                self._say(f'stopped by {reason}: call ~/resume to go on')

    def _say(self, text: str) -> None:
        self._main.get_logger().warning(text)
        self._on_change()

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
        refused = self._release()
        response.success = not refused
        response.message = refused or ('actions go on' if was else 'was not stopped')
        return response
