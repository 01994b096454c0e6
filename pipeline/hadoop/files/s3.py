"""S3 and stores that speak its protocol: `s3://bucket/prefix`, by boto3 (the extra `pipeline[s3]`).

A name is given away by a conditional PUT (`If-None-Match: *`), which a store refuses with 412 once the name is in use.
Before the first publication a probe finds out whether the store heeds the condition.

A request whose answer was lost may be carried out later, whatever a reader sees now; hence PublicationOpenError. The
objects of `create` carry a token of their writer, so that a repeated request knows the object that it made before.

Endpoint, region and credentials come from the environment (`AWS_*`, `AWS_ENDPOINT_URL`) and from `~/.aws`.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, TypeVar

from pipeline.errors import ConfigurationError, StorageError
from pipeline.hadoop.files.doors import (
    DEFAULT_TIMEOUT_S,
    FileInfo,
    FileSink,
    PathExistsError,
    PathNotFoundError,
    PublicationOpenError,
    call_within,
    open_by_parts,
)

_ATTEMPTS: Final = 3
_READ_BYTES: Final = 16 << 20
_PART_BYTES: Final = 5 << 20
"""Smallest part that S3 takes. Many files are open at once, and each holds a part in memory."""
_PARTS_OF_A_SIZE: Final = 1000
"""Parts grow by `_PART_BYTES` after each so many: S3 takes 10,000 parts of a file."""
_WRITER: Final = "pipeline-writer"

_T = TypeVar("_T")


class S3FileSystem:
    """A bucket. Directories are prefixes, which exist while an object lies below them."""

    def __init__(self, bucket: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise ConfigurationError("root", "s3:// needs boto3: pip install 'pipeline[s3]'") from error
        self._bucket = bucket
        self._timeout_s = timeout_s
        self._is_probed = False
        has_endpoint = any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"))
        config = Config(
            connect_timeout=timeout_s / (2 * _ATTEMPTS),
            read_timeout=timeout_s / (2 * _ATTEMPTS),
            retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
            # A store of one's own seldom has a DNS name for each bucket.
            s3={"addressing_style": "path"} if has_endpoint else None,
        )
        with _s3_errors(f"s3://{bucket}"):
            session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
            region = session.region_name or "us-east-1"
            self._client: Any = session.client("s3", region_name=region, config=config)

    def create(self, path: str) -> FileSink:
        """Return a sink whose object appears when it is closed; an object in the way is noticed then."""
        return _S3Sink(self, path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """See FileSystem."""
        pieces: list[bytes] = []
        end = None if length is None else start + length
        while end is None or start < end:
            last = start + _READ_BYTES - 1 if end is None else min(start + _READ_BYTES, end) - 1
            piece, size = self.call(path, lambda first=start, last=last: self._range(path, first, last))  # type: ignore[misc]
            pieces.append(piece)
            start += len(piece)
            if start >= size or not piece:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _range(self, path: str, first: int, last: int) -> tuple[bytes, int]:
        """Return the bytes from `first` to `last`, as far as there are any, and the size of the object."""
        from botocore.exceptions import ClientError

        try:
            got = self._client.get_object(**self.key(path), Range=f"bytes={first}-{last}")
        except ClientError as error:
            if _status(error) == 416:  # the object has fewer bytes
                return b"", 0
            raise
        return got["Body"].read(), int(got["ContentRange"].rsplit("/", 1)[-1])

    def size(self, path: str) -> int:
        """See FileSystem."""
        return int(self.request("head_object", path)["ContentLength"])

    def open(self, path: str) -> BinaryIO:
        """See FileSystem."""
        return open_by_parts(self, path)

    def publish_exclusive(self, path: str, content: bytes, *, temporary: str) -> None:
        """Put the object on the condition that there is none; `temporary` is the name of the probe."""
        if not self._is_probed:
            self._probe(temporary)
        try:
            self.request("put_object", path, Body=content, IfNoneMatch="*")
        except PathExistsError:
            raise
        except StorageError as error:
            if _is_refusal(error.__cause__):
                raise
            raise PublicationOpenError(path, error.reason) from error

    def _probe(self, path: str) -> None:
        """Raise StorageError unless the store refuses a conditional PUT of a name in use."""
        self.request("put_object", path, Body=b"probe")
        try:
            self.request("put_object", path, Body=b"probe", IfNoneMatch="*")
        except PathExistsError:
            self._is_probed = True
        finally:
            with suppress(StorageError):
                self.delete(path)
        if not self._is_probed:
            reason = "the store ignores If-None-Match: loads could overwrite each other's commits; use another store"
            raise StorageError(path, reason)

    def list_files(self, directory: str, *, recursive: bool = False) -> list[FileInfo]:
        """See FileSystem."""
        found = [
            _info(entry["Key"], entry["Size"], entry["LastModified"])
            for page in self._pages("list_objects_v2", directory, recursive=recursive)
            for entry in page.get("Contents", ())
            if not entry["Key"].endswith("/")  # as some tools mark a directory
        ]
        return sorted(found, key=lambda info: info.path)

    def list_directories(self, directory: str) -> list[str]:
        """See FileSystem."""
        pages = self._pages("list_objects_v2", directory, recursive=False)
        return sorted("/" + entry["Prefix"].rstrip("/") for page in pages for entry in page.get("CommonPrefixes", ()))

    def list_unfinished(self, directory: str) -> list[FileInfo]:
        """See FileSystem."""
        pages = self._pages("list_multipart_uploads", directory, recursive=True)
        return [_info(upload["Key"], 0, upload["Initiated"]) for page in pages for upload in page.get("Uploads", ())]

    def delete(self, path: str) -> bool:
        """Delete an object, and abort its unfinished uploads."""
        is_there = True
        try:
            self.request("head_object", path)
            self.request("delete_object", path)
        except PathNotFoundError:
            is_there = False
        pages = self._pages("list_multipart_uploads", path, recursive=True, is_directory=False)
        for upload in [upload for page in pages for upload in page.get("Uploads", ())]:
            if upload["Key"] == self.key(path)["Key"]:
                with suppress(PathNotFoundError):
                    self.request("abort_multipart_upload", path, UploadId=upload["UploadId"])
                is_there = True
        return is_there

    def delete_empty_directory(self, directory: str) -> bool:  # noqa: ARG002
        """Return False: a directory is gone with its last object."""
        return False

    def key(self, path: str) -> dict[str, str]:
        """Return the arguments that name an object."""
        return {"Bucket": self._bucket, "Key": path.lstrip("/")}

    def request(self, operation: str, path: str, **arguments: object) -> Any:
        """Carry out an operation on one object."""
        return self.call(path, lambda: getattr(self._client, operation)(**self.key(path), **arguments))

    def call(self, path: str, function: Callable[[], _T]) -> _T:
        """Return what `function` returns, within the timeout and with errors translated."""
        with _s3_errors(path):
            return call_within(self._timeout_s, path, function)

    def _pages(self, operation: str, path: str, *, recursive: bool, is_directory: bool = True) -> Iterator[Any]:
        key = path.strip("/")
        arguments = {"Bucket": self._bucket, "Prefix": f"{key}/" if key and is_directory else key}
        if not recursive:
            arguments["Delimiter"] = "/"
        pages = iter(self._client.get_paginator(operation).paginate(**arguments))
        while (page := self.call(path, lambda: next(pages, None))) is not None:
            yield page


class _S3Sink:
    """Holds a part in memory. A file of one part is put at once, a larger one is a multi-part upload."""

    def __init__(self, store: S3FileSystem, path: str) -> None:
        self._store = store
        self._path = path
        self._token = uuid.uuid4().hex
        self._waiting = bytearray()
        self._upload_id: str | None = None
        self._parts: list[dict[str, object]] = []
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            room = _PART_BYTES * (1 + len(self._parts) // _PARTS_OF_A_SIZE) - len(self._waiting)
            self._waiting += view[:room]
            if len(view) >= room:
                self._send_part()
            view = view[room:]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._finish()
        except (PathExistsError, PathNotFoundError):  # also the answers to a request that repeats a successful one
            if not self._is_mine():
                self._abort()
                raise
        except StorageError:
            self._abort()
            raise

    def _finish(self) -> None:
        if self._upload_id is None:
            self._store.request(
                "put_object", self._path, Body=bytes(self._waiting), IfNoneMatch="*", Metadata={_WRITER: self._token}
            )
            return
        if self._waiting:
            self._send_part()
        self._store.request(
            "complete_multipart_upload",
            self._path,
            UploadId=self._upload_id,
            MultipartUpload={"Parts": self._parts},
            IfNoneMatch="*",
        )

    def _send_part(self) -> None:
        if self._upload_id is None:
            begun = self._store.request("create_multipart_upload", self._path, Metadata={_WRITER: self._token})
            self._upload_id = begun["UploadId"]
        part, self._waiting = bytes(self._waiting), bytearray()
        number = len(self._parts) + 1
        sent = self._store.request("upload_part", self._path, UploadId=self._upload_id, PartNumber=number, Body=part)
        checksums = {name: sent[name] for name in ("ChecksumCRC32", "ChecksumCRC64NVME") if name in sent}
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"], **checksums})

    def _is_mine(self) -> bool:
        with suppress(PathNotFoundError):
            return bool(self._store.request("head_object", self._path)["Metadata"].get(_WRITER) == self._token)
        return False

    def _abort(self) -> None:
        if self._upload_id is not None:
            with suppress(StorageError):  # clean-up finds it
                self._store.request("abort_multipart_upload", self._path, UploadId=self._upload_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._closed = True
            self._abort()


def _info(key: str, size_bytes: int, modified: datetime) -> FileInfo:
    return FileInfo(path=f"/{key}", size_bytes=size_bytes, modified_ms=int(modified.timestamp() * 1000))


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_refusal(error: BaseException | None) -> bool:
    """True if the store refused the only request that was sent, so that nothing can come of it any more."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        return False
    is_refused = 400 <= _status(error) < 500 and _status(error) not in {408, 409}
    return is_refused and error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0) == 0


@contextmanager
def _s3_errors(path: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if _status(error) == 412:
            raise PathExistsError(path, "exists already") from error
        if code in {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}:
            raise PathNotFoundError(path, "does not exist") from error
        raise StorageError(path, str(error)) from error
    except (BotoCoreError, HTTPClientError, ValueError, OSError) as error:
        raise StorageError(path, str(error)) from error
