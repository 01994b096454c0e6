"""File access of pyiceberg through the file systems of the load: `file://` and `hdfs://` without libhdfs or a JVM.

Metadata files are durable before a catalog points to them, and are never replaced.
"""

from types import TracebackType
from typing import BinaryIO, Self

from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream

from pipeline.hadoop.files.doors import FileSink, PathExistsError, PathNotFoundError
from pipeline.hadoop.files.filesystem import open_filesystem


class LoadFileIO(FileIO):
    """See the module. Errors are StorageError, or those that pyiceberg documents."""

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _File(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to create."""
        return _File(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file. Raises FileNotFoundError."""
        url = location if isinstance(location, str) else location.location
        files, path = open_filesystem(url)
        if not files.delete(path):
            raise FileNotFoundError(url)


class _File(InputFile, OutputFile):
    def __len__(self) -> int:
        with self.open() as file:
            return file.seek(0, 2)

    def exists(self) -> bool:
        files, path = open_filesystem(self.location)
        try:
            files.open(path).close()
        except PathNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> BinaryIO:  # noqa: ARG002 - always seekable
        files, path = open_filesystem(self.location)
        try:
            return files.open(path)
        except PathNotFoundError as error:
            raise FileNotFoundError(self.location) from error

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> OutputStream:
        files, path = open_filesystem(self.location)
        try:
            return _Output(files.create(path))
        except PathExistsError as error:
            if not overwrite:
                raise FileExistsError(self.location) from error
            files.delete(path)
            return _Output(files.create(path))


class _Output(OutputStream):
    """Counts the bytes of a sink."""

    def __init__(self, sink: FileSink) -> None:
        self._sink = sink
        self._written = 0

    def write(self, b: bytes) -> int:
        self._sink.write(b)
        self._written += len(b)
        return len(b)

    def tell(self) -> int:
        return self._written

    def close(self) -> None:
        self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self._sink.__exit__(exctype, excinst, exctb)
