"""Benchmarks of the engine: no ROS, random weights, every number with its setting and ceiling."""
