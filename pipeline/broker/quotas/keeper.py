"""Holds clients to their quotas: counts the bytes that they send and read, and computes how long they have to wait.

A Produce request is answered at once; its connection is then not read while the client is over its quota (KIP-219). A
Fetch request whose group of clients still owes time waits for its turn, first come first served. It reads at most its
share of the bytes that the quota allows in the windows kept, so its group can pay for the answer in these windows. Both
waits look up the quota again in each window, so they end when the quota is raised or removed.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from pipeline.broker.quotas.rate import SampledRate
from pipeline.broker.quotas.table import Quota, QuotaKind, QuotaTable

MAX_GROUPS = 10_000
"""Groups of clients remembered. Above it idle groups are dropped; if none is idle, further clients share a group."""
MAX_NAME_LETTERS = 250
NAME_START_LETTERS = 100
"""Longer names are shortened, also in metrics, to their first NAME_START_LETTERS and a digest."""
MAX_SHARE_BYTES = 2**31 - 1
"""Maximum size of an answer in the protocol."""

QuotaClient = tuple[str, str]
"""User and client id of a client."""


@dataclass(slots=True)
class _Group:
    rate: SampledRate
    turn: trio.Lock = field(default_factory=trio.Lock)
    waiting: int = 0
    throttled_s: float = 0.0


class GroupUsage(NamedTuple):
    """The usage of a group of clients, for metrics."""

    kind: QuotaKind
    user: str | None
    client_id: str | None
    bytes_per_s: float
    throttled_s: float


class QuotaKeeper:
    """The usage of all groups of clients of this broker."""

    def __init__(self, table: QuotaTable, *, window_s: float, samples_kept: int) -> None:
        self.table = table
        self.window_s = window_s
        self._samples_kept = samples_kept
        self._groups: dict[tuple[QuotaKind, tuple[str | None, str | None]], _Group] = {}
        self._checked_s = float("-inf")

    def charge(self, kind: QuotaKind, client: QuotaClient, size_bytes: int) -> float:
        """Count bytes; returns the seconds for which to throttle the client."""
        quota = self.table.find(kind, *client)
        if quota is None:
            return 0.0
        group = self._group(kind, quota)
        delay_s = group.rate.charge(size_bytes, quota.bytes_per_s, trio.current_time())
        group.throttled_s += delay_s
        return delay_s

    def owed(self, kind: QuotaKind, client: QuotaClient) -> float:
        """Return the seconds for which to throttle the client under its present quota."""
        quota = self.table.find(kind, *client)
        return 0.0 if quota is None else self._group(kind, quota).rate.owed(quota.bytes_per_s, trio.current_time())

    async def wait_for_turn(self, kind: QuotaKind, client: QuotaClient) -> tuple[float, int]:
        """Wait until the client's group owes no time; returns the seconds waited, and the bytes it may read."""
        quota = self.table.find(kind, *client)
        if quota is None:
            return 0.0, MAX_SHARE_BYTES
        group = self._group(kind, quota)
        started = trio.current_time()
        group.waiting += 1
        try:
            async with group.turn:
                # Other clients of the group add to the debt meanwhile, and the quota may change.
                while (owed_s := group.rate.owed(quota.bytes_per_s, trio.current_time())) > 0:
                    await trio.sleep(min(owed_s, self.window_s))
                    quota = self.table.find(kind, *client)
                    if quota is None:
                        break
            waited_s = trio.current_time() - started
            group.throttled_s += waited_s
            if quota is None:
                return waited_s, MAX_SHARE_BYTES
            share = quota.bytes_per_s * self.window_s * max(1, self._samples_kept - 1) / group.waiting
            return waited_s, max(1, min(int(share), MAX_SHARE_BYTES))
        finally:
            group.waiting -= 1

    def usage(self) -> Iterator[GroupUsage]:
        """Yield the usage of every group as of now."""
        now_s = trio.current_time()
        for (kind, (user, client_id)), group in self._groups.items():
            yield GroupUsage(kind, user, client_id, group.rate.rate(now_s), group.throttled_s)

    def _group(self, kind: QuotaKind, quota: Quota) -> _Group:
        user, client_id = quota.sharer
        key = kind, (_remembered(user), _remembered(client_id))
        group = self._groups.get(key)
        if group is None and len(self._groups) >= MAX_GROUPS:
            self._forget_idle()
            if len(self._groups) >= MAX_GROUPS:
                key = kind, (None, None)
                group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(SampledRate(self.window_s, self._samples_kept))
        return group

    def _forget_idle(self) -> None:
        """Drop idle groups. Checks all groups, so at most once in a window: no group becomes idle sooner."""
        now_s = trio.current_time()
        if now_s - self._checked_s < self.window_s:
            return
        self._checked_s = now_s
        for key in [key for key, group in self._groups.items() if not group.waiting and group.rate.is_idle(now_s)]:
            del self._groups[key]


def _remembered(name: str | None) -> str | None:
    """Shorten a very long name to its beginning and a digest."""
    if name is None or len(name) <= MAX_NAME_LETTERS:
        return name
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{name[:NAME_START_LETTERS]}...{digest}"
