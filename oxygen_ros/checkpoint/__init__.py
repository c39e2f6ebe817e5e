"""Formats on disk -> sizes, statistics and (name, tensor). Knows no engine and no ROS."""

from oxygen_ros.checkpoint.arch import Pi05Arch, tensor_shapes
from oxygen_ros.checkpoint.info import CheckpointInfo, Normalization
from oxygen_ros.checkpoint.inspection import inspect_checkpoint
from oxygen_ros.checkpoint.loader import check_tensors, iter_tensors, load_into

__all__ = [
    'CheckpointInfo',
    'Normalization',
    'Pi05Arch',
    'check_tensors',
    'inspect_checkpoint',
    'iter_tensors',
    'load_into',
    'tensor_shapes',
]
