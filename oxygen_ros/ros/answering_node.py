"""A lifecycle node that answers every request for a transition."""

from __future__ import annotations

from typing import Any

from lifecycle_msgs.srv import ChangeState
from rclpy.lifecycle import LifecycleNode


class AnsweringNode(LifecycleNode):
    """LifecycleNode whose change_state answers False to an id that is not possible now.

    rclpy raises there and sends nothing, so that a manager that sends ids waits for ever.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._change = self._service_change_state.callback
        self._service_change_state.callback = self._on_change_state

    def _on_change_state(
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        asked, state = request.transition, self._state_machine.current_state[1]
        possible = {number: name for number, name, *_ in self._state_machine.available_transitions}
        # As in rclpy, the label counts if there is one.
        if asked.label in possible.values() or (not asked.label and asked.id in possible):
            return self._change(request, response)
        allowed = ', '.join(f'{name} ({number})' for number, name in possible.items())
        self.get_logger().warning(
            f'transition {asked.label or asked.id} is refused: in state {state} possible are '
            f'{allowed or "none"}'
        )
        response.success = False
        return response
