"""Errors of the registry, with Confluent's codes. Pure.

The first three digits of a five-digit code are the HTTP status; a code of three digits is the status itself.
"""

from enum import IntEnum

from pipeline.errors import PipelineError


class Code(IntEnum):
    """Error codes of Confluent's API that this registry uses."""

    BAD_REQUEST = 400
    NOT_FOUND = 404
    METHOD_NOT_ALLOWED = 405
    NOT_ACCEPTABLE = 406
    REQUEST_TIMEOUT = 408
    INCOMPATIBLE_SCHEMA = 409
    PAYLOAD_TOO_LARGE = 413
    UNSUPPORTED_MEDIA_TYPE = 415
    UNPROCESSABLE = 422
    INTERNAL = 500
    OVERLOADED = 503
    DENIED = 40301
    SUBJECT_NOT_FOUND = 40401
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403
    SUBJECT_SOFT_DELETED = 40404
    SUBJECT_NOT_SOFT_DELETED = 40405
    VERSION_SOFT_DELETED = 40406
    VERSION_NOT_SOFT_DELETED = 40407
    NO_SUBJECT_CONFIG = 40408
    NO_SUBJECT_MODE = 40409
    INVALID_SCHEMA = 42201
    INVALID_VERSION = 42202
    INVALID_LEVEL = 42203
    INVALID_MODE = 42204
    NOT_PERMITTED = 42205
    REFERENCE_EXISTS = 42206
    INVALID_SUBJECT = 42208
    CONTEXT_NOT_EMPTY = 42211
    STORE_FAILED = 50001
    STORE_TIMED_OUT = 50002
    FORWARDING_FAILED = 50003


class RegistryError(PipelineError):
    """A request is refused or failed. Holds Confluent's code, and a message that tells what the client can do."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.code // 100 if self.code >= 1000 else int(self.code)


def subject_not_found(subject: str) -> RegistryError:
    """Return a 404 for a subject that never existed, or is deleted."""
    return RegistryError(Code.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryError:
    """Return a 404 for an unknown version of an existing subject."""
    return RegistryError(Code.VERSION_NOT_FOUND, f"Version {version} not found.")
