"""Small documents at a URL: read from an HTTP server or a file, within bounds of bytes and redirects."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

import trio

if TYPE_CHECKING:  # programs without URLs would take the time and memory of TLS and HTTP, too
    from pipeline.net.security.tls_context import TlsTrust

MAX_DOCUMENT_BYTES = 1024 * 1024
READ_S = 10.0
"""Deadline of a read."""


def document_path(url: str) -> Path | None:
    """Return the path of a file: URL; None for http and https. Raises ValueError for another URL."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and parts.path:
        return Path(url2pathname(parts.path))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be a URL: https://..., http://... or file:/PATH")
    return None


def checked_url(url: str) -> str:
    """Return a URL that `fetch_document` takes. Raises ValueError."""
    document_path(url)
    return url


async def fetch_document(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    credentials: tuple[str, str] | None = None,
    trust: "TlsTrust | None" = None,
) -> bytes:
    """Read a document; the answer to a form, if one is given. `credentials`: user and password of basic authentication.

    No redirect is followed. The caller sets the deadline. Raises OSError, ValueError; ConfigurationError for trusted
    certificates that cannot be read.
    """
    path = document_path(url)
    if path is not None:
        return await trio.to_thread.run_sync(_read_file, path, abandon_on_cancel=True)
    import httpx

    from pipeline.net.http.bounded_answers import bounded_answer, bounded_http_client, is_untrusted
    from pipeline.net.security.tls_context import trusting_context

    context = None if trust is None else await trio.to_thread.run_sync(trusting_context, trust)
    try:
        async with bounded_http_client({"Accept": "application/json"}, timeout_s=READ_S, context=context) as http:
            request = http.build_request("GET" if form is None else "POST", url, data=form)
            if credentials is not None:
                request = next(httpx.BasicAuth(*credentials).auth_flow(request))
            answer, content = await bounded_answer(http, request, max_bytes=MAX_DOCUMENT_BYTES, max_redirects=0)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        advice = f"; {trust.setting} names who is trusted" if trust is not None and is_untrusted(error) else ""
        raise OSError(f"{type(error).__name__}: {error}{advice}") from error
    if answer.status_code != httpx.codes.OK:
        raise OSError(f"the answer has the status {answer.status_code}")
    return bytes(content)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"{path} has more than {MAX_DOCUMENT_BYTES} bytes")
    return content
