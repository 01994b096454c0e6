"""Phase of a connection, and the phases that end when the client leaves (invariant C of `conversation`)."""

from enum import Enum, auto

import trio

from pipeline.net.answers import Throttled
from pipeline.net.network import HangupWatch


class Phase(Enum):
    """Phase of a connection. Only in READING the server waits for the client."""

    READING = auto()
    TAKING_MEMORY = auto()
    HANDLING = auto()
    POLLING = auto()
    TAKING_ANSWER_MEMORY = auto()
    MUTED = auto()
    MUTED_WITHOUT_ANSWER = auto()


ENDING_WITH_CLIENT = (Phase.POLLING, Phase.TAKING_ANSWER_MEMORY, Phase.MUTED)


class Activity:
    """The phase of one connection. Cancels `scope` once the client has left in a phase of ENDING_WITH_CLIENT."""

    __slots__ = ("_descriptor", "_hangups", "_is_gone", "_mute", "_scope", "phase")

    def __init__(self, hangups: HangupWatch, descriptor: int, scope: trio.CancelScope) -> None:
        self._hangups = hangups
        self._descriptor = descriptor
        self._scope = scope
        self._mute: trio.CancelScope | None = None
        self._is_gone = False
        self.phase = Phase.READING

    def enter(self, phase: Phase) -> None:
        """Begin a phase. The client is watched from the first phase on that can end with it."""
        self.phase = phase
        if phase in ENDING_WITH_CLIENT or phase is Phase.MUTED_WITHOUT_ANSWER:
            self._hangups.watch(self._descriptor, self._gone)
            if self._is_gone:  # a watch fires once
                self._gone()

    async def pause(self, throttled: Throttled, mute_s: float) -> None:
        """Wait until the throttled client may be read again.

        A client that leaves ends the pause. If it awaits no answers it is read on, since it may have left after its
        last request; otherwise its connection ends, so that connections of clients that left do not pile up.
        """
        with trio.CancelScope() as self._mute:
            self.enter(Phase.MUTED_WITHOUT_ANSWER if throttled.answer is None else Phase.MUTED)
            if throttled.rest_s is None:
                await trio.sleep(mute_s)
            else:
                end_s = trio.current_time() + mute_s
                while (now_s := trio.current_time()) < end_s:
                    await trio.sleep_until(min(end_s, now_s + throttled.look_again_s))
                    end_s = min(end_s, trio.current_time() + throttled.rest_s())
        self._mute = None

    def forget(self) -> None:
        """Stop watching the client: the connection ends."""
        self._hangups.forget(self._descriptor)

    def _gone(self) -> None:
        self._is_gone = True
        if self.phase in ENDING_WITH_CLIENT:
            self._scope.cancel()
        elif self._mute is not None:
            self._mute.cancel()
