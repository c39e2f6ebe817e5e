"""Observations -> tensors and prompts, normalised actions -> robot units. No engine, no ROS."""
