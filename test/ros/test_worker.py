"""The worker with the real policy, and with one that breaks."""

import threading
import time

import numpy as np
import pytest
from ros_harness import poll

from oxygen_ros.policy import Policy
from oxygen_ros.ros.answers import Answers
from oxygen_ros.ros.worker import Worker
from oxygen_ros.types import (
    ActionChunk,
    EngineStats,
    LanguageRequest,
    Observation,
    Overlap,
    OxygenError,
    Reason,
    TokenDelta,
)


class Told:
    """A listener that keeps what it is told; the chunk callback can be held."""

    def __init__(self):
        self.infos, self.failures, self.outputs, self.drops = [], [], [], []
        self.go = threading.Event()
        self.go.set()

    on_loaded = property(lambda self: self.infos.append)
    on_failed = property(lambda self: self.failures.append)
    on_token = property(lambda self: self.outputs.append)

    def on_chunk(self, chunk):
        self.outputs.append(chunk)
        self.go.wait(30)

    def on_dropped(self, reason, text):
        self.drops.append(reason)

    def chunks(self):
        return [o for o in self.outputs if isinstance(o, ActionChunk)]


def observation(stamp_ns, state_dim=7):
    picture = np.full((48, 64, 3), 90, np.uint8)
    return Observation({'base_0_rgb': picture}, np.zeros(state_dim, np.float32), 'go on', stamp_ns)


def make_worker(make_policy, told, max_commands=8, **options):
    return Worker(make_policy, told, idle_period_s=0.02, max_commands=max_commands, **options)


@pytest.fixture
def told():
    return Told()


def test_a_worker_says_what_it_does_from_the_beginning(told):
    snapshot = make_worker(None, told).snapshot
    assert snapshot.state == 'loading' and snapshot.detail


@pytest.fixture
def worker(tiny_checkpoint, told):
    worker = make_worker(
        lambda progress: Policy.from_checkpoint(tiny_checkpoint, progress=progress, cpu_threads=1),
        told,
    )
    worker.start()
    poll(lambda: told.infos or told.failures, 60, lambda: 'the load')
    yield worker
    told.go.set()
    assert worker.stop(30)
    assert worker.snapshot.state == 'stopped' and not told.failures


def test_the_newest_frame_wins_and_the_replaced_are_counted(worker, told):
    told.go.clear()
    worker.observe(observation(1))
    poll(told.chunks, 30, lambda: 'the first chunk')
    for stamp_ns in (2, 3, 4):
        worker.observe(observation(stamp_ns))
    told.go.set()
    poll(lambda: len(told.chunks()) == 2, 30, lambda: 'the second chunk')
    assert [chunk.stamp_ns for chunk in told.chunks()] == [1, 4]
    assert told.drops == ['frame_replaced', 'frame_replaced']


def test_words_go_on_without_frames_and_chunks_come_before_words(worker, told):
    worker.submit(LanguageRequest('a', prompt='Tell a story.', max_tokens=20))
    worker.observe(observation(1))
    last = poll(
        lambda: told.outputs and getattr(told.outputs[-1], 'final', False) and told.outputs[-1],
        30,
        lambda: 'the end of the answer',
    )
    assert last.request_id == 'a' and last.stamp_ns == 1
    assert isinstance(told.outputs[0], ActionChunk)


def test_a_frame_the_policy_refuses_is_counted_and_the_next_is_answered(worker, told):
    worker.observe(observation(1, state_dim=3))
    poll(lambda: told.drops == ['frame_refused'], 30, lambda: 'the count')
    worker.observe(observation(2))
    poll(told.chunks, 30, lambda: 'a chunk')


def test_an_inbox_that_is_full_refuses_and_does_not_grow(worker, told):
    told.go.clear()
    worker.observe(observation(1))
    poll(told.chunks, 30, lambda: 'a chunk')
    taken = [worker.submit(LanguageRequest(f'r{i}')) for i in range(12)]
    assert taken == [True] * 8 + [False] * 4
    assert not worker.cancel('r1')
    worker.reset()


def test_a_frame_continues_the_overlap_that_is_asked_for_when_it_is_taken(tiny_checkpoint, told):
    running = Overlap(np.ones((6, 7), np.float32), 3)

    worker = make_worker(
        lambda progress: Policy.from_checkpoint(tiny_checkpoint, cpu_threads=1),
        told,
        overlap=lambda frame: running if frame.stamp_ns == 2 else None,
    )
    worker.start()
    poll(lambda: told.infos or told.failures, 60, lambda: 'the load')
    for stamp_ns in (1, 2):
        worker.observe(observation(stamp_ns))
        poll(lambda n=stamp_ns: len(told.chunks()) == n, 30, lambda: 'the chunk')
    assert worker.stop(30)
    policy = Policy.from_checkpoint(tiny_checkpoint, cpu_threads=1)
    policy.observe(observation(2), overlap=running)
    (continued,) = policy.step()
    np.testing.assert_array_equal(told.chunks()[1].actions, continued.actions)
    assert np.abs(continued.actions - policy.act(observation(2)).actions).max() > 0.01


def test_overload_sheds_words_first_but_for_one_step_now_and_then(worker, told):
    number = 60  # at least half a second, in which words get one step every 0.1 s

    def another_frame_waits(chunk):
        told.outputs.append(chunk)
        if len(told.chunks()) < number:
            worker.observe(observation(len(told.chunks()) + 1))

    told.on_chunk = another_frame_waits
    worker.submit(LanguageRequest('a', prompt='Tell a story.', max_tokens=60))
    worker.observe(observation(1))
    poll(lambda: len(told.chunks()) == number, 60, lambda: 'the chunks')
    kinds = [isinstance(output, ActionChunk) for output in list(told.outputs)]
    kinds = kinds[: len(kinds) - kinds[::-1].index(True)]
    words_between = [len(run) for run in ''.join('c' if k else 'w' for k in kinds).split('c')]
    assert max(words_between) == 1


def test_a_load_that_fails_is_told(told):
    def make(progress):
        raise OxygenError('checkpoint x: no such folder')

    worker = make_worker(make, told)
    worker.start()
    poll(lambda: told.failures, 30, lambda: 'the failure')
    assert told.failures == ['checkpoint x: no such folder']
    assert worker.snapshot.state == 'failed' and worker.stop(30)


def test_a_load_can_be_stopped_between_two_steps_of_its_progress(told):
    loading = threading.Event()

    def make(progress):
        loading.set()
        while True:
            progress(0.5)

    worker = make_worker(make, told)
    worker.start()
    assert loading.wait(30)
    assert worker.stop(30) and worker.snapshot.state == 'stopped'


class Broken:
    """A policy that raises what nobody expects."""

    info = stats = EngineStats()
    prepare = None
    idle = True

    def submit(self, request):
        raise ZeroDivisionError('deep inside')

    def grant(self):
        pass


@pytest.mark.parametrize('ahead', [False, True])
def test_a_policy_that_breaks_ends_the_worker_with_its_traceback(told, ahead):
    worker = make_worker(lambda progress: Broken(), told, prepare_ahead=lambda info: ahead)
    worker.start()
    for name in ('a', 'b'):
        worker.submit(LanguageRequest(name, task='memory'))
    poll(lambda: told.failures, 30, lambda: 'the failure')
    assert 'ZeroDivisionError: deep inside' in told.failures[0]
    assert 'Traceback' in told.failures[0]
    assert worker.snapshot.state == 'failed' and worker.stop(30)
    assert {(end.request_id, end.task, end.reason) for end in told.outputs} == {
        ('a', 'memory', Reason.FAILED),
        ('b', 'memory', Reason.FAILED),
    }
    assert all(end.final and 'deep inside' in end.text for end in told.outputs)
    assert not worker.submit(LanguageRequest('c'))


def test_what_is_handed_out_after_a_reset_is_outdated_until_the_next_step(worker, told):
    told.go.clear()
    worker.observe(observation(1))
    poll(told.chunks, 30, lambda: 'a chunk')
    assert not worker.outdated
    worker.reset()
    assert worker.outdated
    told.go.set()
    poll(lambda: not worker.outdated, 30, lambda: 'the next step')


def test_a_worker_that_ends_lets_no_request_wait_for_its_last_word(tiny_checkpoint, told):
    worker = make_worker(
        lambda progress: Policy.from_checkpoint(tiny_checkpoint, cpu_threads=1), told
    )
    worker.start()
    poll(lambda: told.infos or told.failures, 60, lambda: 'the load')
    told.go.clear()
    worker.observe(observation(1))
    poll(told.chunks, 30, lambda: 'a chunk')
    worker.submit(LanguageRequest('a'))
    ending = threading.Thread(target=worker.stop, args=[30])
    ending.start()
    time.sleep(0.1)
    told.go.set()
    ending.join(30)
    assert [(end.request_id, end.reason) for end in told.outputs[1:]] == [('a', Reason.CANCELLED)]


def test_one_request_of_an_id_is_ended_though_another_was_refused():
    answers = Answers()
    answers.asked(LanguageRequest('a'))
    answers.said(TokenDelta('a', 'conversation', 3, 0, 0, 17, 'x'))
    answers.asked(LanguageRequest('a'))
    answers.said(TokenDelta('a', 'conversation', -1, 0, 0, -1, '', True, Reason.REFUSED))
    answers.said(TokenDelta('subtask/0', 'subtask', 3, 0, 1, 17, 'x'))
    answers.said(TokenDelta('done', 'subtask', 3, 0, 0, -1, '', True, Reason.STOP))
    ends = answers.end(Reason.FAILED, 'why')
    assert [(end.request_id, end.frame, end.index) for end in ends] == [
        ('a', 3, 1),
        ('subtask/0', 3, 2),
    ]
    assert answers.end(Reason.FAILED, 'why') == []
    assert not answers.said(TokenDelta('a', 'conversation', 3, 0, 1, 17, 'late'))
