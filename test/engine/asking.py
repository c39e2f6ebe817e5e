"""Requests, and what comes of them, for tests of the engine."""

from oxygen_ros.types import LanguageRequest

MODES = ('isolated', 'shared_kv', 'continuous')


def ask(name, prompt='', tokens=8, **fields):
    """A language request."""
    return LanguageRequest(name, prompt=prompt, max_tokens=tokens, **fields)


def drain(policy):
    """All outputs until nothing is pending, the budget refilled whenever it is spent."""
    outputs = []
    while policy.engine.scheduler.live or not policy.idle:
        if policy.idle:
            policy.grant()
        outputs += policy.step()
        policy.engine.check_integrity()
    return outputs


def answers(outputs):
    """Request id -> its token ids, ends without a token left out."""
    tokens = {}
    for delta in outputs:
        if hasattr(delta, 'token_id'):
            tokens.setdefault(delta.request_id, [])
            if delta.token_id >= 0:
                assert delta.index == len(tokens[delta.request_id])
                tokens[delta.request_id].append(delta.token_id)
    return tokens
