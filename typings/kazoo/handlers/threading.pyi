from typing import Any

from kazoo.handlers.utils import AsyncResult

class SequentialThreadingHandler:
    def async_result(self) -> AsyncResult[Any]: ...
