"""How often each address may do something, and which have to pause; as many as are worth remembering. Pure."""

from __future__ import annotations

from voxlane.server.http.buckets import Bucket


class AddressRates:
    """A rate and a burst for each address."""

    def __init__(self, rate: float, burst: float, most: int) -> None:
        """Let each address do `burst` at once and `rate` a second; remember `most` addresses, the newest."""
        self._rate = rate
        self._burst = burst
        self._most = most
        self._buckets: dict[str, Bucket] = {}

    def spend(self, address: str, now: float) -> bool:
        """Count one for an address; return False if that is more than it may."""
        bucket = self._buckets.pop(address, None) or Bucket(self._rate, self._burst, now)
        self._buckets[address] = bucket  # the newest
        if len(self._buckets) > self._most:
            del self._buckets[next(iter(self._buckets))]
        return bucket.spend(1, now)


class AddressPauses:
    """Addresses that have done too much: what they begin next waits."""

    def __init__(self, seconds: float, most: int) -> None:
        """Let an address wait for `seconds`; remember `most` addresses, the newest."""
        self._seconds = seconds
        self._most = most
        self._ends_s: dict[str, float] = {}

    def begin(self, address: str, now: float) -> None:
        """Begin a pause of an address, or begin it anew."""
        self._ends_s.pop(address, None)
        self._ends_s[address] = now + self._seconds
        if len(self._ends_s) > self._most:
            del self._ends_s[next(iter(self._ends_s))]

    def left_s(self, address: str, now: float) -> float:
        """Return how long an address still waits."""
        return max(0.0, self._ends_s.get(address, now) - now)
