"""Does a recording hold what the contract names?"""

from __future__ import annotations

from itertools import islice

from oxygen_ros.check.samples import COUNT, Samples, heard
from oxygen_ros.replay.bag import Bag, Message
from oxygen_ros.replay.sources import Binding, Source, bind_all
from oxygen_ros.ros.contract import Contract
from oxygen_ros.types import Finding, OxygenError, Verdict


def check_bag(bag: Bag, contract: Contract, instruction: str, namespace: str) -> list[Finding]:
    """One line per input of the contract. instruction: the default that makes its topic optional.

    Reads the first messages of each topic only.
    """
    seconds = (bag.end_ns - bag.start_ns) / 1e9
    verdict = Verdict.NOTE if bag.problem else Verdict.OK
    found = f'{bag.count} messages in {seconds:.1f} s'
    findings = [Finding('bag', found, 'readable', verdict, bag.problem)]
    for binding in bind_all(bag, contract, instruction=instruction, namespace=namespace):
        findings.append(_finding(bag, contract, binding, seconds))
    return findings


def _finding(bag: Bag, contract: Contract, binding: Binding, seconds: float) -> Finding:
    check, topic = check_name(binding.source), binding.topic
    if topic is None:
        verdict = Verdict.MISFIT if binding.required else Verdict.NOTE
        return Finding(check, 'none', binding.kind, verdict, binding.problem)
    rate_hz = topic.messages / seconds if seconds > 0 and topic.messages > 1 else 0.0
    found = heard(topic.name, topic.messages, rate_hz)
    if binding.source.kind in ('request', 'cancel'):
        return Finding(check, found, binding.kind)
    samples = Samples(contract, binding.source)
    try:
        for message in islice(bag.messages({topic.name}), COUNT):
            _take(samples, message)
    except OxygenError as error:
        return Finding(check, found, binding.kind, Verdict.MISFIT, str(error))
    return samples.finding(check, found, binding.kind, rate_hz)


def _take(samples: Samples, message: Message) -> None:
    if message.value is None:
        samples.bad.append(message.problem)
    else:
        samples.take(message.value)


def check_name(source: Source) -> str:
    """An input's name in the table."""
    names = {
        'state': 'joint state',
        'instruction': 'instruction',
        'request': 'language requests',
        'cancel': 'language cancels',
    }
    return f'camera {source.slot}' if source.slot else names[source.kind]
