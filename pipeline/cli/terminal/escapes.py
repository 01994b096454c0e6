"""Delimiters and texts that users write with escapes, as kcat takes them. Pure."""

import os
import re

from pipeline.errors import ConfigurationError

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|.|$)", re.DOTALL)
_ESCAPE_OF_DELIMITER = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[nrt0])")
_NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def unescape(option: str, text: str) -> bytes:
    r"""Return the bytes of a text with the escapes \n, \r, \t, \0, \\ and \xNN.

    Bytes of the command line that are not UTF-8 stay as they are. Raises ConfigurationError for another escape.
    """

    def replacement(match: re.Match[bytes]) -> bytes:
        if match[1] not in _NAMED and not _ESCAPE_OF_DELIMITER.fullmatch(match[0]):
            raise ConfigurationError(option, f"{text!r}: escapes are \\n, \\r, \\t, \\0, \\\\ and \\xNN")
        return _byte(match)

    return _ESCAPE.sub(replacement, os.fsencode(text))


def unescape_delimiter(option: str, text: str | None) -> bytes | None:
    r"""Return the bytes of a text that must not be empty, with the escapes \n, \r, \t, \0 and \xNN; None for none.

    Any other backslash stands for itself: `-K '\'` and `-K '\\'` were delimiters before there were escapes.
    """
    if text is None:
        return None
    if not text:
        raise ConfigurationError(option, "must not be empty")
    return _ESCAPE_OF_DELIMITER.sub(_byte, os.fsencode(text))


def _byte(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    return bytes([int(escape[1:], 16)]) if escape[:1] == b"x" else _NAMED[escape]
