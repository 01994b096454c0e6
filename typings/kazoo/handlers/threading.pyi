from collections.abc import Sequence
from typing import Any

from kazoo.handlers.utils import AsyncResult

class SequentialThreadingHandler:
    def async_result(self) -> AsyncResult[Any]: ...
    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float | None = ...
    ) -> tuple[list[Any], list[Any], list[Any]]: ...
