"""Chooses the store of a URL: `file://`, `hdfs://`, or `s3://`. The only way to stores for driver and workers."""

from pathlib import PurePosixPath
from urllib.parse import urlsplit

from pipeline.errors import ConfigurationError
from pipeline.hadoop.files.doors import DEFAULT_TIMEOUT_S, FileSystem
from pipeline.hadoop.files.hdfs import HdfsFileSystem
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.files.s3 import S3FileSystem


def open_filesystem(url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[FileSystem, str]:
    """Return the store and the path of a URL: `file:///data`, `hdfs://name-node:8020/data`, `s3://bucket/data`, or a
    plain absolute path. Raises ConfigurationError, StorageError.

    `hdfs://` without a host, or with a logical name, is resolved by the Hadoop configuration in HADOOP_CONF_DIR.
    `timeout_s` bounds the silence of a NameNode or an S3 endpoint.
    """
    parts = urlsplit(url)
    path = str(PurePosixPath(parts.path or "/"))
    if not path.startswith("/"):
        raise ConfigurationError("root", f"'{url}' is not absolute: give file:///path, hdfs://host:port/path or /path")
    match parts.scheme:
        case "" | "file":
            return LocalFileSystem(), path
        case "hdfs":
            return HdfsFileSystem(f"hdfs://{parts.netloc}" if parts.netloc else None, timeout_s=timeout_s), path
        case "s3" | "s3a":
            if not parts.netloc:
                raise ConfigurationError("root", f"'{url}' names no bucket: give s3://bucket/prefix")
            return S3FileSystem(parts.netloc, timeout_s=timeout_s), path
        case other:
            raise ConfigurationError("root", f"'{other}:' is not a known store: use file://, hdfs:// or s3://")
