"""How often each address may do something: a bucket for each, for as many addresses as are worth remembering. Pure."""

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
