"""Keys that an authority publishes as a JWKS document: read from a URL or a file, again and again.

Invariants:
- No token waits for the network: tokens are checked with the keys that are known, off the event loop's critical way.
- A read has a deadline and a bound of bytes, and follows no redirect. Tokens of strangers hasten the next read at most
  once in `MIN_REFRESH_S`.
- Known keys stay in use while the document cannot be read, or holds no usable key.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError
from pipeline.net.http.documents import READ_S, document_path, fetch_document
from pipeline.net.security.tls_context import TlsTrust, trusting_context
from pipeline.net.security.web_tokens import KeySet, TokenRules, UnknownKeyError, VerifiedToken, read_keys

MIN_REFRESH_S = 10.0
MAX_FILE_REFRESH_S = 10.0
"""Interval at which a file is read; a URL has the interval of its user."""
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0

logger = get_logger(__name__)


@dataclass(slots=True)
class PublishedKeys:
    """The keys of one document. `refresh_s`: interval at which it is read.

    `trust`: authorities of the server's certificate, None for those of the system; a file of them is read each time.
    Raises ConfigurationError if it cannot be read at first.
    """

    url: str
    refresh_s: float
    trust: TlsTrust | None = None
    clock: Callable[[], float] = trio.current_time
    keys: KeySet = field(default_factory=KeySet)
    _hurry: trio.Event = field(default_factory=trio.Event)
    _not_before: float = 0.0

    def __post_init__(self) -> None:
        if self.trust is not None:
            trusting_context(self.trust)

    def verify(self, token: str, rules: TokenRules, now_ms: int) -> VerifiedToken:
        """Check a token. A key that is not known hastens the next read. Raises TokenRefusedError."""
        try:
            return rules.verify(token, self.keys, now_ms)
        except UnknownKeyError:
            if self.clock() >= self._not_before:
                self._hurry.set()
            raise

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the document until cancelled. Reports started after the first attempt, whether or not it succeeds."""
        failures = 0
        while True:
            failures = 0 if await self._refresh() else failures + 1
            self._not_before = self.clock() + MIN_REFRESH_S
            self._hurry = trio.Event()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            pause_s = min(FIRST_RETRY_S * 2 ** (failures - 1), MAX_RETRY_S) if failures else self._interval_s()
            with trio.move_on_after(pause_s):
                await self._hurry.wait()

    def _interval_s(self) -> float:
        return self.refresh_s if document_path(self.url) is None else min(self.refresh_s, MAX_FILE_REFRESH_S)

    async def _refresh(self) -> bool:
        """Read the document once. Return True if its keys are in use."""
        try:
            with trio.fail_after(READ_S):
                found = read_keys(await fetch_document(self.url, trust=self.trust))
        except (OSError, ValueError, ConfigurationError, trio.TooSlowError) as error:
            reason = str(error) or f"no answer within {READ_S:g} s"
            logger.error("published_keys_unreadable", url=self.url, error=reason, keys_in_use=len(self.keys))
            return False
        if found.left_out and found.left_out != self.keys.left_out:
            logger.warning("published_keys_left_out", url=self.url, reasons="; ".join(found.left_out[:5]))
        self.keys = found
        return True
