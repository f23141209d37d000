"""Where the time of a training goes. Shown and logged, never part of a result."""

import time
from collections import defaultdict


class Clock:
    """Seconds by what they were spent on, each counted once."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last = time.perf_counter()

    def spent(self, on: str) -> None:
        """Count the time since the last call for `on`."""
        now = time.perf_counter()
        self.seconds[on] += now - self.last
        self.last = now

    def take(self) -> dict[str, float]:
        """The seconds so far, which are counted anew from now on."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken
