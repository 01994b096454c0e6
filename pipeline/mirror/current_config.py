"""The settings in force. `apply` replaces them while the mirror runs, so every part reads them anew at each use."""

from pipeline.mirror.config import MirrorConfig


class CurrentConfig:
    """The settings in force, `now`, and values that parts of the mirror derive from them."""

    __slots__ = ("now",)

    def __init__(self, config: MirrorConfig) -> None:
        self.now = config

    @property
    def timeout_s(self) -> float:
        """Time for an answer of the hub, or of a source."""
        return self.now.produce_timeout_ms / 1000

    @property
    def fetch_wait_s(self) -> float:
        """Time that a source waits for new records."""
        return self.now.fetch_max_wait_ms / 1000

    @property
    def retry_backoff_s(self) -> float:
        """Time that a partition rests after a failure."""
        return self.now.retry_backoff_ms / 1000

    @property
    def recheck_s(self) -> float:
        """Interval between looks at a halted partition."""
        return max(self.now.refresh_interval_ms, self.now.retry_backoff_ms) / 1000
