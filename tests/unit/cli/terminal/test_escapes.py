r"""Escapes of texts and of delimiters: a delimiter with a backslash that begins no escape goes on meaning itself."""

import pytest

from pipeline.cli.terminal.escapes import unescape, unescape_delimiter
from pipeline.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        (r"\t", b"\t"),
        (r"\n\r\0", b"\n\r\0"),
        (r"\x1e", b"\x1e"),
        (r"\x7", b"\x07"),
        (r"\xfff", b"\xfff"),
        ("\\", b"\\"),
        (r"\\", rb"\\"),
        (r"\|", rb"\|"),
        (r"\x", rb"\x"),
        (r"\x5ct", rb"\t"),
        ("::", b"::"),
        ("é", "é".encode()),
        ("\udcff", b"\xff"),
    ],
)
def test_a_delimiter_has_escapes_and_other_backslashes(text: str, delimiter: bytes) -> None:
    assert unescape_delimiter("-K", text) == delimiter


def test_a_delimiter_must_not_be_empty() -> None:
    assert unescape_delimiter("-K", None) is None
    with pytest.raises(ConfigurationError, match="must not be empty"):
        unescape_delimiter("-K", "")


def test_a_layout_has_no_backslash_that_is_no_escape() -> None:
    assert unescape("--format", r"a\\t\t\x41\0") == b"a\\t\tA\0"
    for text in ("\\", r"\q", r"\x", r"\xg"):
        with pytest.raises(ConfigurationError, match="escapes are"):
            unescape("--format", text)
