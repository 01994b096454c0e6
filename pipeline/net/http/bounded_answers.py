"""Requests to HTTP servers that may answer anything.

Invariants:
- No answer, also none that redirects, takes more memory than its caller allows. None is decompressed, and none leaves a
  cookie.
- At most MAX_REDIRECTS redirects are followed unless the caller says less, and none that changes the method.

Heavy import (httpx).
"""

import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from pipeline.net.http.login import NO_LOGIN, HttpLogin

MAX_REDIRECTS = 5
MAX_CAUSES = 10


def bounded_http_client(
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    login: HttpLogin = NO_LOGIN,
    context: ssl.SSLContext | None = None,
) -> httpx.AsyncClient:
    """Return a client for `bounded_answer`; close it. It asks for answers as they are, without compression.

    The login goes along no redirect to another server. `context`: that of TLS, None for that of the login. Raises
    ConfigurationError for certificates that cannot be read.
    """
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    given = {"Accept-Encoding": "identity", **headers, **login.headers()}
    verify = context or login.context() or True
    return httpx.AsyncClient(headers=given, timeout=timeout_s, cookies=no_cookies, verify=verify)


async def bounded_answer(
    http: httpx.AsyncClient, request: httpx.Request, *, max_bytes: int, max_redirects: int = MAX_REDIRECTS
) -> tuple[httpx.Response, bytearray]:
    """Send a request. Return the answer behind all redirects, and its content as it came.

    Raises ValueError for content of more than `max_bytes`, and for redirects that are not followed; httpx.HTTPError.
    """
    method = request.method
    for _ in range(1 + max_redirects):
        response, content = await _send_once(http, request, max_bytes)
        if response.next_request is None:
            return response, content
        request = response.next_request
        if request.method != method:
            target = request.url.copy_with(username=None, password=None)
            raise ValueError(f"it redirects {method} to {request.method} {target}")
    raise ValueError(f"more than {max_redirects} redirects")


async def _send_once(
    http: httpx.AsyncClient, request: httpx.Request, max_bytes: int
) -> tuple[httpx.Response, bytearray]:
    """Return an answer and its content as it came. httpx itself would open compressed content without a bound."""
    try:
        response = await http.send(request, stream=True)
    except httpx.ConnectError as error:
        fault = tls_fault(error)
        if fault is None:
            raise
        raise httpx.ConnectError(fault, request=request) from error
    try:
        content = bytearray()
        size_bytes = 0
        async for part in response.aiter_raw():  # to the end or the deadline: httpx leaves no loop before cleanly
            size_bytes += len(part)
            if size_bytes <= max_bytes:
                content += part
    finally:
        await response.aclose()
    if size_bytes > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return response, content


def tls_fault(error: BaseException | None) -> str | None:
    """Return a sentence about a handshake that failed, which httpx leaves out; None for another failure."""
    cause = _handshake_error(error)
    if cause is None:
        return None
    from pipeline.net.security.tls import fault_of

    return fault_of(cause)


def is_untrusted(error: BaseException) -> bool:
    """True if the server's certificate was not accepted."""
    return isinstance(_handshake_error(error), ssl.SSLCertVerificationError)


def _handshake_error(error: BaseException | None) -> ssl.SSLError | None:
    for _ in range(MAX_CAUSES):
        if error is None or isinstance(error, ssl.SSLError):
            break
        error = error.__cause__ or error.__context__
    return error if isinstance(error, ssl.SSLError) else None
