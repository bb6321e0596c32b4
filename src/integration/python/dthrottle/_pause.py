"""When to leave a daemon alone that has failed: for a pause that doubles with each failure in a row, after which one call
finds out whether it is back. Instants are seconds of the monotonic clock. The caller holds a lock where threads need one.
"""

import random


class Pause:
    def __init__(self, least, most, chance=random.random):
        self.least, self.most, self.chance = least, most, chance
        self.failures = 0    # in a row
        self.failed_at = self.length = 0.0
        self.probe = None    # the call that finds out

    def backs_off(self, now):
        return self.failures > 0 and (self.probe is not None or now - self.failed_at < self.length)

    def begin(self, call, now):
        """False: do not ask now."""
        if self.backs_off(now):
            return False
        if self.failures > 0:
            self.probe = call
        return True

    def answered(self, call):
        self.failures = 0
        self.given_up(call)

    def failed(self, call, began, now):
        """A call that began before the last failure has failed together with it: that counts once. Chance shortens the
        pause by up to a quarter, so that the workers of a host do not all come back at once."""
        if self.failures == 0 or began > self.failed_at:
            self.failures += 1
            nominal = min(self.least * 2 ** min(self.failures - 1, 30), self.most)
            self.length = nominal * (1 - self.chance() / 4)
            self.failed_at = now
        self.given_up(call)

    def given_up(self, call):
        """Nobody waits for the call any more, and nothing is known."""
        if self.probe is call:
            self.probe = None
