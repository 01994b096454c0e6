"""OAUTHBEARER, the broker's side: the messages of RFC 7628, and Kafka's answers to what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.broker.security.sasl.mechanism import Proof, SaslRefusedError
from pipeline.broker.security.sasl.oauthbearer import INVALID_TOKEN, MALFORMED, OAuthBearerMechanism
from pipeline.net.security.web_tokens import TokenRefusedError

END_MS = 1_700_000_000_000


def verify(token: str) -> Proof:
    if token != "good.to.ken":
        raise TokenRefusedError("it ended 5 s ago (exp)")
    return Proof("alice", END_MS)


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer good.to.ken\x01\x01",
        b"n,,\x01auth=bearer  good.to.ken\x01\x01",
        b"n,a=alice,\x01auth=Bearer good.to.ken\x01\x01",
        b"n,,\x01auth=Bearer good.to.ken\x01logicalCluster=lkc-1\x01identityPoolId=p 1\x01\x01",
        b"n,,\x01host=x\x01auth=Bearer good.to.ken\x01\x01",
    ],
)
def test_a_good_token_names_its_user_and_its_end(message: bytes) -> None:
    assert OAuthBearerMechanism(verify).step(message) == (b"", Proof("alice", END_MS))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"good.to.ken",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer good.to.ken\x01",
        b"n,,\x01auth=Bearer good.to.ken\x01\x01\x01",
        b"n,,\x01auth=Basic good.to.ken\x01\x01",
        b"n,,\x01auth=Bearer good to ken\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer good.to.ken\x01auth=Bearer good.to.ken\x01\x01",
        b"y,,\x01auth=Bearer good.to.ken\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer good.to.ken\x01\x01",
        b"n,a=,\x01auth=Bearer good.to.ken\x01\x01",
        b"n,,\x01auth=Bearer good.to.ken\xff\x01\x01",
    ],
)
def test_malformed_messages_are_refused_as_kafka_refuses_them(message: bytes) -> None:
    with pytest.raises(SaslRefusedError) as refusal:
        OAuthBearerMechanism(verify).step(message)
    assert str(refusal.value) == MALFORMED


def test_a_bad_token_is_answered_by_json_and_then_refused() -> None:
    mechanism = OAuthBearerMechanism(verify)
    answer = mechanism.step(b"n,,\x01auth=Bearer bad.to.ken\x01\x01")
    assert answer == (INVALID_TOKEN.encode(), None)
    for second in (b"\x01", b"n,,\x01auth=Bearer good.to.ken\x01\x01"):
        with pytest.raises(SaslRefusedError) as refusal:
            mechanism.step(second)
        assert str(refusal.value) == INVALID_TOKEN
        assert refusal.value.reason == "the token: it ended 5 s ago (exp)"


def test_nobody_acts_as_somebody_else() -> None:
    with pytest.raises(SaslRefusedError, match=r"authorization id \(b,b\) that is different .* \(alice\)"):
        OAuthBearerMechanism(verify).step(b"n,a=b=2Cb,\x01auth=Bearer good.to.ken\x01\x01")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([b"n,,\x01auth=Bearer x.y.z\x01\x01", b"\x01"]))))
def test_no_message_breaks_the_mechanism(messages: list[bytes]) -> None:
    mechanism = OAuthBearerMechanism(verify)
    for message in messages:
        try:
            assert mechanism.step(message).proof is None
        except SaslRefusedError:
            break
