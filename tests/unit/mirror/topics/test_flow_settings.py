"""Settings of flows: the simple form, names of replicas, internal topics, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.terminal.settings import read_settings
from pipeline.errors import ConfigurationError
from pipeline.mirror.config import CompressionType, GapPolicy, MirrorConfig
from pipeline.mirror.topics.flows import SourceFlows, flows_of

NEEDED: dict[str, Any] = {
    "destination.bootstrap.servers": "hub:1",
    "http.listen": "127.0.0.1:0",
    "sources": [{"name": name, "bootstrap.servers": f"{name}:1"} for name in ("east", "west")],
}


def flow(**more: Any) -> dict[str, Any]:
    """A flow of east; `__` in a name stands for a dot."""
    settings = {key.replace("__", "."): value for key, value in more.items()}
    return {"name": "pages", "source": "east", "topics": ["page.*"], **settings}


def flows(*declared: dict[str, Any], **settings: Any) -> dict[str, SourceFlows]:
    """The flows of each source."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    more = {"flows": list(declared)} if declared else {}
    return dict(flows_of(MirrorConfig.from_settings({**NEEDED, **more, **given})))


def refusal(*declared: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        flows(*declared, **settings)
    return str(caught.value)


def name_of(found: SourceFlows, topic: str) -> str | None:
    first = found.flow_of(topic)
    return None if first is None else first.name


def refusal_of(found: SourceFlows, topic: str) -> str | None:
    first = found.flow_of(topic)
    assert first is not None
    return first.refusal_of(topic)


def test_topics_stand_for_a_flow_of_each_source() -> None:
    found = flows(topics=["page.*"], topics__exclude=["page_tests"], gap__policy="skip")
    for name in ("east", "west"):
        (each,) = found[name].flows
        assert (each.name, each.source, each.gap_policy) == (name, name, GapPolicy.SKIP)
        assert (name_of(found[name], "page_views"), name_of(found[name], "page_tests")) == (name, None)
        assert each.replica_of("page_views") == "page_views"


def test_the_first_flow_of_the_settings_has_a_topic() -> None:
    found = flows(flow(name="tests", topics=["page_tests"]), flow(gap__policy="skip"))
    assert [each.name for each in found["east"].selecting("page_tests")] == ["tests", "pages"]
    assert name_of(found["east"], "page_tests") == "tests"
    assert name_of(found["west"], "page_tests") is None
    assert found["east"].gap_policy_of("page_tests") is GapPolicy.HALT
    assert found["east"].gap_policy_of("page_views") is GapPolicy.SKIP


def test_a_flow_without_a_compression_type_has_that_of_the_mirror() -> None:
    def types(**settings: Any) -> list[CompressionType]:
        found = flows(flow(name="plain", compression__type="producer"), flow(), **settings)
        return [each.compression_type for each in found["east"].flows]

    assert types() == [CompressionType.PRODUCER, CompressionType.PRODUCER]
    assert types(compression__type="zstd") == [CompressionType.PRODUCER, CompressionType.ZSTD]
    (simple,) = flows(topics=["page.*"], compression__type="zstd")["west"].flows
    assert simple.compression_type is CompressionType.ZSTD
    assert "compression.type" in refusal(flow(compression__type="lz4"))


@pytest.mark.parametrize(
    ("template", "topics", "replica"),
    [
        ("{source}.{topic}", ["page.*"], "east.page_views"),
        ("{topic}-{source}", ["page.*"], "page_views-east"),
        ("{topic}.{topic}", ["page.*"], "page_views.page_views"),
        ("views", ["page_views"], "views"),
        ("{source}", ["page_views", "page_clicks"], "east"),
    ],
)
def test_a_replica_has_the_name_of_the_template(template: str, topics: list[str], replica: str) -> None:
    first = flows(flow(topics=topics, replica__topic=template))["east"].flow_of("page_views")
    assert first is not None
    assert (first.replica_of("page_views"), first.refusal_of("page_views")) == (replica, None)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ([flow(source="south")], "flows: has pages of source south, and sources has east, west only"),
        ([flow(), flow(source="west")], "flows: has 2 tables of the name pages"),
        ([flow(topics=[])], "flows.0.topics"),
        ([flow(topic=["x"])], "flows.0.topic"),
        ([flow(topics=["("])], "flows.0.topics: '(' is not a regular expression"),
        ([flow(topics__exclude=["("])], "flows.0.topics.exclude: '(' is not a regular expression"),
        ([flow(topics=["(" * 5000])], "flows.0.topics: has a regular expression that cannot be read"),
        ([flow(topics=["a{1,99999999999}"])], "flows.0.topics: has a regular expression that cannot be read"),
        ([flow(replica__topic="{cluster}.{topic}")], "flows.0.replica.topic: must be {topic}, {source}, letters"),
        ([flow(replica__topic="a b {topic}")], "flows.0.replica.topic: must be"),
        ([flow(replica__topic="all")], r"plain name, with dots as \., and page.* is none"),
        ([flow(replica__topic="all", topics=["a.b"])], "and a.b is none"),
        ([flow(topics=["__consumer_offsets"])], "flows.0.topics: has __consumer_offsets, but such topics"),
        ([flow(topics=["__transaction_.*"])], "has __transaction_.*, but such topics"),
        ([flow(topics=[r"\_mirror_gaps"])], "but such topics"),
        ([flow(topics=["_audit"])], "has _audit, but such topics"),
        ([flow(gap__policy="ignore")], "flows.0.gap.policy"),
        ([flow(name="a b")], "flows.0.name"),
        ([flow(name=str(number)) for number in range(1001)], "flows"),
    ],
)
def test_a_wrong_flow_is_refused(declared: list[dict[str, Any]], words: str) -> None:
    assert words in refusal(*declared)


def examples_of(page: str) -> list[str]:
    text = (Path(__file__).parents[4] / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```toml\n(.*?)```", text, re.DOTALL)


def test_examples_of_the_pages_are_settings(tmp_path: Path) -> None:
    (simple,), (appended,), (shared,) = map(
        examples_of, ("mirror.md", "mirror/append-mode.md", "mirror/several-mirrors.md")
    )
    with_flows, schemas = examples_of("mirror/flows.md")
    throttled, recompressed = examples_of("mirror/wan-and-speed.md")
    file = tmp_path / "mirror.toml"
    found = []
    top, table, rest = with_flows.partition("[[")
    fast = (top + more + table + rest for more in (throttled, recompressed))
    for text in (simple, with_flows, with_flows + schemas, appended, *fast):
        file.write_text(text, encoding="utf-8")
        found.append(flows_of(MirrorConfig.from_settings(read_settings(file))))
    file.write_text(shared + with_flows, encoding="utf-8")
    assert MirrorConfig.from_settings(read_settings(file)).group == "hub"
    assert [each.name for each in found[0]["west"].flows] == ["west"]
    first = found[2]["east"].flow_of("page_views")
    assert first is not None
    assert (first.name, first.replica_of("page_views")) == ("east-pages", "east.page_views")
    assert (name_of(found[2]["east"], "page_tests"), name_of(found[2]["east"], "_schemas")) == (None, "schemas")


def test_a_name_that_toml_refuses_without_quotes_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "mirror.toml"
    lines = ["[[flows]]", 'topics = ["a"]', 'topics.exclude = ["b"]']
    for text in (lines, [lines[0], lines[2], lines[1]]):
        file.write_text("\n".join(text), encoding="utf-8")
        with pytest.raises(ConfigurationError, match=r"\"topics\.exclude\" needs quotes"):
            read_settings(file)


def test_a_group_needs_a_destination_that_refuses_older_copiers() -> None:
    declared = {"topics": ["a"], "destination.mode": "append", "zookeeper.connect": "hub-zookeeper:2181"}
    assert "zookeeper.connect: needs destination.mode" in refusal(**declared)


def test_topics_are_chosen_in_one_way() -> None:
    assert "topics: is missing; set it, or declare [[flows]]" in refusal()
    assert "topics: is missing" in refusal(topics=[])
    assert "topics: is set beside [[flows]]; move it into a table" in refusal(flow(), topics=["a"])
    assert "topics.exclude: is set beside [[flows]]; move it into" in refusal(flow(), topics__exclude=["a"])


def test_internal_topics_are_selected_by_their_names_alone() -> None:
    found = flows(flow(topics=[".*", "_schemas", r"_page\.views", "_a.b"], topics__exclude=["_a.b"]))["east"]
    selected = ["_schemas", "_page.views"]
    others = ["_page_views", "_a.b", "_other", "__consumer_offsets", "_mirror_gaps", "_audit"]
    assert [topic for topic in selected + others if found.flow_of(topic) is not None] == selected


def test_a_replica_with_an_illegal_name_is_refused() -> None:
    found = flows(flow(topics=[".*"], replica__topic="{source}.{topic}"), flow(name="x", topics=["_schemas"]))["east"]
    assert refusal_of(found, "t" * 244) is None
    assert "has 250 characters, at most 249 are allowed" in str(refusal_of(found, "t" * 245))
    hidden = flows(flow(topics=["clicks", "_schemas"], replica__topic="_{topic}"))["east"]
    assert "would be _clicks, but the names of a topic and its replica must both begin" in str(
        refusal_of(hidden, "clicks")
    )
    assert "__schemas, is a name of topics that are never mirrored" in str(refusal_of(hidden, "_schemas"))
    shown = flows(flow(topics=["_schemas"], replica__topic="{source}.schemas"))["east"]
    assert "must both begin" in str(refusal_of(shown, "_schemas"))
    assert "is no legal name" in str(refusal_of(flows(flow(topics=["a"], replica__topic=".."))["east"], "a"))
