"""A simulated robot at a table, an expert for it, and the small pi0.5 that learned from it."""

from pathlib import Path

SHIPPED = Path(__file__).parent / 'pi05_tabletop'  # the trained checkpoint
ROBOT = 'tabletop'  # the contract in config/robots
