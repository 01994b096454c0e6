"""Makes the function that encodes the objects of a schema with fastavro, and checks what fastavro does not.

fastavro writes an integer of any size as an `int`, and cuts the fraction of a float in an `int` or `long`. The function
is made of source text, as dataclasses make theirs, and checks the fields in place: a walk over the schema costs as much
as the writing, and a call for each record some per cent. Union branches without a name are not checked here, since
fastavro checks them when it chooses the branch.
"""

import operator
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final, NoReturn

from fastavro import schemaless_writer

from pipeline.client.registry.avro_schemas import MAX_DEPTH, UsableSchema
from pipeline.client.registry.named_types import NAMED_TYPES, RECORD_TYPES

MIN_INT: Final = -(2**31)
MAX_INT: Final = 2**31 - 1
MIN_LONG: Final = -(2**63)
MAX_LONG: Final = 2**63 - 1


def compile_object_encoder(
    schema: UsableSchema, frame: bytes, refuse: Callable[[Exception], NoReturn]
) -> Callable[[Any], bytes | None]:
    """Return a function that encodes an object after a frame, and returns None for None.

    `refuse` raises an error of the program for the error of an object that does not match the schema: unknown fields,
    missing fields without a default, integers out of range.
    """
    compiler = _Compiler(schema.named)
    checks = compiler.of_object(schema.fastavro)
    depth = ["require_shallow(d)"] if schema.is_recursive else []
    source = [
        *compiler.functions,
        "def encode(d):",
        " if d is None: return None",
        " target = BytesIO()",
        " try:",
        *(f"  {line}" for line in (*depth, "write(target, schema, d, False, True)", *checks)),  # strict_allow_default
        " except Exception as error: refuse(error)",  # fastavro does not document its exceptions
        " return frame + target.getvalue()",
    ]
    scope: dict[str, Any] = {
        "BytesIO": BytesIO,
        "write": schemaless_writer,
        "schema": schema.fastavro,
        "frame": frame,
        "refuse": refuse,
        "require_int": require_int,
        "require_long": require_long,
        "require_shallow": require_shallow,
        "refuse_value": _refuse_value,
        "known_branch": _known_branch,
    }
    exec(compile("\n".join(source), "<encoder of an Avro schema>", "exec"), scope)
    encode: Callable[[Any], bytes | None] = scope["encode"]
    return encode


def require_int(value: Any, label: str) -> None:
    """Raise ValueError for a number that is no int of 32 bits; objects of logical types pass."""
    _require_between(value, label, MIN_INT, MAX_INT, "int of 32 bits")


def require_long(value: Any, label: str) -> None:
    """Raise ValueError for a number that is no int of 64 bits; objects of logical types pass."""
    _require_between(value, label, MIN_LONG, MAX_LONG, "long of 64 bits")


def require_shallow(datum: Any) -> None:
    """Raise ValueError for an object that nests more than MAX_DEPTH dicts and lists, or holds itself."""
    stack = [(datum, 0)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, dict):
            inner = value.values()
        elif isinstance(value, list | tuple):
            inner = value  # type: ignore[assignment]
        else:
            continue
        if depth > MAX_DEPTH:
            raise ValueError(f"it nests more than {MAX_DEPTH} objects")
        stack.extend((each, depth + 1) for each in inner)


def _require_between(value: Any, label: str, lowest: int, highest: int, what: str) -> None:
    if isinstance(value, float | bool):
        raise ValueError(f"{label}: {value!r} is no {what}")  # noqa: TRY004 - as for a number out of range
    try:
        number = operator.index(value)
    except TypeError:
        return
    if not lowest <= number <= highest:
        raise ValueError(f"{label}: {value!r} is no {what}")


def _refuse_value(value: Any, label: str, what: str) -> NoReturn:
    """Refuse what fastavro would write as true or as nothing."""
    raise ValueError(f"{label}: {value!r} is no {what}")


def _known_branch(branches: Mapping[str, Any], name: str, datum: Any) -> None:
    check = branches.get(name)
    if check is not None:
        check(datum)


class _Compiler:
    """Source text of the functions of one schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.functions: list[str] = []
        self._named = named
        self._of_names: dict[str, str | None] = {}
        self._bodies: dict[str, list[str]] = {}
        self._count = 0

    def of_object(self, schema: Any) -> list[str]:
        """Return statements that check the whole object, in the variable `d`."""
        if isinstance(schema, dict) and schema["type"] in RECORD_TYPES:
            self._named_type(schema["name"])
            return self._bodies[schema["name"]]
        return self.lines(schema, "d", "the object")

    def lines(self, schema: Any, value: str, label: str) -> list[str]:
        """Return statements that check the value of an expression."""
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict):
            return self.lines(kind, value, label)
        if isinstance(kind, list):
            function = self._union(kind)
            return [f"v = {value}", f"if v.__class__ is tuple: {function}(v)"] if function else []
        if kind == "int":
            return [
                f"v = {value}",
                f"if v.__class__ is not int or not {MIN_INT} <= v <= {MAX_INT}: require_int(v, {label!r})",
            ]
        if kind == "boolean":
            return [f"v = {value}", f"if v.__class__ is not bool: refuse_value(v, {label!r}, 'boolean')"]
        if kind == "null":
            return [f"v = {value}", f"if v is not None: refuse_value(v, {label!r}, 'null')"]
        if kind == "long":
            return [f"v = {value}", f"if v.__class__ is not int: require_long(v, {label!r})"]
        if kind in ("array", "map"):
            function = self._items(schema["items" if kind == "array" else "values"], label)
            return [f"{function}({value}{'' if kind == 'array' else '.values()'})"] if function else []
        if kind in RECORD_TYPES or (isinstance(schema, str) and schema in self._named):
            function = self._named_type(schema["name"] if isinstance(schema, dict) else schema)
            return [f"{function}({value})"] if function else []
        return []

    def _named_type(self, name: str) -> str | None:
        if name not in self._of_names:
            function = self._new_name()
            self._of_names[name] = function  # for uses within the type itself
            definition = self._named[name]
            body: list[str] = []
            for field in definition.get("fields", ()):
                body += self._field(field)
            self._bodies[name] = body
            if not body:
                self._of_names[name] = None
            self._define(function, "d", body or ["pass"])
        return self._of_names[name]

    def _field(self, field: Mapping[str, Any]) -> list[str]:
        name = field["name"]
        if "default" not in field:
            return self.lines(field["type"], f"d[{name!r}]", name)
        checked = self.lines(field["type"], "v", name)
        return [f"v = d.get({name!r})", "if v is not None:", *(f" {line}" for line in checked)] if checked else []

    def _items(self, items: Any, label: str) -> str | None:
        if isinstance(items, dict) and items["type"] in RECORD_TYPES:  # in the loop: a call for each item costs more
            self._named_type(items["name"])
            body = self._bodies[items["name"]]
            variable = "d"
        else:
            body, variable = self.lines(items, "v", label), "v"
        if not body:
            return None
        function = self._new_name()
        self._define(function, "items", [f"for {variable} in items:", *(f" {line}" for line in body)])
        return function

    def _union(self, branches: list[Any]) -> str | None:
        checks = {}
        for branch in branches:
            kind = branch["type"] if isinstance(branch, dict) else branch
            body = self.lines(branch, "v", "the object")
            if body:
                function = self._new_name()
                self._define(function, "v", body)
                checks[branch["name"] if isinstance(branch, dict) and kind in NAMED_TYPES else str(kind)] = function
        if not checks:
            return None
        function = self._new_name()
        table = ", ".join(f"{name!r}: {check}" for name, check in checks.items())
        self.functions.append(f"{function}_branches = {{{table}}}")
        self._define(function, "pair", [f"known_branch({function}_branches, *pair)"])
        return function

    def _new_name(self) -> str:
        self._count += 1
        return f"check_{self._count}"

    def _define(self, function: str, parameter: str, body: list[str]) -> None:
        self.functions += [f"def {function}({parameter}):", *(f" {line}" for line in body)]
