from pipeline.broker.requests.dispatch import HANDLERS, SERVED
from pipeline.protocol.api import ApiKey


def test_every_api_key_has_a_handler_and_is_told_to_clients() -> None:
    assert set(SERVED.values()) == set(HANDLERS)
    assert set(HANDLERS) <= set(ApiKey)
