"""Contracts with subjects of a context, which the registry's URL names."""

import json
from typing import Any

import httpx
import pytest

from pipeline.broker.contract.registry import open_questions
from pipeline.broker.contract.verdicts import ContractVerdict, RefusalReason, SchemaQuestion
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.contract import SubjectRule, subject_space
from pipeline.errors import ConfigurationError
from pipeline.hadoop.avro.datum_walk import compile_datums
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.registry import serving_registry

VISIT = json.dumps({"type": "record", "name": "Visit", "fields": [{"name": "place", "type": "Place"}]})
PLACE = json.dumps({"type": "record", "name": "Place", "fields": [{"name": "zone", "type": "Zone"}]})
ZONE = json.dumps({"type": "enum", "name": "Zone", "symbols": ["A", "B"]})


async def register(http: httpx.AsyncClient, subject: str, text: str, *references: tuple[str, str]) -> tuple[int, bytes]:
    """Return id and GUID."""
    uses = [{"name": name, "subject": used, "version": 1} for name, used in references]
    answer = await http.post(f"/subjects/{subject}/versions", json={"schema": text, "references": uses})
    made: Any = answer.raise_for_status().json()
    return made["id"], bytes.fromhex(made["guid"].replace("-", ""))


@pytest.mark.long
@pytest.mark.parametrize("context", [".live", "live", ":.live:", "%2Elive"])
async def test_ids_and_subjects_are_those_of_the_context_in_the_url(context: str) -> None:
    async with serving_registry(MemoryJournal()) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        for number in range(5):
            await register(http, "t-value", f'{{"type": "fixed", "name": "F", "size": {number}, "aliases": []}}')
            await http.put("/config/t-value", json={"compatibility": "NONE"})
        # Places refer to zones of a third context. A zone of the same name in `.live` is none of theirs.
        await register(http, ":.geo:zone", ZONE)
        await register(http, ":.geo:place", PLACE, ("Zone", "zone"))
        await register(http, ":.live:zone", ZONE.replace("Zone", "Other"))
        visit, guid = await register(http, ":.live:t-value", VISIT, ("Place", ":.geo:place"))
        await register(http, ":.live:u-value", '"string"')

        async def judge(base: str, schema: int | bytes, rule: SubjectRule, *, decodes: bool = False) -> ContractVerdict:
            async with open_questions([base], timeout_s=60, compile_schema=compile_datums) as asked:
                return await asked.judge(SchemaQuestion(schema, rule, decodes))

        live, of_topic = f"{url}/contexts/{context}", SubjectRule("t-value")
        assert (await judge(live, visit, of_topic)).reason is None
        assert (await judge(live, visit, SubjectRule("", has_name=True))).reason == RefusalReason.OTHER_SUBJECT
        decoded = await judge(live, visit, of_topic, decodes=True)
        assert (decoded.reason, decoded.walk is not None) == (None, True)
        assert (await judge(live, guid, of_topic, decodes=True)).reason is None
        assert (await judge(live, 3, of_topic)).reason == RefusalReason.OTHER_SUBJECT, "u-value of the context"
        assert (await judge(live, 5, of_topic)).reason == RefusalReason.UNKNOWN_ID, "of the default context alone"
        assert (await judge(url, visit, of_topic)).reason is None, "another schema of the default context"
        assert (await judge(url, guid, of_topic)).reason == RefusalReason.OTHER_SUBJECT
        assert (await judge(f"{url}/contexts/.other", visit, of_topic)).reason == RefusalReason.UNKNOWN_ID


def test_the_urls_of_a_broker_name_one_context() -> None:
    def config(urls: str) -> BrokerConfig:
        needed = {"broker.id": 1, "log.dirs": "/data", "zookeeper.connect": "localhost:2181"}
        return BrokerConfig.from_settings({**needed, "confluent.schema.registry.url": urls})

    with pytest.raises(ConfigurationError, match="several contexts"):
        config("http://a/contexts/.live,http://b")
    urls = config("http://a/contexts/.live/,https://b:1/base/contexts/live").schema_registry_urls
    assert {subject_space(url) for url in urls} == {":.live:"}
    assert subject_space("http://a:1") == subject_space("http://a/live") == ""
