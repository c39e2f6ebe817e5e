"""Settings for every test process."""

import os

# Tiny models are slower on many threads than on one, the more so beside other processes.
os.environ.setdefault('OMP_NUM_THREADS', '1')
