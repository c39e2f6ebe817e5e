"""Reads every import of the package and compares it with the written order."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'oxygen_ros'

# module or folder -> what it may import beside the standard library. The longest name that fits a
# module is its rule. A name stands for all below it; `messages` for the ROS interface packages.
ORDER = {
    'types': 'numpy',
    'tasks': 'types',
    # Deciding parts of the engine: no tensors.
    'engine.budget': 'types',
    'engine.kv_ledger': '',
    'engine.kv_size': 'engine.request models.base types',  # models.base: for type checkers alone
    'engine.request': 'types',
    'engine.scheduler': 'engine.budget engine.kv_ledger engine.request types',
    'engine': 'engine models.base models.guidance models.kv types numpy torch',
    'models': 'models types numpy torch transformers',
    'models.paligemma': 'models checkpoint.arch processing.pi05 torch transformers',
    'models.pi0': 'models processing.pi05 torch transformers',
    'models.pi05': 'models checkpoint.arch processing.pi05 types numpy torch transformers',
    'models.pi05_sizes': 'models checkpoint.arch transformers',
    'models.family': 'models.base torch',
    'models.starvla': 'models checkpoint processing types numpy torch',
    'models.qwen_vl': 'models checkpoint.qwen types torch transformers',
    'models.starvla_dit': 'checkpoint.starvla_head torch',
    'models.xiaomi_robotics_0': 'models checkpoint processing types torch',
    # Where a checkpoint meets the model and the processor of its family.
    'models.registry': 'models checkpoint processing types torch',
    'checkpoint.random_starvla': 'checkpoint types numpy safetensors tokenizers torch '
    'transformers yaml',
    'checkpoint.starvla_run': 'checkpoint types yaml',
    'checkpoint': 'checkpoint types numpy safetensors tokenizers torch transformers',
    'processing': 'processing checkpoint.info types numpy PIL torch transformers',
    'processing.fast': 'processing checkpoint.files checkpoint.starvla types numpy transformers',
    'processing.starvla': 'processing checkpoint.qwen checkpoint.starvla types numpy PIL torch',
    'processing.xiaomi_robotics_0': 'processing checkpoint.xiaomi_robotics_0 types numpy torch',
    'devices': 'types torch',
    'preflight': 'engine models checkpoint processing devices types numpy torch',
    'policy': 'engine models checkpoint processing devices preflight tasks types numpy torch',
    # Parts of the node that replay shares: no rclpy.
    'ros.arguments': 'ros.parameters types yaml',
    'ros.contract': 'ros.joints ros.yaml_tree types',
    'ros.conversions': 'ros.pixels types numpy PIL cv_bridge',
    'ros.domain': 'types',
    'ros.early': 'ros.node',
    'ros.parameter_rows': 'types',
    'ros.pixels': 'numpy',
    'ros.task_parameters': 'ros.parameter_rows tasks types',
    'ros.input_ages': '',
    'ros.joints': 'types numpy',
    'ros.motion': 'ros.contract ros.joints ros.motion types numpy',
    'ros.motion.control': 'ros types numpy rclpy',
    'ros.observation_buffer': 'ros.contract ros.input_ages ros.joints ros.state_history types '
    'numpy',
    'ros.preflight': 'ros.contract ros.joints ros.parameters ros.yaml_tree policy types',
    'ros.state_history': 'numpy',
    'ros.yaml_tree': 'types yaml',
    'ros': 'ros policy tasks types numpy yaml rclpy messages',
    'replay': 'replay policy ros.arguments ros.contract ros.conversions ros.joints '
    'ros.motion.limits ros.motion.mover ros.motion.plan ros.observation_buffer ros.parameters '
    'ros.preflight types numpy PIL rosbags tqdm',
    # The engine's phases, as the benchmarks record them.
    'replay.evaluate': 'replay policy bench.timeline ros.contract ros.parameters ros.preflight '
    'types tqdm',
    'replay.made_by': 'checkpoint oxygen_ros tqdm',
    # Pages; imported where one is asked for.
    'replay.page': 'replay types jinja2',
    'replay.plots': 'replay ros.contract numpy matplotlib',
    'replay.ray_job': 'replay types ray',
    # With ROS: the live timeline and the recorder.
    'replay.live': 'replay demo.processes ros.contract types rclpy yaml',
    'replay.live_listener': 'replay ros.contract ros.conversions ros.qos types numpy rclpy '
    'messages',
    'replay.live_player': 'replay ros.contract ros.messages ros.qos rclpy messages tqdm',
    'replay.record': 'replay ros.arguments ros.contract ros.process types rclpy rosbags',
    'check': 'check replay ros.arguments ros.contract ros.conversions ros.preflight types',
    'check.live': 'check.bag check.samples replay.sources ros.contract ros.qos types rclpy '
    'messages',
    'demo': 'demo checkpoint replay ros tabletop types numpy PIL rclpy messages rosbags tqdm yaml',
    # The simulated world: no tensors, no ROS.
    'tabletop.world': 'tabletop.tasks numpy',
    'tabletop.tasks': 'numpy',
    'tabletop.expert': 'tabletop.tasks tabletop.world numpy',
    'tabletop.render': 'tabletop.tasks tabletop.world types numpy',
    'tabletop.language': 'tabletop.tasks tabletop.world numpy',
    'tabletop.samples': 'tabletop numpy',
    'tabletop.episode': 'tabletop.language tabletop.tasks tabletop.world numpy',
    'tabletop.scores': 'tabletop.episode numpy',
    'tabletop.stage': 'tabletop.episode tabletop.language tabletop.render tabletop.world numpy',
    # Its model.
    'tabletop.vocabulary': 'tabletop checkpoint.random_tokenizer',
    'tabletop.checkpoint': 'tabletop checkpoint.arch checkpoint.weights numpy torch safetensors',
    'tabletop.batches': 'tabletop processing.pi05 numpy torch',
    'tabletop.network': 'tabletop models.pi05 models.pi05_expert torch transformers',
    'tabletop.train': 'tabletop checkpoint models.pi05 models.pi05_sizes processing.pi05 '
    'replay.files types numpy torch tqdm',
    # The closed loop, without ROS and with it.
    'tabletop.loop': 'tabletop policy ros.contract ros.motion types numpy',
    'tabletop.evaluate': 'tabletop policy replay.files types numpy tqdm',
    'tabletop.robot': 'tabletop replay.files ros types numpy rclpy messages',
    'tabletop.live': 'tabletop demo.prepare demo.processes ros.contract types yaml',
    'tabletop': '',
    'bench': 'bench devices engine models checkpoint processing policy types numpy torch '
    'matplotlib tqdm',
}
MESSAGES = {
    'builtin_interfaces',
    'diagnostic_msgs',
    'lifecycle_msgs',
    'msg',
    'rcl_interfaces',
    'rosgraph_msgs',
    'sensor_msgs',
    'std_msgs',
    'std_srvs',
    'trajectory_msgs',
}
MODULES = sorted(PACKAGE.rglob('*.py'))


def module_name(path):
    """engine/scheduler.py -> engine.scheduler; the package itself is the empty name."""
    parts = path.relative_to(PACKAGE).with_suffix('').parts
    return '.'.join(part for part in parts if part != '__init__')


def imported_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'line {node.lineno}: write imports absolute'
            for alias in node.names:
                name = f'{node.module}.{alias.name}'
                yield name if is_module(name) else node.module


def is_module(name):
    if name == 'oxygen_ros.msg':  # generated, not in this folder
        return True
    path = ROOT / name.replace('.', '/')
    return name.startswith('oxygen_ros') and (path.is_dir() or path.with_suffix('.py').is_file())


def foreign(names):
    """Drop the standard library, and name the package's modules without its own name."""
    for name in names:
        top = name.split('.')[0]
        if top not in sys.stdlib_module_names and name != 'oxygen_ros':
            yield name.removeprefix('oxygen_ros.')


def rule_of(module):
    fitting = [name for name in ORDER if covers(name, module)]
    assert fitting, f'{module} is in no rule: add it to ORDER and to docs/architecture.md'
    return ORDER[max(fitting, key=len)].split()


def covers(name, module):
    return module == name or module.startswith(name + '.')


def may_import(module, name):
    if 'messages' in rule_of(module) and name.split('.')[0] in MESSAGES:
        return True
    return any(covers(allowed, name) for allowed in rule_of(module))


@pytest.mark.parametrize('path', MODULES, ids=module_name)
def test_module_imports_only_what_stands_in_the_order(path):
    module = module_name(path)
    names = set(foreign(imported_names(ast.parse(path.read_text()))))
    refused = sorted(name for name in names if not may_import(module, name)) if names else []
    assert not refused, f'{module} may import {rule_of(module)}, not {refused}'


def test_the_order_refuses_what_design_refuses():
    assert not may_import('engine.scheduler', 'torch')
    assert not may_import('ros.node', 'torch')
    assert not may_import('ros.node', 'models.pi05')
    assert not may_import('bench.measure', 'ros.node')
    assert may_import('ros.node', 'std_msgs.msg')


@pytest.mark.parametrize(
    'module, absent',
    [
        ('oxygen_ros.engine.scheduler', 'torch'),
        ('oxygen_ros.engine.kv_size', 'torch'),
        ('oxygen_ros.policy', 'rclpy'),
        ('oxygen_ros.ros.early', 'rclpy'),  # what oxygen_node begins with
        ('oxygen_ros.ros.observation_buffer', 'torch'),
        ('oxygen_ros.ros.preflight', 'torch'),
        ('oxygen_ros.check.cli', 'rclpy'),
        ('oxygen_ros.replay.cli', 'rclpy'),
        ('oxygen_ros.replay.cli', 'matplotlib'),
        ('oxygen_ros.ros.observation_buffer', 'rclpy'),
        ('oxygen_ros.ros.motion.mover', 'rclpy'),
    ],
)
def test_import_does_not_load(module, absent):
    code = f'import sys, {module}; sys.exit({absent!r} in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0
