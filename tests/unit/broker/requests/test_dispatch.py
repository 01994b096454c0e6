from pipeline.broker.requests.dispatch import HANDLERS, SERVED
from pipeline.protocol.api import ApiKey


def test_every_api_key_has_a_handler_and_is_in_api_versions() -> None:
    assert set(SERVED.values()) == set(HANDLERS)
    assert set(HANDLERS) <= set(ApiKey)
