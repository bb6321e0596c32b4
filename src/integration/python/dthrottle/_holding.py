"""What a client holds of one leased resource: how much of it may be used at an instant, and how much to ask for. Without
clocks, locks and sockets, and step by step what src/client/holding.c does. Source: Doorman "Client operation", "Client
library".

`boot` is an instant of the boot-time clock: leases run out while the machine sleeps. `now` is monotonic. Both are in
seconds.
"""

import math
import re
from typing import NamedTuple

AMOUNT_MAX = 1e15       # of anything, as at the server
_LEASE_MAX = 86400.0    # the longest lease that a [[resource]] may grant, in seconds
_TOKEN_MAX = 2**63 - 1
_BURST = 0.1            # a rate's units that may come at once, in seconds of the rate
_WINDOW_MIN = 0.1       # use over less than this says nothing
MODES = ("pessimistic", "optimistic", "safe")


class Lease(NamedTuple):
    capacity: float
    seconds: float
    refresh: float
    safe: float    # negative: unlimited
    token: int
    learning: float = 0.0    # the master gives nobody more than it had for so many seconds; 0: it does not learn

    @classmethod
    def read(cls, words):
        """None: it is no lease. Answers come from whatever listens at the address, so every value has a bound."""
        if words[5:] != [] and (len(words) != 7 or words[5] != "learning"):
            return None
        if len(words) < 5 or not words[4].isascii() or not words[4].isdigit():
            return None
        numbers = words[:4] + words[6:]
        if not all(re.fullmatch(r"-?(\d+\.?\d*|\.\d+)", word, re.ASCII) for word in numbers):
            return None
        lease = cls(*map(float, numbers[:4]), int(words[4]), *map(float, numbers[4:]))
        fits = (0 <= lease.capacity <= AMOUNT_MAX and lease.safe <= AMOUNT_MAX and 0 <= lease.seconds <= _LEASE_MAX
                and 0 < lease.refresh <= _LEASE_MAX and lease.token <= _TOKEN_MAX
                and 0 <= lease.learning <= _LEASE_MAX)
        return lease if fits else None


class Holding:
    def __init__(self, gauge, mode, wants, wants_max, now, boot):
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}; there are {', '.join(MODES)}")
        if not (0 <= wants <= AMOUNT_MAX and 0 <= wants_max <= AMOUNT_MAX):
            raise ValueError(f"wants and wants_max are from 0 to {AMOUNT_MAX:g}")
        self.gauge, self.mode = gauge, mode
        self.wants_fixed, self.wants_max = wants, wants_max    # 0: none
        self.lease = None
        self.expiry = 0.0    # boot-time; 0: released
        self.wants = wants or 1.0
        self.level, self.level_at = 0.0, boot    # of a rate: units that may be taken then
        self.outstanding = self.waiting = 0      # places of a gauge; calls
        self._forget_use(now)

    def capacity(self, boot):
        """Units, or units a second, that may be used, and until when that is so."""
        if boot < self.expiry:
            return self.lease.capacity, self.expiry
        if self.mode == "optimistic":
            return max(self.wants, 1.0), math.inf
        if self.mode == "safe" and self.lease is not None:
            return math.inf if self.lease.safe < 0 else self.lease.safe, math.inf
        return 0.0, math.inf

    def take(self, boot):
        """Takes a unit. None: it is taken; else when there may be one if nothing changes."""
        capacity, until = self.capacity(boot)
        if self.gauge:
            if self.outstanding + 1 > capacity + 1e-9:
                return until
            self.outstanding += 1
            return None
        self._advance(boot)
        if capacity <= 0:
            return until
        if self.level >= 1:
            self.level -= 0 if capacity == math.inf else 1
            return None
        return min(until, boot + (1 - self.level) / capacity + 1e-9)

    def _advance(self, boot):
        """Fills the level, over the end of the lease if that lies between."""
        while self.level_at < boot:
            capacity, until = self.capacity(self.level_at)
            end = min(until, boot)
            if capacity == math.inf:
                self.level = 1.0
            else:
                self.level = min(self.level + capacity * (end - self.level_at), max(1.0, capacity * _BURST))
            self.level_at = end

    def begin_wait(self, now):
        if self.waiting == 0:
            self._waiting_since = now
        self.waiting += 1
        self._peak = max(self._peak, self.outstanding + self.waiting)

    def end_wait(self, taken, now):
        self.waiting -= 1
        if self.waiting == 0:
            self._waited += now - self._waiting_since
        self._tried += 1    # what was not taken by its deadline is wanted as well

    def _forget_use(self, now):
        self._window_at = self._waiting_since = now
        self._waited = 0.0
        self._tried = 0
        self._peak = self.outstanding + self.waiting    # outstanding and wanted at once

    def estimate(self, now):
        """Sets what to ask for: what was fixed, or what use since the last call suggests. Nobody knows how much more a
        client needs that had to wait for a rate, so it asks for twice as much. A request falls by half at a time."""
        window = now - self._window_at
        if self.wants_fixed > 0:
            self.wants = self.wants_fixed
        elif self.gauge:
            self.wants = max(self._peak, self.wants / 2 if self.wants / 2 >= 0.5 else 0.0)
        elif window < _WINDOW_MIN:
            self.wants = max(self.wants, self.waiting)
        else:
            self.wants = max(self._rate_needed(now, window), self.wants / 2)
            if self.wants < 1e-3:
                self.wants = 0.0
        if self.wants_fixed == 0 and self.wants_max > 0:
            self.wants = min(self.wants, self.wants_max)
        self.wants = min(self.wants, AMOUNT_MAX)
        self._forget_use(now)

    def _rate_needed(self, now, window):
        if self.waiting > 0:
            self._waited += now - self._waiting_since
        used = self._tried / window
        starved = self._waited > window / 10
        return max(2 * used, self.waiting) if starved else 1.1 * used

    def may_gain(self, boot):
        """Whether a request could bring more: there is nothing, or all that was wanted was granted."""
        capacity, _ = self.capacity(boot)
        return capacity <= 0 or (self.wants_fixed == 0 and capacity >= self.wants * 0.999
                                 and (self.wants_max == 0 or self.wants < self.wants_max))

    def grant(self, lease, sent, boot):
        """Takes a lease that was asked for at `sent`; it counts from then. False: it comes from a former master, whose
        token is smaller than that of a lease that still holds, and changes nothing."""
        if boot < self.expiry and lease.token < self.lease.token:
            return False
        self._advance(boot)    # under the old lease
        self.lease = lease
        self.expiry = sent + lease.seconds
        return True
