"""Bounds of the bytes per second that a mirror copies: of each flow, and of all flows together."""

import trio

from pipeline.client.consumer.byte_rate import ByteRate, FetchLimit
from pipeline.mirror.config import MirrorConfig


class Throttles:
    """The bounds in force. `change` replaces them, for partitions that are fetched already as well."""

    def __init__(self, config: MirrorConfig) -> None:
        self.total = ByteRate()
        self._by_flow: dict[str, FetchLimit] = {}
        self.has_any = False
        """True if there is a bound at all."""
        self.change(config)

    def change(self, config: MirrorConfig) -> None:
        """Have the bounds of these settings from now on."""
        now = trio.current_time()
        self.total.change(config.throttle_bytes_per_s, now)
        before, self._by_flow = self._by_flow, {}
        for flow in config.flows:
            limit = before.get(flow.name) or FetchLimit((ByteRate(), self.total))
            limit.rates[0].change(flow.throttle_bytes_per_s, now)
            self._by_flow[flow.name] = limit
        self._of_all = FetchLimit((self.total,))
        self.has_any = any(limit.max_bytes() is not None for limit in (self._of_all, *self._by_flow.values()))

    def limit_of(self, flow: str | None) -> FetchLimit | None:
        """Return the limit of a flow's partitions; None if there is none."""
        if not self.has_any:
            return None
        return self._by_flow.get(flow or "", self._of_all)

    def is_holding(self, flow: str) -> bool:
        """Return True if partitions of the flow wait for their bounds now."""
        limit = self.limit_of(flow)
        return limit is not None and limit.opens_at > trio.current_time()
