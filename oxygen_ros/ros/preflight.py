"""Everything that is checked before weights are loaded, by the node, the replay and oxygen_check.

Needs no ROS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oxygen_ros.ros.contract import MERGES, Contract
from oxygen_ros.ros.joints import Joint
from oxygen_ros.ros.parameters import Value, policy_options
from oxygen_ros.ros.yaml_tree import brace
from oxygen_ros.types import Finding, OxygenError, PolicyInfo, Verdict


def preflight(values: Mapping[str, Value], contract: Contract) -> list[Finding]:
    """Checkpoint, memory and contract under the node's checked parameters. Reads no weight."""
    from oxygen_ros.policy import Policy, PolicyOptions  # it takes seconds to import

    info, findings = Policy.preflight(
        str(values['checkpoint']), PolicyOptions(**policy_options(values))
    )
    return [*findings, *check_contract(contract, info)]


def refuse_misfits(findings: Iterable[Finding]) -> None:
    """Raise one OxygenError that names every misfit, if there is one."""
    misfits = [finding.text for finding in findings if finding.verdict is Verdict.MISFIT]
    if misfits:
        raise OxygenError('; '.join(misfits))


def notes_of(findings: Iterable[Finding]) -> list[str]:
    """What fits but is worth a line in the log."""
    return [finding.text for finding in findings if finding.verdict is Verdict.NOTE]


def check_contract(contract: Contract, info: PolicyInfo | None) -> list[Finding]:
    """How the contract fits the checkpoint; info is None where a misfit of the latter hides it."""
    if info is None:
        why = 'not checked: the checkpoint must be mended first'
        return [Finding('contract', 'not checked', 'to fit the model', Verdict.NOTE, why)]
    return [
        _cameras(contract, info),
        _joints('state', contract.state.names, info.state_dim),
        _joints('actions', contract.actions.names, info.action_dim),
        *_units(contract),
        _horizon(contract, info),
        *_merge(contract, info),
    ]


def _cameras(contract: Contract, info: PolicyInfo) -> Finding:
    found, needed = ', '.join(contract.slots), 'of ' + ', '.join(info.cameras)
    unknown = [slot for slot in contract.slots if slot not in info.cameras]
    unmapped = [slot for slot in info.cameras if slot not in contract.slots]
    if unknown:
        detail = (
            f'cameras {brace(unknown)} of the contract are not in the model: '
            f'the contract has {brace(contract.slots)}, the model has {brace(info.cameras)}'
        )
        return Finding('cameras', found, needed, Verdict.MISFIT, detail)
    if unmapped:
        detail = (
            f'model cameras {brace(unmapped)} are not in the contract: '
            'they are masked and not computed'
        )
        return Finding('cameras', found, needed, Verdict.NOTE, detail)
    return Finding('cameras', found, needed)


def _joints(part: str, names: tuple[str, ...], dim: int) -> Finding:
    found, needed = f'{len(names)} joints', f'{dim} joints'
    if len(names) == dim:
        return Finding(part, found, needed)
    option = 'state_dim' if part == 'state' else 'action_dim'
    hint = f' If the rest is padding, set {option} to {len(names)} in oxygen.json'
    detail = (
        f'{part}.joints of the contract names {len(names)} joints, the model has {dim} '
        f'{part} values: the contract has {brace(names)}, '
        f'the model needs one name for each of 0..{dim - 1}.'
        f'{hint if len(names) < dim else ""}'
    )
    return Finding(part, found, needed, Verdict.MISFIT, detail)


def _units(contract: Contract) -> list[Finding]:
    """A line on joints whose units differ, if there are any."""
    mapped = {j.name: j for j in (*contract.state.joints, *contract.actions.joints) if j.is_mapped}
    if not mapped:
        return []
    found = ', '.join(_formula(joint) for joint in mapped.values())
    return [Finding('joint units', found, 'as in training; only you can tell')]


def _formula(joint: Joint) -> str:
    sign = '-' if joint.gain < 0 else '+'
    return f'{joint.name} = {joint.offset:g} {sign} {abs(joint.gain):g} * model'


def _horizon(contract: Contract, info: PolicyInfo) -> Finding:
    actions = contract.actions
    length_s = info.horizon * actions.step_period_s
    found = f'valid for {actions.valid_for_s:g} s'
    needed = f'{info.horizon} rows of {actions.step_period_s:g} s: {length_s:g} s'
    detail = ''
    if actions.valid_for_s > length_s:
        detail = (
            f'valid_for_s {actions.valid_for_s:g} is longer than a chunk: '
            f'{info.horizon} rows of {actions.step_period_s:g} s end after {length_s:g} s'
        )
    elif actions.valid_for_s < length_s:
        used = int(actions.valid_for_s / actions.step_period_s + 1e-9)
        detail = (
            f'valid_for_s {actions.valid_for_s:g} lets {used} of the {info.horizon} rows count'
        )
    return Finding('horizon', found, needed, Verdict.NOTE if detail else Verdict.OK, detail)


def _merge(contract: Contract, info: PolicyInfo) -> list[Finding]:
    """A line on a merge that the model cannot take part in."""
    if contract.actions.merge != 'realtime' or not info.no_overlap:
        return []
    detail = f'actions.merge of the contract is realtime, but {info.no_overlap}'
    needed = ', '.join(name for name in MERGES if name != 'realtime')
    return [Finding('merge', 'realtime', needed, Verdict.MISFIT, detail)]
