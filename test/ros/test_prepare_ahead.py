"""The next frame is prepared while the engine works, with the real policy and real threads."""

import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from ros_harness import poll
from test_worker import Told, make_worker, observation

from oxygen_ros.policy import Policy
from oxygen_ros.ros import worker as worker_module
from oxygen_ros.types import LanguageRequest

BROKEN = 99  # stamp of a frame that cannot even be refused


class Watched(Policy):
    """The policy; says which thread prepared which frame, and can be held while it does."""

    def watch(self):
        self.start_over()
        self.by, self.go, self.held = {}, threading.Event(), None
        return self

    def prepare(self, frame):
        if hasattr(self, 'by'):
            self.by[frame.stamp_ns] = threading.current_thread().name
            if frame.stamp_ns == self.held:
                self.go.wait(30)
            if frame.stamp_ns == BROKEN:
                raise ZeroDivisionError('deep inside')
        return super().prepare(frame)


class Rig:
    """A worker, its policy, and who is told."""

    def __init__(self, policy, **options):
        self.policy, self.told, self.drops = policy.watch(), Told(), []
        self.told.on_dropped = lambda reason, text: self.drops.append((reason, text))
        self.worker = make_worker(lambda progress: policy, self.told, **options)
        self.worker.start()
        poll(lambda: self.told.infos, 60, lambda: 'the load')

    def observe(self, *stamps, state_dim=7):
        for stamp_ns in stamps:
            self.worker.observe(observation(stamp_ns, state_dim))

    def hold_a_step(self):
        """Frame 1 is answered, and the step that did so does not end until told.go."""
        self.told.go.clear()
        self.observe(1)
        self.wait_until_answered(1)

    def hold_a_preparation(self):
        """Within a step that is held, frame 2 is being prepared until policy.go."""
        self.hold_a_step()
        self.policy.held = 2
        self.observe(2)
        self.wait_until_prepared_by('oxygen_prepare', 2)

    def wait_until_prepared_by(self, thread, stamp_ns):
        by = self.policy.by
        poll(lambda: by.get(stamp_ns) == thread, 30, lambda: f'{stamp_ns} by {thread}: {by}')

    def wait_until_answered(self, *stamps):
        poll(lambda: self.answered() == [*stamps], 30, lambda: f'{stamps}: {self.answered()}')

    def answered(self):
        return [chunk.stamp_ns for chunk in self.told.chunks()]

    def dropped(self):
        return Counter(reason for reason, _ in self.drops)

    def release(self):
        self.policy.go.set()
        self.told.go.set()


@pytest.fixture(scope='module')
def policy(tiny_checkpoint):
    return Watched.from_checkpoint(tiny_checkpoint, cpu_threads=1)


@pytest.fixture
def rig(policy):
    rig = Rig(policy, prepare_ahead=lambda info: True)
    yield rig
    rig.release()
    assert rig.worker.stop(30)
    assert not preparing_threads()


def preparing_threads():
    return [thread for thread in threading.enumerate() if thread.name == 'oxygen_prepare']


def test_a_frame_is_prepared_within_a_step_and_answered_as_without(rig, policy):
    rig.hold_a_step()
    rig.observe(2)
    rig.wait_until_prepared_by('oxygen_prepare', 2)  # while the listener holds the step
    rig.release()
    rig.wait_until_answered(1, 2)
    assert policy.by[1] == 'oxygen_worker'  # which had nothing else to do
    assert rig.worker.stop(30) and not rig.drops
    alone = policy.act(observation(2)).actions
    np.testing.assert_array_equal(rig.told.chunks()[1].actions, alone)


def test_the_newest_wins_over_a_prepared_frame_and_over_one_in_preparation(rig, policy):
    rig.hold_a_preparation()
    rig.observe(3, 4)
    policy.go.set()
    rig.wait_until_prepared_by('oxygen_prepare', 4)
    poll(lambda: rig.dropped() == {'frame_replaced': 2}, 30, lambda: rig.drops)
    rig.observe(5)
    rig.wait_until_prepared_by('oxygen_prepare', 5)
    rig.release()
    rig.wait_until_answered(1, 5)
    assert rig.dropped() == {'frame_replaced': 3} and 3 not in policy.by


def test_a_free_worker_waits_for_the_frame_in_preparation_and_does_no_words(rig, policy):
    rig.worker.submit(LanguageRequest('a', prompt='Tell a story.', max_tokens=20))
    rig.hold_a_preparation()
    rig.observe(3)
    rig.told.go.set()
    poll(lambda: not rig.worker._inbox._preparing, 30, lambda: 'the worker to take frame 2')
    policy.go.set()
    rig.wait_until_answered(1, 2, 3)
    assert [type(output).__name__ for output in rig.told.outputs[:2]] == ['ActionChunk'] * 2
    assert not rig.drops


def test_a_frame_that_cannot_be_prepared_is_refused_whatever_comes_after_it(rig):
    rig.hold_a_step()
    rig.observe(2, state_dim=3)
    rig.wait_until_prepared_by('oxygen_prepare', 2)
    rig.observe(3)
    rig.release()
    rig.wait_until_answered(1, 3)
    ((reason, text),) = rig.drops
    assert reason == 'frame_refused' and 'state has shape [3]' in text


def test_what_nobody_expects_ends_the_worker_with_its_traceback(rig):
    rig.hold_a_step()
    rig.observe(BROKEN)
    rig.wait_until_prepared_by('oxygen_prepare', BROKEN)
    rig.observe(3)
    rig.release()
    poll(lambda: rig.told.failures, 30, lambda: 'the failure')
    assert 'ZeroDivisionError: deep inside\nTraceback' in rig.told.failures[0]
    assert rig.worker.snapshot.state == 'failed' and rig.answered() == [1]


def test_reset_forgets_the_frame_in_preparation_and_the_one_that_waits(rig, policy):
    rig.hold_a_preparation()
    rig.observe(3)
    rig.worker.reset()
    rig.release()
    rig.observe(4)
    rig.wait_until_answered(1, 4)
    assert 3 not in policy.by and not rig.drops


def test_reset_forgets_a_prepared_frame(rig):
    rig.hold_a_step()
    rig.observe(2)
    poll(lambda: getattr(rig.worker._inbox._waiting, 'ready', None), 30, lambda: 'frame 2')
    rig.worker.reset()
    rig.release()
    rig.observe(4)
    rig.wait_until_answered(1, 4)
    assert not rig.drops


def test_stop_while_a_frame_is_in_preparation(rig):
    rig.hold_a_preparation()
    assert not rig.worker.stop(0.0)  # both are held
    rig.release()
    assert rig.worker.stop(30) and not preparing_threads()
    assert rig.worker.snapshot.state == 'stopped' and rig.answered() == [1]


def test_every_frame_is_answered_replaced_or_refused_once(rig, policy):
    number = 400
    random = np.random.default_rng(0)
    for stamp_ns in range(100, 100 + number):
        rig.observe(stamp_ns, state_dim=3 if stamp_ns % 7 == 0 else 7)
        time.sleep(random.uniform(0, 0.003))
    poll(
        lambda: len(rig.answered()) + rig.dropped().total() == number,
        30,
        lambda: f'{len(rig.answered())} answered, {rig.dropped()}',
    )
    assert rig.answered() == sorted(set(rig.answered()))
    assert set(rig.dropped()) == {'frame_replaced', 'frame_refused'}
    assert 'oxygen_prepare' in policy.by.values()


def test_on_a_cpu_nothing_runs_beside_the_engine(policy):
    rig = Rig(policy)
    rig.hold_a_step()
    assert not preparing_threads()
    rig.release()
    assert rig.worker.stop(30)
    cuda = replace(policy.info, effective={**policy.info.effective, 'device': 'cuda:0'})
    assert worker_module.engine_leaves_the_cpu(cuda)
    assert not worker_module.engine_leaves_the_cpu(policy.info)
