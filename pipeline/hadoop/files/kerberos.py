"""Kerberos for HDFS: a keytab by which hdfs-native, through MIT's library, gets its tickets and renews them.

The library reads the keytab's place from the environment of each process, so the driver and all workers need it.
Tickets are kept in the memory of the process. Source: MIT Kerberos, client keytabs and the format of their files.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import ConfigurationError

KEYTAB_SETTING = "spark.kerberos.keytab"
PRINCIPAL_SETTING = "spark.kerberos.principal"
CLIENT_KEYTAB = "KRB5_CLIENT_KTNAME"
TICKETS = "KRB5CCNAME"
MAX_KEYTAB_BYTES = 1 << 20

_MAGIC = b"\x05\x02"
_SHORT = struct.Struct("!H")
_INT = struct.Struct("!i")


def keytab_environment(keytab: Path, principal: str | None) -> Mapping[str, str]:
    """Return the environment variables of processes that log in by a keytab. Raises ConfigurationError.

    The library logs in as the first principal of the keytab, which must be `principal`, if that is given.
    """
    principal_of(keytab, principal)
    return {CLIENT_KEYTAB: f"FILE:{keytab.absolute()}", TICKETS: "MEMORY:pipeline"}


def keytab_settings(keytab: Path, principal: str | None) -> Mapping[str, str]:
    """Return the settings by which Spark's Java logs in to HDFS by a keytab. Raises ConfigurationError."""
    return {KEYTAB_SETTING: str(keytab.absolute()), PRINCIPAL_SETTING: principal_of(keytab, principal)}


def principal_of(keytab: Path, principal: str | None) -> str:
    """Return the first principal of a keytab, which `principal` must be, if given. Raises ConfigurationError."""
    found = _principals(keytab)
    if not found:
        raise ConfigurationError(KEYTAB_SETTING, f"{keytab} holds no key")
    if principal is not None and _with_realm(principal, found[0]) != found[0]:
        reason = f"is {principal}, but the first principal of {keytab} is {found[0]}: write a keytab with one alone"
        raise ConfigurationError(PRINCIPAL_SETTING, reason)
    return found[0]


def _with_realm(principal: str, other: str) -> str:
    return principal if "@" in principal else f"{principal}@{other.rpartition('@')[2]}"


def _principals(keytab: Path) -> Sequence[str]:
    try:
        with keytab.open("rb") as file:
            data = file.read(MAX_KEYTAB_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(KEYTAB_SETTING, f"{keytab} cannot be read: {error.strerror}") from error
    if not data.startswith(_MAGIC) or len(data) > MAX_KEYTAB_BYTES:
        raise ConfigurationError(KEYTAB_SETTING, f"{keytab} is not a keytab: make it by ktutil or kadmin's ktadd")
    try:
        return _parse(data)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ConfigurationError(KEYTAB_SETTING, f"{keytab} is damaged: copy it again") from error


def _parse(data: bytes) -> Sequence[str]:
    """Return the principals of the entries. An entry of negative size is a hole."""
    found: list[str] = []
    at = len(_MAGIC)
    while at < len(data):
        (size,) = _INT.unpack_from(data, at)
        at += _INT.size
        if size > 0:
            found.append(_principal(data[at : at + size]))
        at += abs(size)
    return found


def _principal(entry: bytes) -> str:
    """Return `part/part@REALM`: the number of parts, then realm and parts, each behind its length."""
    (count,) = _SHORT.unpack_from(entry)
    at, texts = _SHORT.size, []
    for _ in range(count + 1):
        (length,) = _SHORT.unpack_from(entry, at)
        at += _SHORT.size
        texts.append(entry[at : at + length].decode())
        if len(texts[-1].encode()) < length:
            raise IndexError(length)
        at += length
    return f"{'/'.join(texts[1:])}@{texts[0]}"
