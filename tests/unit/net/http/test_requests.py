import contextlib
from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.model import HostPort
from pipeline.net.http.connections import RECEIVED_BYTES
from pipeline.net.http.exchange import http_scope
from pipeline.net.http.requests import MAX_HEADERS, MAX_UNFINISHED_BYTES, BadRequestError, RequestParser

Parsed = list[tuple[str, bytes, list[tuple[bytes, bytes]], bytes]]

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
TOKENS = st.text("abcXYZ019-", min_size=1, max_size=8)
VALUES = st.text("ab ,;=/%\t", max_size=10).map(str.strip)
HEADERS = st.lists(st.tuples(TOKENS.map(lambda name: f"X-{name}"), VALUES), max_size=4)


@st.composite
def request_bytes(draw: st.DrawFn) -> bytes:
    """A request with or without a body, whose length or chunks are told."""
    lines = [f"{draw(st.sampled_from(['GET', 'POST', 'PUT', 'DELETE']))} /{draw(TOKENS)}?{draw(TOKENS)} HTTP/1.1"]
    lines += ["Host: registry", *(f"{name}: {value}" for name, value in draw(HEADERS))]
    body = draw(st.binary(max_size=50))
    match draw(st.sampled_from(["none", "length", "chunks"])):
        case "none":
            sent = b""
        case "length":
            lines.append(f"Content-Length: {len(body)}")
            sent = body
        case _:
            lines.append("Transfer-Encoding: chunked")
            parts = [body[:20], body[20:]]
            sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\nTrailer: t\r\n\r\n"
    return "\r\n".join([*lines, "", ""]).encode() + sent


def parsed(pieces: list[bytes]) -> Parsed:
    parser = RequestParser()
    for piece in pieces:
        parser.feed(piece)
    assert all(request.is_complete for request in parser.requests)
    assert parser.is_between_requests
    parser.close()
    return [(request.method, request.target, request.headers, b"".join(request.parts)) for request in parser.requests]


def parsed_by_h11(stream: bytes) -> Parsed:
    connection, found = h11.Connection(h11.SERVER), Parsed()
    connection.receive_data(stream)
    while isinstance(event := connection.next_event(), h11.Request):
        body = b""
        while isinstance(part := connection.next_event(), h11.Data):
            body += bytes(part.data)
        found.append((event.method.decode(), event.target, list(event.headers), body))
        connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()
    return found


@given(st.lists(request_bytes(), min_size=1, max_size=3), st.lists(st.integers(1, 400)))
def test_requests_in_any_pieces_are_those_that_h11_reads(requests: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(requests)
    bounds = [0, *sorted(cut for cut in set(cuts) if cut < len(stream)), len(stream)]
    pieces = [stream[begin:end] for begin, end in pairwise(bounds)]
    assert parsed(pieces) == parsed_by_h11(stream)


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: identity\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n", 400),
        (POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', 400),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding:\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nEndless: " + b"a" * 2 * MAX_UNFINISHED_BYTES, 431),
        (b"GET /" + b"a" * 2 * MAX_UNFINISHED_BYTES, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A:\r\n" * MAX_HEADERS + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 2 * MAX_UNFINISHED_BYTES, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 40_000, 431),
    ],
)
@pytest.mark.parametrize("size", [1000, RECEIVED_BYTES])
def test_what_is_no_request_is_refused(stream: bytes, status: int, size: int) -> None:
    good, parser = b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n", RequestParser()
    parser.feed(good)
    with pytest.raises(BadRequestError) as caught:
        for begin in range(0, len(stream), size):
            parser.feed(stream[begin : begin + size])
    assert caught.value.status == status
    assert parser.requests[0].target == b"/good"
    parser.close()


def test_an_offer_of_another_protocol_is_declined_and_the_body_read() -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    stream = (
        b"POST /a?b HTTP/1.1\r\nHost: a\r\n" + offer + b"Content-Length: 3\r\n\r\nabcGET /c HTTP/1.1\r\nHost: a\r\n\r\n"
    )
    for pieces in ([stream], [stream[number : number + 1] for number in range(len(stream))]):
        found = parsed(pieces)
        assert [(method, target, body) for method, target, _, body in found] == [
            ("POST", b"/a?b", b"abc"),
            ("GET", b"/c", b""),
        ]
        assert b"upgrade" not in dict(found[0][2])


ADDRESS = HostPort("127.0.0.1", 1)


@given(
    request_bytes(),
    st.lists(st.tuples(st.integers(0, 120), st.binary(min_size=1, max_size=4)), max_size=3),
    st.sampled_from([b"/", b"http://[", b"http://[::1", b"//", b"*", b"a:b", b"http://\xff", b"/%zz%00", b"http://a?"]),
)
def test_no_bytes_raise_anything_else(stream: bytes, changes: list[tuple[int, bytes]], target: bytes) -> None:
    stream = stream.replace(b"/", target, 1)
    for place, instead in changes:
        stream = stream[:place] + instead + stream[place + 1 :]
    parser = RequestParser()
    with contextlib.suppress(BadRequestError):
        parser.feed(stream)
    for request in parser.requests:
        with contextlib.suppress(BadRequestError):
            assert http_scope(request, ADDRESS, ADDRESS)["type"] == "http"
    parser.close()
