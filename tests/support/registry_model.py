"""A schema registry that answers as Confluent's does, from dictionaries: a second one that commands must work with.

It knows contexts, modes, references, pages and soft deletes, stores canonical texts instead of those that it was given,
and says of compatibility what the test says. Every request is counted.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import trio

from pipeline.client.registry.client import SchemaRegistryError

EVERYWHERE = ":.__GLOBAL:"
"""Settings of all contexts; those without a scope are of the default context alone."""
DEFAULT_CONFIG = {"compatibilityLevel": "BACKWARD"}
TYPES = ("JSON", "PROTOBUF", "AVRO")


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RegistryModel:
    """State by qualified subject. `page` bounds lists, `why_incompatible` gives the reasons against a schema."""

    def __init__(self, *, page: int = 3) -> None:
        self.page = page
        self.schemas: dict[tuple[str, int], dict[str, Any]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.modes: dict[str, str] = {}
        self.why_incompatible: Callable[[str, dict[str, Any]], list[str]] = lambda subject, body: []
        self.requests: list[tuple[str, str]] = []

    def context(self, subject: str) -> str:
        return subject[: subject.index(":", 1) + 1] if subject.startswith(":.") else ""

    def mode_of(self, subject: str) -> str:
        return str(self.setting(self.modes, subject, 40409, True, "READWRITE"))

    def versions(self, subject: str, deleted: bool = False) -> list[int]:
        found = sorted(v for (s, v), e in self.schemas.items() if s == subject and (deleted or not e["deleted"]))
        if not found:
            raise Refused(40401, f"Subject '{subject}' not found.")
        return found

    def entry(self, subject: str, version: str, deleted: bool = False) -> dict[str, Any]:
        numbers = self.versions(subject, deleted)
        number = numbers[-1] if version == "latest" else int(version)
        if number not in numbers:
            raise Refused(40402, f"Version {version} not found.")
        return self.schemas[subject, number]

    def referrers(self, subject: str, version: int, deleted: bool) -> list[int]:
        return sorted(
            entry["id"]
            for (other, _), entry in self.schemas.items()
            if (deleted or not entry["deleted"])
            for reference in entry["references"]
            if version == reference["version"]
            and subject in (reference["subject"], self.context(other) + reference["subject"])
        )

    def register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        mode, schema_id, number = self.mode_of(subject), body.get("id"), body.get("version", 0)
        if mode.startswith("READONLY") or (schema_id is None) != (mode == "READWRITE"):
            raise Refused(42205, f"Subject {subject} is in mode {mode}")
        content = canonical(body)
        same = [e for (s, _), e in sorted(self.schemas.items()) if s == subject and content_of(e) == content]
        live = [entry for entry in same if not entry["deleted"] and schema_id in (None, entry["id"])]
        if live and number in (0, *(entry["version"] for entry in live)):
            return next(entry for entry in live if number in (0, entry["version"]))
        for reference in content["references"]:
            self.entry(self.qualified(subject, reference["subject"]), str(reference["version"]), deleted=True)
        if mode == "READWRITE" and (reasons := self.why_incompatible(subject, body)):
            raise Refused(409, "; ".join(reasons))
        in_context = [(s, e) for (s, _), e in self.schemas.items() if self.context(s) == self.context(subject)]
        holders = [e for _, e in in_context if e["id"] == schema_id]
        if any(content_of(entry) != content for entry in holders):
            raise Refused(42205, f"Overwrite new schema with id {schema_id} is not permitted.")
        if schema_id is None:
            known = [entry["id"] for _, entry in in_context if content_of(entry) == content]
            schema_id = known[0] if known else max([e["id"] for _, e in in_context], default=0) + 1
        number = number or max((v for s, v in self.schemas if s == subject), default=0) + 1
        for (other, version), entry in list(self.schemas.items()):
            is_older = other == subject and version < number and entry["deleted"] and entry["id"] == schema_id
            if is_older and not self.referrers(subject, version, True):
                del self.schemas[other, version]
        entry = {"subject": subject, "version": number, "id": schema_id, **content, "deleted": False}
        self.schemas[subject, number] = entry
        return entry

    def qualified(self, subject: str, name: str) -> str:
        return name if name.startswith(":.") else self.context(subject) + name

    def look_up(self, subject: str, body: dict[str, Any], deleted: bool) -> dict[str, Any]:
        content = canonical(body)
        for number in reversed(self.versions(subject, deleted)):
            if content_of(self.schemas[subject, number]) == content:
                return self.schemas[subject, number]
        raise Refused(40403, "Schema not found")

    def delete(self, subject: str, version: str | None, permanent: bool) -> Any:
        if self.mode_of(subject).startswith("READONLY"):
            raise Refused(42205, f"Subject {subject} is in read-only mode")
        numbers = self.versions(subject, True)
        numbers = numbers if version is None else [self.entry(subject, version, True)["version"]]
        entries = [self.schemas[subject, number] for number in numbers]
        live = [entry for entry in entries if not entry["deleted"]]
        if permanent and live:
            raise Refused(40405 if version is None else 40407, "was not deleted first before being permanently deleted")
        if not permanent and not live:
            raise Refused(40404 if version is None else 40406, "was soft deleted. Set permanent=true")
        for entry in entries if permanent else live:
            if self.referrers(subject, entry["version"], permanent):
                raise Refused(42206, f"One or more references exist to the schema {subject} {entry['version']}")
            if permanent:
                del self.schemas[subject, entry["version"]]
            else:
                entry["deleted"] = True
        answer = [entry["version"] for entry in (entries if permanent else live)]
        return answer if version is None else answer[0]

    def set_mode(self, scope: str, body: dict[str, Any], force: bool) -> dict[str, Any]:
        mode = body["mode"]
        if mode not in ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"):
            raise Refused(42204, "Invalid mode")
        if mode == "IMPORT" and self.mode_of(scope) != "IMPORT" and not force:
            if any(not e["deleted"] for (s, _), e in self.schemas.items() if s.startswith(scope)):
                raise Refused(42205, "Cannot import since found existing subjects")
            self.schemas = {key: e for key, e in self.schemas.items() if not key[0].startswith(scope)}
        self.modes[scope] = mode
        return body

    def set_config(self, scope: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.mode_of(scope).startswith("READONLY"):
            raise Refused(42205, f"Subject {scope} is in read-only mode")
        given = {"compatibilityLevel" if name == "compatibility" else name: value for name, value in body.items()}
        self.configs[scope] = {**self.configs.get(scope, {}), **given}
        return body

    def setting(self, found: dict[str, Any], scope: str, code: int, inherited: bool, default: Any) -> Any:
        chain = [scope, self.context(scope), EVERYWHERE] if inherited else [scope]
        value = next((found[each] for each in chain if each in found), None)
        if value is None and (inherited or scope in ("", EVERYWHERE)):
            return default
        if value is None:
            raise Refused(code, f"{scope} has no such setting of its own")
        return value

    def answer(self, method: str, parts: list[str], query: dict[str, str], body: dict[str, Any]) -> Any:
        """Answer a request to a path, given in parts."""
        deleted, permanent = query.get("deleted") == "true", query.get("permanent") == "true"
        inherited = query.get("defaultToGlobal") == "true"
        prefix = query.get("subjectPrefix", "").removeprefix(":*:")
        match method, *parts:
            case "GET", "subjects":
                found = {
                    s for (s, _), e in self.schemas.items() if s.startswith(prefix) and (deleted or not e["deleted"])
                }
                return self.paged(sorted(found), query)
            case "GET", "schemas":
                entries = sorted(self.schemas.items())
                return self.paged(
                    [e for (s, _), e in entries if s.startswith(prefix) and (deleted or not e["deleted"])], query
                )
            case "GET", "contexts":
                return [".", *sorted({self.context(s)[1:-1] for s, _ in self.schemas} - {""})]
            case "GET", "schemas", "types":
                return list(TYPES)
            case "GET", "schemas", "ids", number, *rest:
                context = self.context(query.get("subject", ""))
                of_id = [
                    e for e in self.schemas.values() if e["id"] == int(number) and self.context(e["subject"]) == context
                ]
                if not of_id:
                    raise Refused(40403, f"Schema {number} not found")
                return [{k: e[k] for k in ("subject", "version")} for e in of_id] if rest else content_of(of_id[0])
            case "GET", "subjects", subject, "versions":
                return self.paged(self.versions(subject, deleted), query)
            case "GET", "subjects", subject, "versions", version:
                return self.entry(subject, version, deleted)
            case "GET", "subjects", subject, "versions", version, "referencedby":
                return self.referrers(subject, self.entry(subject, version)["version"], False)
            case "POST", "subjects", subject:
                return self.look_up(subject, body, deleted)
            case "POST", "subjects", subject, "versions":
                return {"id": self.register(subject, body)["id"]}
            case "POST", "compatibility", "subjects", subject, "versions":
                canonical(body)
                reasons = self.why_incompatible(subject, body)
                return {"is_compatible": not reasons, "messages": reasons}
            case "DELETE", "subjects", subject:
                return self.delete(subject, None, permanent)
            case "DELETE", "subjects", subject, "versions", version:
                return self.delete(subject, version, permanent)
            case "GET", "config", *scope:
                return self.setting(self.configs, "".join(scope), 40408, inherited, DEFAULT_CONFIG)
            case "PUT", "config", *scope:
                return self.set_config("".join(scope), body)
            case "DELETE", "config", *scope:
                self.setting(self.configs, "".join(scope), 40408, False, DEFAULT_CONFIG)
                return self.configs.pop("".join(scope), DEFAULT_CONFIG)
            case "GET", "mode", *scope:
                return {"mode": self.setting(self.modes, "".join(scope), 40409, inherited, "READWRITE")}
            case "PUT", "mode", *scope:
                return self.set_mode("".join(scope), body, query.get("force") == "true")
            case "DELETE", "mode", *scope:
                self.setting(self.modes, "".join(scope), 40409, False, "READWRITE")
                return {"mode": self.modes.pop("".join(scope), "READWRITE")}
        raise Refused(404, "HTTP 404 Not Found")

    def paged(self, items: list[Any], query: dict[str, str]) -> list[Any]:
        limit, offset = int(query.get("limit", -1)), int(query.get("offset", 0))
        return items[offset : offset + (self.page if limit < 0 else min(limit, self.page))]


def canonical(body: dict[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(json.loads(body["schema"])) if body.get("schemaType", "AVRO") == "AVRO" else body["schema"]
    except (ValueError, RecursionError) as error:
        raise Refused(42201, f"Invalid schema: {error}") from error
    kind = {"schemaType": body["schemaType"]} if body.get("schemaType", "AVRO") != "AVRO" else {}
    return {**kind, "references": body.get("references") or [], "schema": text}


def content_of(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("schemaType", "references", "schema") if name in entry}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that leave before their answer."""


@contextmanager
def serving_model(model: RegistryModel) -> Iterator[str]:
    """Serve the registry until the block ends; gives its URL."""
    turn = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet, which no delayed acknowledgement holds back

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            url = urlsplit(self.path)
            parts = [unquote(part) for part in url.path.split("/") if part]
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            with turn:
                model.requests.append((self.command, self.path))
                try:
                    status, answer = 200, model.answer(self.command, parts, query, body)
                except Refused as refused:
                    status = refused.code if refused.code < 1000 else refused.code // 100
                    answer = {"error_code": refused.code, "message": str(refused)}
                content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class DirectCalls:
    """Calls of a client to the model, without HTTP."""

    def __init__(self, model: RegistryModel) -> None:
        self._model = model
        self.requests: list[tuple[str, str]] = []

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        self.requests.append((method, path))
        await trio.lowlevel.checkpoint()
        url = urlsplit(path)
        parts = [unquote(part) for part in url.path.split("/") if part]
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        try:
            return json.loads(json.dumps(self._model.answer(method, parts, query, json.loads(json.dumps(body or {})))))
        except Refused as refused:
            status = refused.code if refused.code < 1000 else refused.code // 100
            raise SchemaRegistryError(status, refused.code, str(refused)) from refused
