"""SaslHandshake (17), v0 to v1, on a listener without SASL: refused, as by Kafka.

Listeners with SASL answer it before it comes here (`security.authentication`).
"""

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(
    _broker: BrokerContext, _request: SaslHandshakeRequest, _version: int, _caller: Caller
) -> SaslHandshakeResponse:
    """Answer at once."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
