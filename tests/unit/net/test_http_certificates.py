"""Certificates of other authorities: of a server that publishes keys, as an HTTP server sees them."""

import time

import pytest

from tests.support.secured_http import HttpFiles
from tests.support.token_authority import TokenAuthority
from tests.unit.net.test_http_service import client


async def test_keys_of_an_authority_whose_server_has_a_private_certificate(
    files: HttpFiles, caplog: pytest.LogCaptureFixture
) -> None:
    authority = TokenAuthority(keystore=files.keystore)
    authority.add("a")
    token = authority.token("a", sub="alice", aud="pipeline", exp=time.time() + 600, scope="read")
    with authority.serving() as url:
        keys = {"http.oauthbearer.jwks.endpoint.url": f"{url}/keys", "http.oauthbearer.expected.audience": "pipeline"}
        for more, status in (({"http.oauthbearer.ssl.truststore.location": str(files.ca)}, 200), ({}, 401)):
            async with client(files, **keys, **more) as http:
                assert (await http.get("/things", headers={"Authorization": f"Bearer {token}"})).status_code == status
    assert "nobody who is trusted has signed" in caplog.text
    assert "http.oauthbearer.ssl.truststore.location names who is trusted" in caplog.text
