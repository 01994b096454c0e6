"""Log of what others do again and again: a port scanner, a load balancer's check, or a broker that is down.

Invariant: an event of a host is logged at most once in INTERVAL_S for each error, with the number of those that were
left out since the last line; of all hosts together at most MAX_LINES in that time, and one more for each event.
"""

from typing import Any, Final

import trio

from pipeline.diagnostics import DiagnosticLogger

INTERVAL_S: Final = 60.0
MAX_LINES: Final = 50
_OTHERS: Final = "others"


class RareLog:
    """Warnings by event, host and error. The server's counts have all of them."""

    def __init__(self, logger: DiagnosticLogger) -> None:
        self._logger = logger
        self._logged: dict[tuple[str, ...], tuple[float, int]] = {}
        """Time of the last line, and number of those left out since."""

    def warning(self, event: str, host: str, **fields: Any) -> None:
        """Log an event that a host has caused, unless it was logged a short while ago."""
        now_s = trio.current_time()
        key: tuple[str, ...] = event, host, str(fields.get("error", ""))
        if key not in self._logged and len(self._logged) >= MAX_LINES:
            self._forget_until(now_s - INTERVAL_S)
            if len(self._logged) >= MAX_LINES:
                key = event, _OTHERS
        last_s, left_out = self._logged.get(key, (None, 0))
        if last_s is not None and now_s - last_s < INTERVAL_S:
            self._logged[key] = last_s, left_out + 1
            return
        self._logged[key] = now_s, 0
        self._logger.warning(event, **fields, **({"left_out": left_out} if left_out else {}))

    def _forget_until(self, time_s: float) -> None:
        """Forget lines from before this time."""
        self._logged = {key: logged for key, logged in self._logged.items() if logged[0] > time_s}
