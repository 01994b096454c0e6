"""Opens the catalog of Iceberg tables by pyiceberg's properties.

Invariant: no request waits for ever. pyiceberg sets no timeout on the sockets of REST and Hive catalogs, so that a
silent one would hold up a load, and a resident process, for good. SQL catalogs have the timeouts of their drivers.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog import Catalog, CatalogType, infer_catalog_type, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError
from pyiceberg.utils.config import Config, merge_config
from requests import Session
from sqlalchemy.exc import OperationalError

from pipeline.credentials import resolved
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.hadoop.files.filesystem import open_filesystem
from pipeline.hadoop.iceberg.catalog_secrets import without_secrets

NAMESPACE: Final = "pipeline"
CATALOG: Final = "pipeline"
FILE_IO: Final = "pipeline.hadoop.iceberg.file_io.LoadFileIO"
TIMEOUT_S: Final = 120.0
_TIMEOUT: Final = "pipeline.timeout-s"


class CatalogUnreachableError(PipelineError):
    """The catalog does not answer; nothing was read or committed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the Iceberg catalog cannot be reached: {reason}")


def open_catalog(root: str, properties: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Catalog:
    """Open the catalog of pyiceberg's `properties`; by default an SQLite file next to the topics.

    A value may name its place, as `${env:NAME}` (see `credentials`). Errors show no secrets.

    timeout_s: time after which a request to a silent REST or Hive catalog fails.
    Raises ConfigurationError, CatalogUnreachableError.
    """
    given = {name: resolved(f"iceberg.catalog.{name}", value) for name, value in properties.items()}
    if not given:
        if not root.startswith(("file:", "/")):
            raise ConfigurationError("iceberg.catalog.type", f"is missing: {root} has no place for an SQLite file")
        _, path = open_filesystem(root)
        with suppress(OSError):  # SQLite names the file then
            Path(path).mkdir(parents=True, exist_ok=True)
        given = {"type": "sql", "uri": f"sqlite:///{path}/_catalog.db"}
    given = {"warehouse": root, "py-io-impl": FILE_IO} | given
    try:
        known: Any = merge_config(Config().get_catalog_config(CATALOG) or {}, dict(given))
        if "py-catalog-impl" not in known:
            kind = CatalogType(str(known["type"]).lower()) if "type" in known else infer_catalog_type(CATALOG, known)
            timed = known | {_TIMEOUT: str(timeout_s)}
            if kind is CatalogType.REST:
                return _TimedRestCatalog(CATALOG, **timed)
            if kind is CatalogType.HIVE:
                from pipeline.hadoop.iceberg.hive_catalog import TimedHiveCatalog

                catalog: Catalog = TimedHiveCatalog(CATALOG, timeout_s=timeout_s, **known)
                return catalog
        return load_catalog(CATALOG, **given)
    except (OSError, OperationalError, RESTError) as error:
        raise CatalogUnreachableError(without_secrets(str(error), given)) from error
    except Exception as error:
        # Each kind of catalog has errors of its own.
        raise ConfigurationError(
            "iceberg.catalog", f"cannot be opened: {without_secrets(str(error), given)}"
        ) from error


class _TimedRestCatalog(RestCatalog):
    def _config_headers(self, session: Session) -> None:
        """Set the headers of a session, before its first request."""
        super()._config_headers(session)
        request: Any = partial(session.request, timeout=float(self.properties[_TIMEOUT]))
        session.request = request  # type: ignore[method-assign]
