"""What does not come up is said once, whatever else does not either."""

import pytest

from pipeline.cli.datacenters import Datacenters
from pipeline.errors import ConfigurationError


async def test_without_java_one_plain_error(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="install Java"):
        async with Datacenters(tmp_path, ["clicks"]):
            pytest.fail("came up without Java")
