"""SaslAuthenticate (36), v0 to v2, on a listener without SASL: refused, as by Kafka.

Listeners with SASL answer it before it comes here (`security.authentication`).
"""

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(
    _broker: BrokerContext, _request: SaslAuthenticateRequest, _version: int, _caller: Caller
) -> SaslAuthenticateResponse:
    """Answer at once."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="This listener has no SASL authentication."
    )
