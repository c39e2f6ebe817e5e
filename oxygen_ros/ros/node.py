"""The inference node: lifecycle, services, status, and a clean end.

Threads: the executor's (callbacks), the emergency stop's (its own), the worker's (the policy), a
second one of the worker where the model is not on a CPU (prepares the next frame during a step),
the action stream's, and the main one, which only waits for SIGINT or SIGTERM.
"""

from __future__ import annotations

import sys

if __name__ == '__main__':  # the imports below take seconds
    from oxygen_ros.ros import early

    early.exit_at_once_on_signals()

import queue
import traceback
from collections.abc import Callable, Mapping, Sequence

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from oxygen_ros import msg
from oxygen_ros.ros import early, parameters, process, qos
from oxygen_ros.ros.answering_node import AnsweringNode
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.ros.diagnostics import Rates, Report, status_msg
from oxygen_ros.ros.effective import EffectiveParameters
from oxygen_ros.ros.emergency import EmergencyStop
from oxygen_ros.ros.health import Health
from oxygen_ros.ros.parameters import Value, number
from oxygen_ros.ros.preflight import preflight
from oxygen_ros.ros.session import Session
from oxygen_ros.ros.word_waits import WordWaits
from oxygen_ros.types import EngineStats, OxygenError

STOP_TIMEOUT_S = 2.5  # a step that takes longer is left behind when the process ends
LEAVE_WAIT_S = 0.08  # services are answered within 0.1 s
LEAVING = 'the last step of the configuration before is still running, its memory is held'
SWITCH_INTERVAL_S = 0.0005
AT_REST_PERIOD_S = 0.05  # how often it is asked whether the stream of a broken engine has run out


class OxygenNode(AnsweringNode):
    """LifecycleNode 'oxygen'. Configure returns once the load has begun; see docs."""

    def __init__(self) -> None:
        super().__init__('oxygen', automatically_declare_parameters_from_overrides=True)
        self._session: Session | None = None
        self._leaving: Session | None = None  # closed, but still inside a step
        self._failure = ''
        self._said = ''
        self._values: Mapping[str, Value] = parameters.check_all({})
        self._activate_when_loaded = False
        self._events: queue.SimpleQueue[tuple[Session, str, str]] = queue.SimpleQueue()
        self._wake = self.create_guard_condition(self._on_events)
        self._effective = EffectiveParameters(self)
        for warning in parameters.declare(self):
            self.get_logger().warning(warning)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self.add_post_set_parameters_callback(self._after_set_parameters)
        self._health = Health(self.get_fully_qualified_name())
        self._status = self.create_publisher(msg.EngineStatus, '~/status', qos.STATUS)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        self.create_service(Trigger, '~/reset', self._on_reset)
        self._report_now = self.create_guard_condition(self._report)
        self.emergency = EmergencyStop(self, self._report_now.trigger)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        period_s = number(self._values, 'status_period_s')
        self._timer = self.create_timer(period_s, self._report, clock=steady)
        self._rest = self.create_timer(AT_REST_PERIOD_S, self._on_rest, clock=steady)
        self._rest.cancel()  # runs while a broken engine's stream runs out

    def start(self) -> None:
        """Configure now and activate when loaded, if autostart says so."""
        try:
            self._activate_when_loaded = bool(
                parameters.check('autostart', self.get_parameter('autostart').value)
            )
        except OxygenError as error:
            self.get_logger().error(str(error))
        if self._activate_when_loaded:
            self.trigger_configure()
        else:
            self.get_logger().info('unconfigured: call configure, or set autostart: true')

    def close(self) -> None:
        """Release everything before the process ends."""
        session = self._take_session()
        if session:
            session.close(STOP_TIMEOUT_S)

    def destroy_node(self) -> None:
        """With the emergency stop's."""
        self.emergency.node.destroy_node()
        super().destroy_node()

    # Lifecycle. rclpy swallows exceptions in these callbacks, hence _attempt.

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Check parameters, contract and checkpoint, then begin to load."""
        return self._attempt('configure', self._configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Serve, if the weights are loaded."""
        return self._attempt('activate', self._activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop to serve."""
        self._activate_when_loaded = False
        return self._attempt('deactivate', self._need_session().deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release weights and topics."""
        return self._attempt('cleanup', self._cleanup)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release weights and topics, for good."""
        return self._attempt('shutdown', self._cleanup)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Back to unconfigured with nothing left behind."""
        return self._attempt('clean up after an error', self._cleanup)

    def _attempt(self, what: str, action: Callable[[], None]) -> TransitionCallbackReturn:
        result = self._result_of(what, action)
        self._report()  # at once: whoever asked for the transition may read ~/status next
        return result

    def _result_of(self, what: str, action: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            action()
        except OxygenError as error:
            self.get_logger().error(f'cannot {what}: {error}')
            if what == 'configure' and not self._leaving:
                self._failure = str(error)
            return TransitionCallbackReturn.FAILURE
        except Exception:  # reported here because rclpy would swallow it
            self._failure = f'cannot {what}: {traceback.format_exc()}'
            self.get_logger().error(self._failure)
            return TransitionCallbackReturn.ERROR
        self.get_logger().info(f'{what}: done')
        return TransitionCallbackReturn.SUCCESS

    def _need_session(self) -> Session:
        assert self._session is not None, 'the lifecycle allows this only when configured'
        return self._session

    def _configure(self) -> None:
        if self._is_leaving(LEAVE_WAIT_S):
            raise OxygenError(f'{LEAVING}: try again when ~/status does not say so any more')
        self._values = parameters.check_all(parameters.given(self))
        self._set_status_period()
        self._session = Session(self, self._values, self._on_event)
        self.emergency.attach(self._session)
        self._failure = ''

    def _activate(self) -> None:
        self._need_session().activate()
        self._activate_when_loaded = False  # from here on it is others who decide that

    def _take_session(self) -> Session | None:
        """The session, which is no longer this node's."""
        self._rest.cancel()
        self.emergency.attach(None)
        session, self._session = self._session, None
        return session

    def _cleanup(self) -> None:
        if not self._failure:  # by someone else's wish
            self._activate_when_loaded = False
        session = self._take_session()
        self._effective.show({})
        if session and not session.close(LEAVE_WAIT_S):
            self._leaving = session
            self.get_logger().warning(f'{LEAVING} until it ends')

    def _is_leaving(self, wait_s: float = 0.0) -> bool:
        """Whether a step outlived its configuration, after waiting for its end."""
        if self._leaving and self._leaving.has_ended(wait_s):
            self._leaving = None
            self.get_logger().info('the last step has ended, its memory is free')
        return self._leaving is not None

    # What a session tells, passed from its worker's thread to the executor's.

    def _on_event(self, session: Session, kind: str, text: str) -> None:
        self._events.put((session, kind, text))
        self._wake.trigger()

    def _on_events(self) -> None:
        while not self._events.empty():
            session, kind, text = self._events.get()
            if session is not self._session:
                continue
            if kind == 'failed':
                self._on_failure(session, text)
                continue
            self._effective.show(session.effective)
            if kind == 'loaded':
                self.get_logger().info(f'loaded: {text}')
                if self._activate_when_loaded:
                    self.trigger_activate()

    def _on_failure(self, session: Session, text: str) -> None:
        """Go back to unconfigured, once the action stream has run out by contract."""
        self.get_logger().error(f'failed: {text}')
        self._failure = text
        session.run_out()
        self._report()
        self._rest.reset()
        self._on_rest()

    def _on_rest(self) -> None:
        session = self._session
        if session and not session.at_rest:
            return
        self._rest.cancel()
        if session and session.active:
            self.trigger_deactivate()
        if session:
            self.trigger_cleanup()

    # Parameters, services, status.

    def _on_set_parameters(self, changed: Sequence[Parameter]) -> SetParametersResult:
        for parameter in changed:
            if refusal := self._effective.refusal(parameter.name):
                return SetParametersResult(successful=False, reason=refusal)
            row = parameters.row_of(parameter.name)
            if row is None:
                continue
            if self._session is not None and not row.live:
                return SetParametersResult(
                    successful=False,
                    reason=(
                        f'{parameter.name} is read at configure: clean up first, then configure'
                    ),
                )
            try:
                parameters.check(parameter.name, parameter.value)
            except OxygenError as error:
                return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _after_set_parameters(self, changed: Sequence[Parameter]) -> None:
        """Take over what has been checked; while there is a session, that is what is live."""
        new = {
            parameter.name: parameters.check(parameter.name, parameter.value)
            for parameter in changed
            if parameters.row_of(parameter.name)
        }
        if not new:
            return
        self._values = {**self._values, **new}
        self._set_status_period()
        if self._session:
            self._session.change(self._values)

    def _set_status_period(self) -> None:
        self._timer.timer_period_ns = round(number(self._values, 'status_period_s') * 1e9)

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = self._session is not None
        if self._session:
            self._session.reset()
        response.message = (
            'new episode' if response.success else 'not configured: nothing to reset'
        )
        if stopped := self.emergency.reason:
            response.message += f', still stopped {stopped}'
        return response

    def _report(self) -> None:
        session = self._session
        if session:
            state, detail = session.state()
        else:
            state, detail = (
                ('failed', self._failure) if self._failure else ('inactive', 'not configured')
            )
            if self._is_leaving():
                detail = f'{detail}; {LEAVING}'
        if state in ('loading', 'warming_up') and detail != self._said:
            self.get_logger().info(f'{state}: {detail}')
            self._said = detail
        report = Report(
            self.get_clock().now().nanoseconds,
            state,
            detail,
            self._values,
            session.snapshot.stats if session else EngineStats(),
            session.effective if session else {},
            session.dropped() if session else {},
            session.missed_ticks if session else 0,
            session.contract.robot if session else '',
            session.inputs() if session else (),
            session.stream_state if session else '',
            session.overhead_ms if session else {},
            session.images() if session else {},
            session.motion if session else {},
            session.words if session else WordWaits(),
            session.problems if session else {},
        )
        status = status_msg(report, session.rates if session else Rates())
        self._status.publish(status)
        self._diagnostics.publish(self._health.message(report, status))


def _read_ahead() -> None:
    """Read what holds up every thread while it is read, before anyone can call a service.

    With a real vocabulary that is a second; what was read is kept, see processing.tokenizer.
    """
    node = rclpy.create_node(
        'oxygen',
        start_parameter_services=False,
        automatically_declare_parameters_from_overrides=True,
    )
    try:
        parameters.declare(node)
        values = parameters.check_all(parameters.given(node))
        preflight(values, load_contract(str(values['robot'])))
    except Exception as error:  # configure meets it again, and says so where it can be seen
        node.get_logger().debug(f'not read ahead: {error}')
    node.destroy_node()


def main(args: list[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; exit status 0 then, 1 if it could not start."""
    early.exit_at_once_on_signals()
    early.settle_libraries()
    # Imported before anyone can call a service: it holds the interpreter lock for seconds.
    import oxygen_ros.policy  # noqa: F401

    stop = process.stop_on_signals()
    # The default slice of 5 ms lets a busy worker delay a 70 Hz tick by several ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        process.init_rclpy(args)
    except (rclpy_implementation.RCLError, rclpy_implementation.UnknownROSArgsError) as error:
        print(f'oxygen_node: arguments cannot be used: {error}', file=sys.stderr)
        return 1
    _read_ahead()
    node = OxygenNode()
    arguments = sys.argv if args is None else args
    for warning in parameters.missed_files(arguments, node.get_fully_qualified_name()):
        node.get_logger().warning(warning)
    node.start()
    spinners = [process.Spinner(node, stop), process.Spinner(node.emergency.node, stop)]
    stop.wait()
    for spinner in spinners:
        spinner.close()
    node.close()
    process.leave(node)


if __name__ == '__main__':
    sys.exit(main())
