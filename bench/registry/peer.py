"""A bare web application that answers as a registry does: `python -m bench.registry.peer PORT SCHEMAS`."""

import json
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.registry.schemas import schema_text

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


def application(schemas: int) -> Starlette:
    """Answers `/schemas/ids/{id}` for the ids from 1 on."""
    texts = {number: schema_text(number) for number in range(1, schemas + 1)}

    async def schema_by_id(request: Request) -> Response:
        body = json.dumps({"schema": texts[int(request.path_params["id"])]}, separators=(",", ":")).encode()
        return Response(body, media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/schemas/ids/{id}", schema_by_id)])


def main() -> None:
    port, schemas = map(int, sys.argv[1:])
    uvicorn.run(
        application(schemas), host="127.0.0.1", port=port, http="httptools", log_level="error", access_log=False
    )


if __name__ == "__main__":
    main()
