"""Policy.prepare(): the frame that observe() makes, safe beside all that another thread does."""

import dataclasses
import threading

import pytest
import torch
from asking import answers, ask, drain
from families import FAMILIES

from oxygen_ros.types import ActionChunk, OxygenError, TokenDelta


@pytest.mark.parametrize('family', FAMILIES, indirect=True)
def test_beside_frames_prompts_and_words_in_another_thread(make_policy, observation):
    """Tokenizer and image rules are shared by both threads; neither may disturb the other."""
    policy = make_policy(cpu_threads=1)
    frames = [observation(number) for number in range(3)]
    expected = [policy.prepare(frame) for frame in frames]
    said = serve(policy, expected)
    policy.start_over()
    done, wrong, rounds = threading.Event(), [], []

    def prepare_all():
        try:
            while not done.is_set():
                made = [policy.prepare(frame) for frame in frames]
                wrong.extend(m for m, e in zip(made, expected, strict=True) if not same(m, e))
                rounds.append(len(made))
        except Exception as error:
            wrong.append(error)

    thread = threading.Thread(target=prepare_all)
    thread.start()
    try:
        again = serve(policy, frames)
    finally:
        done.set()
        thread.join(30)
    assert rounds and not wrong
    assert again[1:] == said[1:] and all(said[1].values())
    assert all(torch.equal(*pair) for pair in zip(again[0], said[0], strict=True))


def serve(policy, frames):
    """Chunks of all frames, and the words of a request on each."""
    outputs = []
    for number, frame in enumerate(frames):
        policy.submit(ask(f'r{number}', prompt='go on'))
        policy.observe(frame)
        outputs += drain(policy)
    chunks = [torch.from_numpy(o.actions) for o in outputs if isinstance(o, ActionChunk)]
    deltas = [o for o in outputs if isinstance(o, TokenDelta)]
    assert len(chunks) == len(frames)
    return chunks, answers(outputs), ''.join(delta.text for delta in deltas)


def same(one, other):
    pairs = (
        (getattr(one.inputs, field.name), getattr(other.inputs, field.name))
        for field in dataclasses.fields(one.inputs)
    )
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def test_counters_and_tasks_are_of_the_frames_that_are_observed(make_policy, observation):
    policy = make_policy()
    long = observation(instruction='very ' * 400 + 'slowly')
    prepared = policy.prepare(long)
    assert policy.stats.truncated_instructions == 0 and policy.idle
    policy.observe(prepared)
    assert policy.stats.truncated_instructions == 1 and not policy.idle


def test_what_cannot_be_used_is_refused_as_in_observe(make_policy, observation):
    policy = make_policy()
    with pytest.raises(OxygenError, match='the instruction is empty'):
        policy.prepare(observation(instruction=' '))
