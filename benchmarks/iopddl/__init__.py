"""Sharding problems from elsewhere. ``BEGAN`` is when a run began: all imports come after it, and count."""

import time

BEGAN = time.monotonic()
