"""What does not come up is said once, whatever else does not either."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.broker.settings.topic import topic_settings
from pipeline.cli.broker import read_broker_settings
from pipeline.cli.demo.datacenters import Datacenters
from pipeline.errors import ConfigurationError


async def test_a_missing_java_is_one_plain_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="install Java"):
        async with Datacenters(tmp_path, ["clicks"]):
            pytest.fail("came up without Java")


@pytest.mark.parametrize("name", ["east", "west", "hub"])
def test_old_records_stay_groups_work_on_one_broker_and_only_the_mirror_makes_topics_at_the_hub(
    tmp_path: Path, name: Any
) -> None:
    config, _ = read_broker_settings({**Datacenters(tmp_path, ["t"]).brokers[name].settings})
    assert topic_settings({}, config).retention_ms == -1
    assert config.offsets_topic_replication_factor == 1
    assert config.auto_create_topics == (name != "hub")
