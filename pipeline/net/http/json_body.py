"""Bodies of POST requests: JSON that a model checks, of bounded size."""

from contextlib import aclosing
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from pipeline.errors import PipelineError

MAX_BODY_BYTES = 1 << 20


Model = TypeVar("Model", bound=BaseModel)


class BodyRefusedError(PipelineError):
    """A body is not what the service expects. `status` is the HTTP status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


async def read_body(request: Request, model: type[Model]) -> Model:
    """Return the body of a request. Raises BodyRefusedError."""
    if "origin" in request.headers:  # also one that was led here by a name of its own (DNS rebinding)
        raise BodyRefusedError(403, "the request comes from a web page in a browser: use the `pipeline` commands")
    # A page of another origin can post a form or text without asking, JSON only with this server's consent.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise BodyRefusedError(415, "the content type must be application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise BodyRefusedError(415, "the body must have no Content-Encoding")
    body = bytearray()
    try:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise BodyRefusedError(413, f"the body has more than {MAX_BODY_BYTES} bytes")
    except ClientDisconnect as error:
        raise BodyRefusedError(400, "the client has left before the end of the body") from error
    try:
        return model.model_validate_json(bytes(body))
    except ValidationError as error:
        reason = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise BodyRefusedError(400, reason) from error


def error_response(status: int, reason: str) -> JSONResponse:
    """Return an answer with an error, which clients show."""
    return JSONResponse({"error": reason}, status_code=status)
