"""A recorded bag in, a report out, through the same conversions and buffer as live."""

import os

# As the node does, before torch is imported.
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
