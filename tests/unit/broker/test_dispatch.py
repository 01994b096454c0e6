from pipeline.broker.dispatch import HANDLERS
from pipeline.broker.metrics import _REQUEST_NAMES
from pipeline.protocol.api import API


def test_every_api_key_that_is_told_to_clients_has_a_handler_and_a_name() -> None:
    assert set(HANDLERS) == set(API) == set(_REQUEST_NAMES)
