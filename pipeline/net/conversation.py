"""Connection of a server: requests in, answers out.

Requests are answered in the order in which they came: a handler that must wait (a long poll, a disk) holds up only its
own connection. A handler that has done its work and only waits for others (`Owed`) does not hold up requests of the
same key: up to `MAX_OWED` of their answers are owed at a time. All ready answers leave in one call.

Invariants
  A. Between receiving and `park` nothing is awaited: all connections share one receive buffer.
  B. A large request takes its memory from the server's `Memories` before it is received, and returns it after it is
     handled, at the latest when the connection ends. A request without records takes a multiple of its size, from
     memory of its own kind, so that it never holds up records; very many elements take more, before they are decoded.
     The multiple covers the decoded request and its answer: it is held until a long answer is sent.
     A short request whose answer copies very much (`LargeAnswer.copied_bytes`) or is very long (`PendingAnswer`) takes
     memory before the answer is encoded or built.
     A long poll returns its memory before it waits, except a Fetch of very many elements, which waits for a moment.
  C. Three things end with their client: a request that only waits for something to read (`Server.long_polls`), the wait
     of a handled request for the memory of its answer, and the pause of a throttled client that awaits answers (another
     may have left after its last request). All other requests run to their end, so that no change is left half done.
  D. While an answer is owed, no later answer is sent, and no request of another key is handled. An owed answer holds no
     memory of its request.
  F. Before a client is authenticated only the keys of OPEN_TO_STRANGERS are decoded, and small requests, one at a time.
  E. After TURN_S of work without a wait others have their turn before the next request is handled, however many the
     client has sent. A single request is not interrupted.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from pipeline.errors import NetworkError
from pipeline.net.activity import Activity, Phase
from pipeline.net.answers import Answer, Handler, HandlerResult, LargeAnswer, Peer, PendingAnswer, Throttled
from pipeline.net.authentication import OPEN_TO_STRANGERS, Authenticator
from pipeline.net.garbage import RARE_COLLECTIONS
from pipeline.net.memories import ELEMENTS_BYTES, Memories
from pipeline.net.network import HangupWatch
from pipeline.net.outbox import Outbox
from pipeline.net.owed import MAX_OWED, Debt, Owed, OwedAnswers
from pipeline.net.request_memory import Claim, ClaimState, RequestMemory
from pipeline.net.request_statistics import RequestStatistics
from pipeline.net.transport import Piece, Transport
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import LargeRequest, Request, ServerConnection
from pipeline.protocol.error_counts import count_errors
from pipeline.protocol.framing import receive_buffer
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.schema import Message

MAX_HELD_BYTES = 1024 * 1024
MAX_MUTE_S = 3600.0
TURN_S = 0.002
CODERS = 2
"""Large requests and answers of a server that threads decode and encode at a time."""

_HANDLED = ApiVersionsRequest()
"""The body of a handled request whose answer is awaited: the memory of the true body is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Parts that the connections of a server share."""

    handle: Handler
    apis: Mapping[int, ApiKey]
    long_polls: Collection[int]
    max_request_bytes: int
    memories: Memories
    requests: Mapping[ApiKey, RequestStatistics]
    hangups: HangupWatch
    buffer: memoryview = field(default_factory=receive_buffer)
    coders: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(CODERS))


class Conversation:
    """A connection, which `run` serves until its client leaves or violates the protocol."""

    __slots__ = (
        "_activity",
        "_arrived_at",
        "_claim",
        "_elements",
        "_granted",
        "_handle",
        "_machine",
        "_memory",
        "_outbox",
        "_owed",
        "_scope",
        "_shared",
        "_transport",
        "_turn_at",
        "_until_settled",
        "active_at",
        "authenticator",
        "began_at",
        "ended_because",
        "peer",
    )

    def __init__(
        self, shared: Shared, transport: Transport, peer: Peer, authenticator: Authenticator | None = None
    ) -> None:
        self._shared = shared
        self._transport = transport
        self.authenticator = authenticator
        self._handle, self._machine = _first_state(shared, authenticator)
        self._scope = trio.CancelScope()
        self._claim: Claim | None = None
        self._memory = shared.memories.decoded
        """The memory that the claim belongs to."""
        self._elements: Claim | None = None
        """The claim for very many elements, beside a claim for records."""
        self._granted: trio.Event | None = None
        self._outbox = Outbox()
        self._arrived_at = self.began_at = trio.current_time()
        self._turn_at = self._arrived_at
        """Time at which others last had their turn."""
        self._activity = Activity(shared.hangups, transport.descriptor, self._scope)
        self.peer = peer
        self.active_at = self._arrived_at
        """Time of the last request or answer."""
        self._owed = OwedAnswers()
        self._until_settled: trio.CancelScope | None = None
        """Scope of a wait for something else, cancelled when the first owed answer can be given."""
        self.ended_because: str | None = None

    @property
    def is_busy(self) -> bool:
        """True if the client waits for the server, False if the server waits for the client."""
        return self._activity.phase is not Phase.READING or bool(self._owed)

    def end(self, reason: str) -> None:
        """End the connection, whatever it is doing."""
        self.ended_because = reason
        self._scope.cancel()

    async def run(self) -> None:
        """Serve until the client leaves. Raises NetworkError, ProtocolError, and any error of a handler."""
        try:
            with self._scope:
                await self._converse()
        finally:
            if self._claim is not None:
                self._release(self._claim)
            self._owed.leave()
            self._activity.forget()

    async def _converse(self) -> None:
        try:
            while True:
                request = self._machine.next_request()
                if request is None:
                    if not await self._receive():
                        return
                    continue
                if self._owed and request.api_key is not self._owed.api_key:  # invariant D
                    await self._settle_all()
                unfinished = self._serve_large(request) if isinstance(request, LargeRequest) else self._serve(request)
                del request  # frees the buffer that it was received into, once it is decoded
                if unfinished is not None:
                    await unfinished
                if self.authenticator is not None and await self._note_authentication(self.authenticator):
                    return
                if trio.current_time() - self._turn_at > TURN_S:  # invariant E
                    await self._send_much()
                    await self._give_way()
        except NetworkError:
            raise
        except Exception:
            await self._settle_all()
            await self._send()  # the answers to earlier requests
            raise

    async def _note_authentication(self, authenticator: Authenticator) -> bool:
        """Take over what the last request has changed (invariant F). True if the connection ends."""
        self._machine.takes_tokens = authenticator.takes_tokens
        if authenticator.is_open:
            self._machine.admit(self._shared.max_request_bytes, self._shared.apis)
        if authenticator.is_refused:
            await self._send_much()
        return authenticator.is_refused

    async def _receive(self) -> bool:
        """Send ready answers, then wait for more bytes. False if the peer has ended its side and nothing is owed."""
        machine, transport, shared = self._machine, self._transport, self._shared
        self._settle()
        if self._outbox.unsent:
            machine.park()  # invariant A, as before each wait below
            await self._send()
        if transport.had_its_share:
            machine.park()
            await self._give_way()
        if machine.growth:
            await self._take_memory(*shared.memories.growth(machine))
        has_waited = False
        while (received := transport.receive_now(machine.get_buffer())) is None:
            has_waited = True
            machine.park()
            await self._wait_meanwhile(transport.wait_readable)
        if not received:
            await self._settle_all()
        self._arrived_at = self.active_at = trio.current_time()
        if has_waited:
            self._turn_at = self._arrived_at
        machine.bytes_received(received)
        if self._claim is not None:
            self._claim.moved_bytes += received
        return received > 0

    async def _give_way(self) -> None:
        await self._transport.give_way()
        self._turn_at = trio.current_time()

    async def _serve_large(self, request: LargeRequest) -> None:
        """Have a thread decode a large request, once all earlier ones are answered, and answer it."""
        await self._settle_all()
        await self._send_much()
        memory = self._shared.memories.decoded
        if self._claim is None or self._memory is memory:
            await self._take_memory(memory, ELEMENTS_BYTES)
        else:
            self._elements = Claim(self.end, self._go_on)
            self._activity.phase = Phase.TAKING_MEMORY
            await self._ask(self._elements, memory, ELEMENTS_BYTES)
        with RARE_COLLECTIONS:
            decoded = await trio.to_thread.run_sync(request.decode, limiter=self._shared.coders)
            del request
            unfinished = self._serve(decoded)
            del decoded
            if unfinished is not None:
                await unfinished

    def _serve(self, request: Request[Message]) -> Awaitable[None] | None:
        """Answer, or return a coroutine that will."""
        shared = self._shared
        statistics = shared.requests[request.api_key]
        statistics.request_bytes += request.size_bytes
        if self._claim is not None:
            self._memory.complete(self._claim)
        started = trio.current_time()
        try:
            outcome = self._handle(request, self.peer)
        except Exception:
            statistics.failed += 1
            raise
        answered = trio.current_time()
        statistics.request_queue_s += started - self._arrived_at
        statistics.local_s += answered - started
        if request.is_large and isinstance(outcome, Message):
            outcome = LargeAnswer(outcome)
        if outcome is None or isinstance(outcome, Message):
            if self._owed:
                return self._serve_later(request, outcome, statistics, answered)
            self._answer(request, outcome, statistics, answered)
            return None if self._outbox.size_bytes < MAX_HELD_BYTES else self._send_much()
        if isinstance(outcome, Owed):
            return self._owe(request, outcome, answered)
        if self._claim is not None:
            request = request._replace(body=_HANDLED)  # frees the body, unless the handler keeps it
        return self._serve_later(request, outcome, statistics, answered)

    # Answers that are owed

    def _owe(self, request: Request[Message], owed: Owed, asked: float) -> Awaitable[None] | None:
        """Note that the answer is owed; return a wait for all owed answers if there are MAX_OWED."""
        self._owed.append(Debt(request._replace(body=_HANDLED), owed, self._arrived_at, asked))
        owed.when_over(self._owed_is_over)
        if self._claim is not None:
            self._release(self._claim)
        return None if len(self._owed) < MAX_OWED else self._settle_all()

    def _owed_is_over(self) -> None:
        if self._until_settled is not None and self._owed.is_over:
            self._until_settled.cancel()

    def _settle(self) -> None:
        """Encode the owed answers that can be given now."""
        if not self._owed:
            return
        now = trio.current_time()
        for request, owed, arrived, asked in self._owed.settle(now):
            statistics = self._shared.requests[request.api_key]
            statistics.remote_s += now - asked
            self._make_ready(request, owed.answer(), statistics, arrived, now)
            self.active_at = now

    async def _settle_all(self) -> None:
        while self._owed:
            self._machine.park()
            await self._wait_meanwhile(trio.sleep_forever)

    async def _wait_meanwhile(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait until the first owed answer can be given at the latest; send what is ready."""
        if not self._owed:
            await wait()
            return
        self._settle()
        if not self._outbox.unsent:
            with trio.CancelScope(deadline=self._owed.deadline) as self._until_settled:
                await wait()
            self._until_settled = None
            self._settle()
        if self._outbox.unsent:
            await self._send()

    # Answers that hold up the connection

    async def _serve_later(
        self,
        request: Request[Message],
        outcome: HandlerResult | Awaitable[HandlerResult],
        statistics: RequestStatistics,
        asked: float,
    ) -> None:
        result: HandlerResult
        if outcome is None or isinstance(outcome, Message | Throttled | LargeAnswer | PendingAnswer):
            await self._settle_all()
            result, answered = outcome, asked
        else:
            try:
                result = await self._wait_for(outcome, request)
            except Exception:
                statistics.failed += 1
                raise
            answered = trio.current_time()
            statistics.remote_s += answered - asked
        if isinstance(result, PendingAnswer):
            await self._claim_answer(result.held_bytes)
            result = LargeAnswer(await result.build())
        elif isinstance(result, LargeAnswer):
            await self._claim_answer(result.copied_bytes)
        answer = result.answer if isinstance(result, Throttled | LargeAnswer) else result
        if answer is not None and (request.is_large or isinstance(result, LargeAnswer)):
            await self._answer_large(request, answer, statistics, answered)
        else:
            self._answer(request, answer, statistics, answered)
            if self._outbox.size_bytes >= MAX_HELD_BYTES:
                await self._send_much()
        if not isinstance(result, Throttled):
            return
        await self._send_much()
        mute_s = min(result.mute_s, MAX_MUTE_S)
        if mute_s > 0:
            started = trio.current_time()
            try:
                await self._activity.pause(result, mute_s)
                self._read_on()
            finally:
                statistics.throttle_s += trio.current_time() - started

    async def _claim_answer(self, size_bytes: int) -> None:
        """Wait until there is memory for an answer, which may be very much larger than its request."""
        if size_bytes <= MAX_HELD_BYTES:
            return
        await self._send_much()
        memory = self._shared.memories.decoded if self._claim is None else self._memory
        if self._claim is not None:  # the promise to the request covers its answer, too
            size_bytes = min(size_bytes, self._claim.whole - self._claim.held)
        await self._take_memory(memory, size_bytes, phase=Phase.TAKING_ANSWER_MEMORY)
        if self._claim is not None:
            memory.complete(self._claim)

    async def _wait_for(self, outcome: Awaitable[HandlerResult], request: Request[Message]) -> HandlerResult:
        """Wait for the answer; answers that are ready are sent before."""
        is_long_poll = request.api_key in self._shared.long_polls
        if self._claim is not None and is_long_poll and not (request.is_large and request.api_key is ApiKey.FETCH):
            self._release(self._claim)
        if self._outbox.unsent or self._owed:
            try:
                await self._settle_all()
                await self._send_much()
            except BaseException:
                # The handler has begun, so it runs to its end (invariant C). A long poll changes nothing, but each
                # coroutine must be awaited: cancelled, it ends at its first checkpoint.
                self._activity.phase = Phase.HANDLING
                with trio.CancelScope() as scope:
                    if is_long_poll:
                        scope.cancel()
                    await outcome
                raise
        self._machine.park()
        self._activity.enter(Phase.POLLING if is_long_poll else Phase.HANDLING)
        answer = await outcome
        self._read_on()
        return answer

    def _read_on(self) -> None:
        self._activity.phase = Phase.READING
        self.active_at = trio.current_time()

    def _answer(
        self, request: Request[Message], answer: Answer, statistics: RequestStatistics, answered: float
    ) -> None:
        """Encode the answer of a handled request, and release the request's memory."""
        self._make_ready(request, answer, statistics, self._arrived_at, answered)
        if self._claim is None:
            return
        if self._outbox.size_bytes < MAX_HELD_BYTES:
            self._release(self._claim)
        else:
            self._memory.send(self._claim)

    async def _answer_large(
        self, request: Request[Message], answer: Message, statistics: RequestStatistics, answered: float
    ) -> None:
        """Have a thread encode an answer, and send it."""
        self._machine.park()
        errors: dict[int, int] = {}

        def encode() -> list[Piece]:
            count_errors(answer, errors)
            return self._machine.encode_response(request, answer, in_pieces=True)

        pieces = await trio.to_thread.run_sync(encode, limiter=self._shared.coders)
        for code, count in errors.items():
            statistics.errors[code] = statistics.errors.get(code, 0) + count
        self._outbox.add(pieces, statistics, self._arrived_at, answered)
        if self._claim is not None:
            self._memory.send(self._claim)
        await self._send_much()

    def _make_ready(
        self,
        request: Request[Message],
        answer: Answer,
        statistics: RequestStatistics,
        arrived: float,
        answered: float,
    ) -> None:
        pieces: list[Piece] = []
        if answer is not None:
            pieces = self._machine.encode_response(request, answer)
            count_errors(answer, statistics.errors)
        self._outbox.add(pieces, statistics, arrived, answered)

    async def _send_much(self) -> None:
        """Send although there are more requests to handle."""
        self._machine.park()
        await self._send()

    async def _send(self) -> None:
        claim = self._claim if self._claim is not None and self._claim.state is ClaimState.SENDING else None
        await self._outbox.send(self._transport, claim)
        if claim is not None:
            self._release(claim)

    async def _take_memory(
        self, memory: RequestMemory, size: int, whole: int = 0, *, phase: Phase = Phase.TAKING_MEMORY
    ) -> None:
        """Wait until a large request may take `size` more bytes; `whole`: the most that it will take in all."""
        if self._claim is None:
            self._claim = Claim(self.end, self._go_on)
            self._memory = memory
        self._activity.enter(phase)
        await self._ask(self._claim, memory, size, whole)

    async def _ask(self, claim: Claim, memory: RequestMemory, size: int, whole: int = 0) -> None:
        _grant(memory.take(claim, size, trio.current_time(), whole))
        while claim.state is ClaimState.WAITING:
            self._machine.park()
            self._granted = trio.Event()
            await self._wait_meanwhile(self._granted.wait)
        self._read_on()

    def _release(self, claim: Claim) -> None:
        elements, self._claim, self._elements = self._elements, None, None
        for each, memory in (claim, self._memory), (elements, self._shared.memories.decoded):
            if each is not None:
                _grant(memory.release(each))

    def _go_on(self) -> None:
        if self._granted is not None:
            self._granted.set()


def _first_state(shared: Shared, authenticator: Authenticator | None) -> tuple[Handler, ServerConnection]:
    """Return the handler and the machine of a new connection (invariant F)."""
    if authenticator is None:
        return shared.handle, ServerConnection(shared.max_request_bytes, shared.apis, shared.buffer)
    machine = ServerConnection(authenticator.max_request_bytes, OPEN_TO_STRANGERS, shared.buffer)
    return authenticator.handle, machine


def _grant(claims: Sequence[Claim]) -> None:
    for claim in claims:
        claim.on_granted()
