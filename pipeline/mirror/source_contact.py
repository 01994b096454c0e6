"""Contact with a source: whether it answers requests for its topics, and what fails."""

from dataclasses import dataclass, field

import trio

from pipeline.mirror.copying.copies import SILENCE_S

NOT_REACHED_YET = "not reached yet"


@dataclass(slots=True)
class SourceContact:
    """Answers of one source to requests for its topics. Times are of trio's clock."""

    error: str | None = NOT_REACHED_YET
    """Problem of the last attempt, also if the hub caused it."""
    is_answering: bool = False
    """True if the source answered the last request that has ended."""
    changed_at: float = field(default_factory=trio.current_time)
    """Time since which `error` has been as it is."""
    asked_at: float | None = None
    """Time of a request that waits for its answer."""
    answered_at: float | None = None

    def begin(self) -> None:
        """Take note of a request for the topics."""
        self.asked_at = trio.current_time()

    def end(self, *, is_answered: bool) -> None:
        """Take note of the end of the request."""
        self.asked_at, self.is_answering = None, is_answered
        if is_answered:
            self.answered_at = trio.current_time()

    def set_error(self, error: str | None) -> None:
        """Take note of the problem of an attempt, None if there is none."""
        if error != self.error:
            self.error, self.changed_at = error, trio.current_time()

    def present(self, now: float) -> tuple[bool, str | None, float]:
        """Return True if the source is up, the present problem, and the time since which it lasts.

        A request without answer is a problem before it times out.
        """
        if self.asked_at is not None and now - self.asked_at > SILENCE_S:
            silence_s = now - self.asked_at
            return (
                False,
                self.error or f"has not answered a request for its topics for {silence_s:.0f} s",
                self.asked_at,
            )
        return self.is_answering, self.error, self.changed_at
