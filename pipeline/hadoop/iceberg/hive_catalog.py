"""A Hive catalog whose metastore has a limited time to answer. Needs `pyiceberg[hive]`."""

from typing import Any

from pyiceberg.catalog.hive import HiveCatalog, _HiveClient
from thrift.transport.TSocket import TSocket


class TimedHiveCatalog(HiveCatalog):
    """See the module."""

    def __init__(self, name: str, *, timeout_s: float, **properties: str) -> None:
        super().__init__(name, **properties)
        self._client = _TimedClient(self._client, timeout_s)


class _TimedClient(_HiveClient):
    def __init__(self, given: _HiveClient, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.__dict__ |= given.__dict__
        self._transport = self._init_thrift_transport()

    def _init_thrift_transport(self) -> Any:
        transport = super()._init_thrift_transport()
        inner = transport
        while not isinstance(inner, TSocket):
            inner = getattr(inner, "_TBufferedTransport__trans", None) or inner.transport
        inner.setTimeout(self._timeout_s * 1000)
        return transport
