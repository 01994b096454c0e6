"""Settings on a command line: places of secrets are taken, secrets refused, and no error shows them."""

import pytest

from pipeline.cli.secured.shown_secrets import refuse_shown_secrets
from pipeline.errors import ConfigurationError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("plain.sasl.jaas.config", 'x.PlainLoginModule required username="b" password="s3cret" user_b="${env:B}";'),
        ("plain.sasl.jaas.config", 'x.PlainLoginModule required username="b" password="${env:B}" user_b="s3cret";'),
        ("plain.sasl.jaas.config", "s3cret that cannot be parsed"),
        ("listener.name.client.scram-sha-512.sasl.jaas.config", 'x required username="b" password="s3cret";'),
        ("oauthbearer.sasl.jaas.config", 'x required clientId="b" clientSecret="s3cret";'),
        ("ssl.key.password", "s3cret"),
        ("listener.name.client.ssl.keystore.key", "s3cret"),
        ("zookeeper.auth.password", "s3cret"),
        ("http.ssl.key.password", "s3cret"),
        ("confluent.basic.auth.user.info", "user:s3cret"),
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_shown(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"holds a secret, which a command line shows") as refusal:
        refuse_shown_secrets({"num.partitions": "3", key: value})
    assert refusal.value.key == f"--set {key}"
    assert "s3cret" not in str(refusal.value)


def test_places_of_secrets_and_other_settings_are_taken() -> None:
    refuse_shown_secrets(
        {
            "super.users": "User:admin",
            "ssl.key.password": "${file:/etc/secrets:key}",
            "plain.sasl.jaas.config": 'x required username="b" password="${env:B}" user_b="${directory:/run:b}";',
        }
    )
