"""Delimiters and texts that users write with escapes, as kcat takes them. Pure."""

import os
import re

from pipeline.errors import ConfigurationError

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|.|$)", re.DOTALL)
_NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def unescape(option: str, text: str) -> bytes:
    r"""Return the bytes of a text with the escapes \n, \r, \t, \0, \\ and \xNN.

    Bytes of the command line that are not UTF-8 stay as they are. Raises ConfigurationError for another escape.
    """

    def replacement(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if escape[:1] == b"x" and len(escape) > 1:
            return bytes([int(escape[1:], 16)])
        if escape not in _NAMED:
            raise ConfigurationError(option, f"{text!r}: escapes are \\n, \\r, \\t, \\0, \\\\ and \\xNN")
        return _NAMED[escape]

    return _ESCAPE.sub(replacement, os.fsencode(text))


def unescape_delimiter(option: str, text: str | None) -> bytes | None:
    """Return the bytes of a text that must not be empty, by `unescape`; None if there is no text."""
    if text is None:
        return None
    if not text:
        raise ConfigurationError(option, "must not be empty")
    return unescape(option, text)
