"""Model of a registry as its documentation describes it: plain dictionaries, no log, no classes of the project.

Schemas are four texts, of which `USER` needs the type that `BASE` defines. A refusal is returned as its code.
"""

from dataclasses import dataclass, field
from typing import Any, Final

INT, LONG = '"int"', '"long"'
BASE = '{"type":"record","name":"Base","fields":[]}'
USER = '{"type":"array","items":"Base"}'
TEXTS: Final = (INT, LONG, BASE, USER)
GLOBAL: Final = ":.__GLOBAL:"

Reference = tuple[str, int]
"""Subject and version; version -1 is the latest. All bear one name."""


@dataclass
class Row:
    """A version."""

    id: int
    text: str
    references: tuple[Reference, ...]
    deleted: bool = False

    @property
    def schema(self) -> Any:
        return self.text, self.references


@dataclass
class DocumentedRegistry:
    """What clients may expect."""

    subjects: dict[str, dict[int, Row]] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    levels: dict[str | None, str] = field(default_factory=dict)
    modes: dict[str | None, str] = field(default_factory=dict)
    contexts: set[str] = field(default_factory=set)

    def rows(self, subject: str) -> dict[int, Row]:
        return self.subjects.get(subject, {})

    def live(self, subject: str) -> dict[int, Row]:
        return {number: row for number, row in self.rows(subject).items() if not row.deleted}

    def of_context(self, context: str) -> list[Row]:
        return [row for name, rows in self.subjects.items() if split(name)[0] == context for row in rows.values()]

    def in_force(self, settings: dict[str | None, str], scope: str | None, default: str) -> str:
        context = split(scope or "")[0]
        for one in (scope, None if context == "." else f":{context}:", GLOBAL):
            if one in settings:
                return settings[one]
        return default

    def level(self, scope: str | None) -> str:
        return self.in_force(self.levels, scope, "BACKWARD")

    def mode(self, scope: str | None) -> str:
        if self.modes.get(None) == "READONLY_OVERRIDE":
            return "READONLY_OVERRIDE"
        return self.in_force(self.modes, scope, "READWRITE")

    def needed(self, subject: str, references: tuple[Reference, ...]) -> list[Row] | None:
        """Return what a schema needs, or None if something does not exist."""
        found: dict[Any, Row] = {}
        for name, number in references:
            target = beside(subject, name)
            row = self.rows(target).get(number)
            inner = None if row is None else self.needed(target, row.references)
            if row is None or inner is None:
                return None
            for one in (*inner, row):
                found[id(one)] = one
            found |= {}
        unique: dict[Any, Row] = {}
        for row in found.values():
            unique.setdefault((self.context_of_row(row), row.id), row)
        return list(unique.values())

    def needs_deleted(self, subject: str, references: tuple[Reference, ...]) -> bool:
        """Return True if a schema with these references, which exist, needs a soft-deleted version."""
        used = [(beside(subject, name), number) for name, number in references]
        return any(
            self.rows(target)[number].deleted or self.needs_deleted(target, self.rows(target)[number].references)
            for target, number in used
        )

    def context_of_row(self, wanted: Row) -> str:
        return next(split(name)[0] for name, rows in self.subjects.items() if any(r is wanted for r in rows.values()))

    def referrers(self, subject: str, number: int, *, deleted: bool) -> list[tuple[str, int]]:
        return sorted(
            (name, version)
            for name, rows in self.subjects.items()
            for version, row in rows.items()
            if (deleted or not row.deleted)
            and any((beside(name, target), used) == (subject, number) for target, used in row.references)
        )

    def register(
        self, subject: str, text: str, references: tuple[Reference, ...], wanted_id: int | None, wanted: int | None
    ) -> Any:
        resolved = []
        for name, number in references:
            if number == -1:
                number = max(self.live(beside(subject, name)), default=0)
            resolved.append((name, number))
        references = tuple(resolved)
        needed = self.needed(subject, references)
        if needed is None:
            return 42201
        bases = sum(row.text == BASE for row in needed) + (text == BASE)
        if text == USER and not bases:
            return 42201
        schema = text, references
        for number, row in sorted(self.live(subject).items(), reverse=True):
            same = row.schema == schema and wanted_id in {None, row.id}
            if same and (wanted is None or (wanted == number and wanted_id is not None)):
                return row.id, number
        mode = self.mode(subject)
        if mode != ("READWRITE" if wanted_id is None else "IMPORT"):
            return 42205
        if wanted_id is None and self.needs_deleted(subject, references):
            return 42201
        number = max(self.rows(subject), default=0) + 1
        context = split(subject)[0]
        if wanted_id is None:
            if wanted not in {None, number}:
                return 42201
            if not self.compatible(subject, text, references):
                return 409
            equal = [row.id for row in self.of_context(context) if row.schema == schema]
            schema_id = self.first_id(context, schema) if equal else self.highest.get(context, 0) + 1
        else:
            schema_id = wanted_id
            number = wanted or number
            if any(row.id == wanted_id and row.schema != schema for row in self.of_context(context)):
                return 42205
            held = self.rows(subject).get(number)
            if held is not None and held.id != wanted_id:
                return 42205
        self.write(subject, number, Row(schema_id, text, references))
        return schema_id, number

    def first_id(self, context: str, schema: Any) -> int:
        """Return the id of equal schemas: of several, the lowest."""
        return min(row.id for row in self.of_context(context) if row.schema == schema)

    def write(self, subject: str, number: int, row: Row) -> None:
        context = split(subject)[0]
        self.contexts |= {context} - {"."}
        self.highest[context] = max(self.highest.get(context, 0), row.id)
        self.subjects.setdefault(subject, {})[number] = row
        for earlier, old in list(self.rows(subject).items()):
            unused = not self.referrers(subject, earlier, deleted=True)
            if earlier < number and old.deleted and old.id == row.id and unused:
                self.remove(subject, earlier)

    def compatible(self, subject: str, text: str, references: tuple[Reference, ...]) -> bool:
        if self.level(subject) == "NONE" or not self.live(subject):
            return True
        return (text, self.live(subject)[max(self.live(subject))].text) in {
            (INT, INT),
            (LONG, LONG),
            (LONG, INT),
            (BASE, BASE),
            (USER, USER),
        }

    def remove(self, subject: str, number: int) -> None:
        del self.subjects[subject][number]
        if not self.subjects[subject]:
            del self.subjects[subject]

    def forget_settings(self, subject: str) -> None:
        self.levels.pop(subject, None)
        self.modes.pop(subject, None)

    def delete_version(self, subject: str, number: int, *, permanent: bool) -> Any:
        row = self.rows(subject).get(number)
        if row is None:
            return 40402 if self.rows(subject) else 40401
        if row.deleted and not permanent:
            return 40406
        if self.mode(subject).startswith("READONLY"):
            return 42205
        if self.referrers(subject, number, deleted=permanent):
            return 42206
        if not permanent:
            row.deleted = True
        elif row.deleted:
            self.remove(subject, number)
        else:
            return 40407
        if not (self.rows(subject) if permanent else self.live(subject)):
            self.forget_settings(subject)
        return number

    def delete_subject(self, subject: str, *, permanent: bool) -> Any:
        if not self.rows(subject):
            return 40401
        chosen = self.rows(subject) if permanent else self.live(subject)
        if not chosen:
            return 40404
        if self.mode(subject).startswith("READONLY"):
            return 42205
        users = [user for number in chosen for user in self.referrers(subject, number, deleted=permanent)]
        if any(name != subject for name, _ in users):
            return 42206
        if permanent and self.live(subject):
            return 40405
        numbers = sorted(chosen)
        if permanent:
            del self.subjects[subject]
        else:
            for row in chosen.values():
                row.deleted = True
        self.forget_settings(subject)
        return numbers

    def set_mode(self, scope: str | None, mode: str, *, force: bool) -> Any:
        if mode == "IMPORT" and self.mode(scope) != "IMPORT" and not force:
            inside = [name for name in self.subjects if within(scope, name)]
            if any(self.live(name) for name in inside):
                return 42205
            users = [
                user
                for name in inside
                for number in self.rows(name)
                for user, _ in self.referrers(name, number, deleted=True)
            ]
            if any(user not in inside for user in users):
                return 42206
            for name in inside:
                del self.subjects[name]
        self.modes[scope] = mode
        return mode

    def delete_context(self, context: str) -> Any:
        if any(split(name)[0] == context for name in self.subjects):
            return 42211
        self.contexts.discard(context)
        return None


def split(subject: str) -> tuple[str, str]:
    if not subject.startswith(":."):
        return ".", subject
    context, _, name = subject[1:].partition(":")
    return context, name


def beside(parent: str, subject: str) -> str:
    context = split(parent)[0]
    return subject if subject.startswith(":.") or context == "." else f":{context}:{subject}"


def within(scope: str | None, subject: str) -> bool:
    if scope in {None, GLOBAL, subject}:
        return True
    assert scope is not None
    context, name = split(scope)
    return not name and context == split(subject)[0]
