"""LeRobot's own pi0.5 in an environment of its own, asked over pipes."""
