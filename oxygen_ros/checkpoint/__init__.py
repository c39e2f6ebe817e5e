"""Formats on disk -> sizes, statistics and (name, tensor). Knows no engine and no ROS."""

from oxygen_ros.checkpoint.arch import Pi05Arch, tensor_shapes
from oxygen_ros.checkpoint.info import CheckpointInfo, Layout, Pi05Info, Pi05Layout, Survey
from oxygen_ros.checkpoint.inspection import inspect_checkpoint, survey_checkpoint
from oxygen_ros.checkpoint.loader import check_tensors, iter_tensors, load_into

__all__ = [
    'CheckpointInfo',
    'Layout',
    'Pi05Arch',
    'Pi05Info',
    'Pi05Layout',
    'Survey',
    'check_tensors',
    'inspect_checkpoint',
    'iter_tensors',
    'load_into',
    'survey_checkpoint',
    'tensor_shapes',
]
