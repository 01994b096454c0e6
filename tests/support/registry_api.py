"""Requests to the registry's API, with the answers that are wanted."""

from collections.abc import Sequence
from typing import Any

INT, LONG, STRING = '"int"', '"long"', '"string"'
BASE = '{"type":"record","name":"Base","namespace":"n","fields":[{"name":"a","type":"int"}]}'
USER = '{"type":"record","name":"User","namespace":"n","fields":[{"name":"base","type":"Base"}]}'
REFERENCE = {"name": "n.Base", "subject": "base", "version": 1}
NONE: dict[str, Any] = {"compatibility": "NONE"}

Step = tuple[str, str, Any, Any]
"""Method, path, body, and the answer: a value, or an error code."""


def schema(text: str, *references: Any, **more: Any) -> Any:
    return {"schema": text, **({"references": list(references)} if references else {}), **more}


async def ask(http: Any, method: str, path: str, body: Any = None) -> Any:
    return await http.request(method, path, **({} if body is None else {"json": body}))


async def run(http: Any, steps: Sequence[Step]) -> None:
    """Answers are compared without GUIDs and texts: other tests look at these."""
    for method, path, body, wanted in steps:
        response = await ask(http, method, path, body)
        if isinstance(wanted, Code):
            assert (response.json()["error_code"], response.json()["message"] != "") == (wanted, True), (method, path)
            assert response.status_code == int(str(wanted)[:3])
        else:
            assert response.status_code in {200, 204}, (method, path, response.text)
            answer = response.json() if response.content else None
            assert plain(answer) == wanted, (method, path)


class Code(int):
    """An error code."""


def plain(answer: Any) -> Any:
    if isinstance(answer, list):
        return [plain(item) for item in answer]
    if isinstance(answer, dict):
        return {name: value for name, value in answer.items() if name not in {"guid", "schema"}}
    return answer


def put(subject: str, body: Any, schema_id: int, version: int) -> Step:
    return "POST", f"/subjects/{subject}/versions", body, {"id": schema_id, "version": version}
