"""Forwards requests that write to the registry that writes, and takes over from one that does not answer.

A request is carried out here first. If that raises NotWriterError, nothing was written, and the request as it came is
sent to the writer. Its answer is given once this registry has applied the write, too, so that a client that goes on
reading here finds what it wrote.

Invariants:

A. A request is forwarded once: it bears `X-Forward: true`, and a registry that gets it and is not the writer refuses.
   A registry over a mirrored topic does not know the writer for sure; it sends `X-Forward: once`, so that the registry
   that gets the request may forward it.
   The request names the latest writer that the sender knows. A registry that does not know it has another log, and
   refuses; an answer that is not that of a registry of this project is none.
B. A request of unknown outcome is sent again only after this registry has become the writer, which ends all that the
   former writer might still do. A deletion is not sent again, since it would be refused if it was carried out: the
   client is told to repeat it. That the writer cannot reach its log (50001, 50002) is such an outcome, too: this
   registry may reach it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import httpx
import trio
from prometheus_client import CollectorRegistry, Counter
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.diagnostics import get_logger
from pipeline.net.http.authentication import DENIED, REALM
from pipeline.net.http.bounded_answers import tls_fault
from pipeline.net.http.roles import http_user_of, refused_answer
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.writing.journal import JournalLostError
from pipeline.schema_registry.writing.log_writer import NotWriterError
from pipeline.schema_registry.writing.writers import parse_stamp

FORWARD: Final = "x-forward"
TRUE: Final = "true"
ONCE: Final = "once"
REFUSED: Final = "refused"
"""Value of FORWARD in an answer: the registry did nothing, as it is not the writer."""
WRITER: Final = "x-registry-writer"
"""The latest writer that the sender of a forwarded request knows."""
OFFSET: Final = "x-journal-offset"
MAX_ATTEMPTS: Final = 4
MAX_OFFSET_DIGITS: Final = 20
CLAIM_PATIENCE_S: Final = 1.0
"""Time in which a registry must have read the claim that another one, which forwards to it, has read."""
_PASSED_ON: Final = ("accept", "authorization", "content-type", "x-request-id")
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NEVER_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.InvalidURL,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)
_NOT_WRITTEN: Final = frozenset({Code.STORE_FAILED, Code.STORE_TIMED_OUT, Code.FORWARDING_FAILED})

CERTIFICATE_STAYS: Final = (
    "this registry does not write, and cannot pass your certificate on to the one that does: ask that one, or show a "
    "password or token"
)
logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSettings:
    """Targets of requests if the topic names no writer, and the time that each step may take."""

    urls: Sequence[str]
    connect_timeout_s: float
    read_timeout_s: float
    apply_timeout_s: float
    """Time that an answer waits until this registry has applied the write."""


class _RepeatableBody:
    """The body of a request, as it is read for the first time and again."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: list[Message] = []
        self._position = 0

    def rewind(self) -> None:
        self._position = 0

    async def receive(self) -> Message:
        if self._position == len(self._read):
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._read.append(message)
        self._position += 1
        return self._read[self._position - 1]

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self._read)


class ForwardedWrites:
    """ASGI middleware around the API of a registry."""

    def __init__(
        self,
        application: ASGIApp,
        service: RegistryService,
        http: httpx.AsyncClient,
        settings: ForwardSettings,
        metrics: CollectorRegistry,
    ) -> None:
        self._application = application
        self._service = service
        self._http = http
        self._settings = settings
        self._forwards = Counter(
            "registry_forwards_total",
            "Requests that this registry sent on to the writer, by outcome.",
            ["outcome"],
            registry=metrics,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out a request here, or pass on the writer's answer."""
        if scope["type"] != "http" or scope["method"] in _READS:
            await self._application(scope, receive, send)
            return
        body = _RepeatableBody(receive)
        headers = Headers(scope=scope)
        mark = headers.get(FORWARD, "")
        if mark and not await self._knows(headers.get(WRITER, "")):  # invariant A
            await _refusal("This registry has another log.", is_known=True)(scope, receive, send)
            return

        async def send_with_offset(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[OFFSET] = str(self._service.follower.next_offset)
            await send(message)

        for _ in range(MAX_ATTEMPTS):
            body.rewind()
            try:
                await self._application(scope, body.receive, send_with_offset if mark else send)
            except NotWriterError as refusal:
                answer = await self._answer(scope, body.content, mark, refusal)
            else:
                return
            if answer is not None:
                await answer(scope, receive, send_with_offset if mark else send)
                return
        await _refusal("The writer changed several times. Try again.")(scope, receive, send)

    async def _knows(self, writer: str) -> bool:
        """Return True unless the sender's log has a writer that this registry's log does not have."""
        stamp = parse_stamp(writer.encode())
        if stamp is not None:
            with trio.move_on_after(CLAIM_PATIENCE_S), suppress(JournalLostError):
                await self._service.follower.seen(stamp)
        return stamp is None or self._service.follower.fence.has_seen(stamp)

    async def _answer(self, scope: Scope, body: bytes, mark: str, refusal: NotWriterError) -> Response | None:
        if mark == TRUE or (mark and not self._service.writer.may_claim):  # invariant A
            return _refusal("This registry is not the writer.", is_known=True)
        try:
            return await self._forward(scope, body, refusal)
        except RegistryError as error:
            return JSONResponse({"error_code": int(error.code), "message": error.message}, error.status)

    async def _forward(self, scope: Scope, body: bytes, refusal: NotWriterError) -> Response | None:
        """Return the writer's answer; None if the request is to be carried out here again."""
        if http_user_of(scope) is not None and "authorization" not in Headers(scope=scope):
            return refused_answer(403, CERTIFICATE_STAYS)
        known = refusal.claim.url if refusal.claim is not None else ""
        if self._service.writer.may_claim:
            targets = [(known, TRUE)]
        else:
            targets = [(url, ONCE) for url in self._settings.urls] + [(known, TRUE)] * bool(known)
        is_lost, last = False, None
        for url, mark in targets:
            try:
                answer = await self._ask(scope, body, url, mark)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                is_lost = is_lost or not isinstance(error, _NEVER_SENT)
                self._forwards.labels("failed").inc()
                logger.warning(
                    "registry_writer_silent", url=url, epoch=refusal.epoch, error=tls_fault(error) or repr(error)
                )
            else:
                if answer.headers.get(FORWARD) == REFUSED:
                    self._forwards.labels("refused").inc()
                    continue
                if _is_closed_door(answer):
                    self._forwards.labels("denied").inc()
                    logger.warning("registry_writer_knows_other_users", url=url, status=answer.status_code)
                    return _passed_on(answer)
                if _is_confirmed(answer) and (OFFSET in answer.headers or mark == ONCE):
                    self._forwards.labels("answered").inc()
                    await self._until_applied(answer)
                    return _passed_on(answer)
                is_lost, last = True, answer
                self._forwards.labels("failed").inc()
                logger.warning("registry_writer_failed", url=url, epoch=refusal.epoch, status=answer.status_code)
            if is_lost and scope["method"] == "DELETE":  # invariant B
                break
        if last is not None and not self._service.writer.may_claim:
            return _passed_on(last)
        return await self._take_over(scope, refusal, is_lost=is_lost)

    async def _take_over(self, scope: Scope, refusal: NotWriterError, *, is_lost: bool) -> Response | None:
        if not self._service.writer.may_claim:
            reason = "was not confirmed, and may have been carried out" if is_lost else "was not carried out"
            return _refusal(f"The write {reason}: no registry that may write answers. Try again.")
        await self._service.writer.take_over(refusal.epoch)
        if is_lost and scope["method"] == "DELETE":  # invariant B
            return _refusal("The writer was lost during the deletion, which may have been carried out. Try again.")
        return None

    async def _ask(self, scope: Scope, body: bytes, url: str, mark: str) -> httpx.Response:
        given = Headers(scope=scope)
        headers = {name: given[name] for name in _PASSED_ON if name in given} | {FORWARD: mark}
        if scope["scheme"] == "https" and not url.startswith("https://"):  # what was encrypted stays so
            headers.pop("authorization", None)
        claim = self._service.follower.fence.current
        if claim is not None:
            headers[WRITER] = claim.stamp.encode().decode()
        query = scope["query_string"].decode("ascii", "replace")
        target = url.rstrip("/") + scope["raw_path"].decode("ascii", "replace") + (f"?{query}" if query else "")
        connect_s, read_s = self._settings.connect_timeout_s, self._settings.read_timeout_s
        timeout = httpx.Timeout(read_s, connect=connect_s)
        with trio.move_on_after(connect_s + read_s):  # the client's own times begin again with each byte
            return await self._http.request(scope["method"], target, content=body, headers=headers, timeout=timeout)
        raise httpx.ReadTimeout(f"the answer did not end within {connect_s + read_s:g} s")

    async def _until_applied(self, answer: httpx.Response) -> None:
        """Wait until this registry has applied what the writer had; not for ever, since a mirror may be behind."""
        offset = answer.headers.get(OFFSET, "")
        if offset.isdecimal() and len(offset) < MAX_OFFSET_DIGITS:
            with trio.move_on_after(self._settings.apply_timeout_s), suppress(JournalLostError):
                await self._service.follower.applied(int(offset))


def _is_closed_door(answer: httpx.Response) -> bool:
    """Return True if a registry of this project did not let the user in, and so did nothing.

    The registry that forwards did: their files of users differ. To take over would not help, but go back and forth.
    """
    return answer.status_code in DENIED and f'realm="{REALM}"' in answer.headers.get("www-authenticate", "")


def _is_confirmed(answer: httpx.Response) -> bool:
    """Return False if the registry that answered could not write, or does not know whether it was written."""
    if answer.status_code != 500:
        return True
    try:
        content = answer.json()
    except (ValueError, RecursionError):
        return False
    return not (isinstance(content, dict) and content.get("error_code") in _NOT_WRITTEN)


def _passed_on(answer: httpx.Response) -> Response:
    return Response(answer.content, answer.status_code, {}, answer.headers.get("content-type"))


def _refusal(reason: str, *, is_known: bool = False) -> Response:
    """Return 50003. `is_known`: it is known that nothing was written here."""
    headers = {FORWARD: REFUSED} if is_known else {}
    return JSONResponse({"error_code": int(Code.FORWARDING_FAILED), "message": reason}, 500, headers)
