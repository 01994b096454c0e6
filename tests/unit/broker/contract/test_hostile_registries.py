"""A registry that answers anything: each answer is a registry that cannot be asked, and lookups go on."""

import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from structlog.testing import capture_logs

from pipeline.broker.contract.lookups import SchemaLookups
from pipeline.broker.contract.registry import open_questions
from pipeline.broker.contract.verdicts import ContractVerdict, Patience, RefusalReason, SchemaQuestion, VerdictCache
from pipeline.broker.settings.contract import SubjectRule
from pipeline.hadoop.avro.datum_walk import compile_datums
from pipeline.net.http.bounded_answers import MAX_REDIRECTS
from pipeline.protocol.errors import MAX_DETAIL, ErrorCode, KafkaError

TIMEOUT_S = 60.0
MAX_MEMORY_BYTES = 64_000_000
MB = 1_000_000
GOOD = b'[{"subject": "t-value", "version": 1}]'
BOMB = gzip.compress(bytes(100 * MB), 1) * 2


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def compressed(status: str, *headers: str) -> bytes:
    return answer(BOMB, status, "Content-Encoding: gzip", *headers)


def large(megabytes: int, status: str = "200 OK", *headers: str) -> list[bytes]:
    head = answer(b"", status, *headers).replace(b"Content-Length: 0", b"Content-Length: %d" % (megabytes * MB))
    return [head, *[b" " * MB] * megabytes]


ANSWERS: dict[str, bytes | list[bytes]] = {
    "HTML": answer(b"<html><body>Sign in</body></html>", "200 OK", "Content-Type: text/html"),
    "HTML of an error": answer(b"<html>no such page</html>", "404 Not Found"),
    "no content": answer(b"", "204 No Content"),
    "a number": answer(b"7"),
    "an object": answer(b'{"subject": "t-value"}'),
    "a subject of another kind": answer(b'[{"subject": {"name": "t-value"}, "version": 1}]'),
    "error code of another kind": answer(b'{"error_code": [40403]}', "404 Not Found"),
    "invalid UTF-8": answer(b'[{"subject": "\xff\xfe\xfd"}]'),
    "UTF-16 cut off": answer('["é'.encode("utf-16")[:-1]),
    "nested": answer(nested(100_000)),
    "nested in a thread": answer(nested(1_000_000)),
    "a number of 5,000 digits": answer(b"9" * 5_000),
    "64 MB": large(64),
    "compressed": compressed("200 OK"),
    "redirect to itself": answer(b"", "302 Found", "Location: /schemas/ids/1/versions"),
    "redirect with a large compressed body": compressed("307 Temporary Redirect", "Location: /x"),
    "redirect with a large body": large(64, "308 Permanent Redirect", "Location: /x"),
    "redirect to no URL": answer(b"", "301 Moved", "Location: http://[::1"),
    "redirect to a host that is none": answer(b"", "301 Moved", "Location: http://xn--a.\xe9\xff..x/"),
    "redirect to a file": answer(b"", "301 Moved", "Location: file:///etc/hostname"),
    "redirect to nowhere": answer(b"", "301 Moved"),
    "an informational answer without an end": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    "no HTTP": b"SSH-2.0-OpenSSH_9.9\r\n",
    "a header without an end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "chunks that are none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "less than it says": answer(GOOD)[:-1],
    "nothing": b"",
    "a protocol that nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
}
OF_GUIDS: dict[str, tuple[bytes, bytes]] = {
    "a text of another kind": (b'{"schema": {"type": "string"}}', b"{}"),
    "a type of another kind": (b'{"schema": "\\"string\\"", "schemaType": 5}', b'{"id": 1}'),
    "an id that is a boolean": (b'{"schema": "\\"string\\""}', b'{"id": true}'),
    "an id beyond int32": (b'{"schema": "\\"string\\""}', b'{"id": 2147483648}'),
    "a negative id": (b'{"schema": "\\"string\\""}', b'{"id": -1}'),
    "references of another kind": (b'{"schema": "\\"string\\"", "references": {"a": 1}}', b'{"id": 1}'),
    "references without a version": (b'{"schema": "\\"string\\"", "references": [{"subject": "a"}]}', b'{"id": 1}'),
    "a reference to a version beyond all": (
        b'{"schema": "\\"string\\"", "references": [{"subject": "a", "version": 1e999}]}',
        b'{"id": 1}',
    ),
}


class Hostile:
    """Answers every request with `answer`, or with what `of_path` has for a part of its path; counts requests."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: bytes | list[bytes] = b""
        self.of_path: dict[bytes, bytes] = {}
        self.cookies: list[bytes] = []
        self.requests = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        received = b""
        try:
            while True:
                while b"\r\n\r\n" not in received:
                    more = await stream.receive_some()
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                received = b""  # bodies of requests are small, and come along
                self.requests += 1
                self.cookies += [line for line in head.split(b"\r\n") if line.lower().startswith(b"cookie:")]
                path = head.split(b" ")[1]
                given = next((found for part, found in self.of_path.items() if part in path), self.answer)
                for part in [given] if isinstance(given, bytes) else given:
                    await stream.send_all(part)
                if given is not self.answer or given != answer(GOOD):
                    await stream.aclose()
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


@asynccontextmanager
async def asked_registry() -> AsyncIterator[tuple[Hostile, SchemaLookups]]:
    hostile = Hostile()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, hostile.serve, 0, host="127.0.0.1"))
        hostile.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with open_questions([hostile.url], timeout_s=TIMEOUT_S, compile_schema=compile_datums) as questions:
            cache = VerdictCache(10, fresh_s=300, refused_s=0)
            lookups = SchemaLookups(cache, questions.judge, TIMEOUT_S)
            await nursery.start(lookups.run)
            yield hostile, lookups
        nursery.cancel_scope.cancel()


async def verdict_on(lookups: SchemaLookups, schema: int | bytes, *, decodes: bool = False) -> ContractVerdict:
    question = SchemaQuestion(schema, SubjectRule("t-value"), decodes)
    found = await lookups.settle([question], Patience(trio.current_time() + TIMEOUT_S, 1))
    return found[question]


async def verdict_of_a_good_registry(hostile: Hostile, lookups: SchemaLookups) -> ContractVerdict:
    hostile.answer = answer(GOOD)
    hostile.of_path = {}
    with trio.fail_after(TIMEOUT_S):
        while True:
            try:
                return await verdict_on(lookups, 2)
            except KafkaError:  # for a second after a silence
                await trio.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("kind", ANSWERS)
async def test_any_answer_is_a_registry_that_cannot_be_asked(kind: str) -> None:
    async with asked_registry() as (hostile, lookups):
        hostile.answer = ANSWERS[kind]
        tracemalloc.start()
        try:
            with capture_logs() as logs, pytest.raises(KafkaError) as caught:
                await verdict_on(lookups, 1)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert len(str(caught.value)) < 3 * MAX_DETAIL
        assert [(line["event"], line["log_level"]) for line in logs] == [("schema_registry_away", "warning")]
        assert peak_bytes < MAX_MEMORY_BYTES
        assert hostile.requests <= 1 + MAX_REDIRECTS
        assert (await verdict_of_a_good_registry(hostile, lookups)).reason is None


@pytest.mark.parametrize("kind", OF_GUIDS)
async def test_nonsense_about_a_guid_is_no_verdict(kind: str) -> None:
    async with asked_registry() as (hostile, lookups):
        text, found = OF_GUIDS[kind]
        hostile.of_path = {b"/guids/": answer(text), b"/subjects/": answer(found)}
        with pytest.raises(KafkaError) as caught:
            await verdict_on(lookups, b"g" * 16, decodes=True)
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert (await verdict_of_a_good_registry(hostile, lookups)).reason is None


async def test_an_unknown_id_is_refused_with_whatever_the_registry_sends_along() -> None:
    async with asked_registry() as (hostile, lookups):
        headers = [f"Set-Cookie: a{number}={'x' * 1000}" for number in range(50)]
        unknown = json.dumps({"error_code": 40403, "message": "\ud800" + "x" * 100_000}).encode()
        hostile.answer = answer(unknown, "404 Not Found", *headers, "X-Staleness-Seconds: -0")
        for schema_id in range(3):
            assert (await verdict_on(lookups, schema_id)).reason == RefusalReason.UNKNOWN_ID
        assert hostile.cookies == []


async def test_an_error_that_nobody_foresaw_is_a_registry_that_cannot_be_asked() -> None:
    async def judge(question: SchemaQuestion) -> ContractVerdict:
        if question.schema == 1:
            raise LookupError("\ud800" + "x" * 10_000)
        return ContractVerdict(None)

    async with trio.open_nursery() as nursery:
        lookups = SchemaLookups(VerdictCache(10, fresh_s=300, refused_s=0), judge, TIMEOUT_S)
        await nursery.start(lookups.run)
        with capture_logs() as logs, pytest.raises(KafkaError) as caught:
            await verdict_on(lookups, 1)
        assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert [type(line["exc_info"]) for line in logs] == [LookupError]
        assert (await verdict_on(lookups, 2)).reason is None
        nursery.cancel_scope.cancel()
