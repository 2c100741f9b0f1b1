"""Sharding problems of a contest. ``BEGAN`` is the start of the run: imports come after it, so their time counts."""

import time

BEGAN = time.monotonic()
