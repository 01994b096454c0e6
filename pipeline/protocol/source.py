"""Source text for the code generators: lines with indentation, names for constants, compilation.

The generated code is straight-line Python for one message in one version: field after field, loops only for arrays,
runs of fixed-width fields (and the length that follows them) in one `struct` call.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import ProtocolError
from pipeline.protocol.schema import FieldDeclaration, declarations


class Source:
    """Source of one generated function. `constants` are its globals."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.constants: dict[str, Any] = {"ProtocolError": ProtocolError}
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Add a line at the present indentation."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Add a compound statement; lines added inside the context are its body."""
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, prefix: str) -> str:
        """Return a new local name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        """Return a global name for the value."""
        name = f"{prefix}_{len(self.constants)}"
        self.constants[name] = value
        return name

    def unpacker(self, formats: str) -> str:
        """Return the name of `Struct.unpack_from` for these formats."""
        name = f"unpack_{formats}".replace("?", "t")
        self.constants[name] = struct.Struct(f">{formats}").unpack_from
        return name

    def packer(self, formats: str) -> str:
        """Return the name of `Struct.pack` for these formats."""
        name = f"pack_{formats}".replace("?", "t")
        self.constants[name] = struct.Struct(f">{formats}").pack
        return name

    def compile(self, function: str, filename: str) -> Callable[..., Any]:
        """Run the source and return the function that it defines."""
        code = compile("\n".join(self._lines), filename, "exec")
        exec(code, self.constants)
        compiled: Callable[..., Any] = self.constants[function]
        return compiled

    def fields(self, cls: type) -> tuple[list[FieldDeclaration], list[FieldDeclaration], list[FieldDeclaration]]:
        """Return the fields of a struct in this version: plain ones, tagged ones by tag, and absent ones."""
        plain, tagged, absent = [], [], []
        for field in declarations(cls):
            if not field.exists_in(self.version) or (field.wire.tag is not None and not self.flexible):
                absent.append(field)
            elif field.wire.tag is None:
                plain.append(field)
            else:
                tagged.append(field)
        tagged.sort(key=lambda field: field.wire.tag or 0)
        return plain, tagged, absent
