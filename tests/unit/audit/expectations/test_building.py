"""What the audit expects follows from selections and lists of topics; whatever is not known is a witness."""

from typing import Any

from pipeline.audit.expectations.building import (
    MAX_TOPIC_WITNESSES,
    ClusterFacts,
    KnownCluster,
    KnownMirrors,
    MirrorFacts,
    SelectedReplicas,
    expectations_of,
)
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, Route, Witness
from pipeline.model import TopicPartition

CLICKS = TopicPartition("clicks", 0)


def facts(*, cluster_id: str = "E", unreadable: dict[str, str] | None = None, **partitions: int) -> ClusterFacts:
    return ClusterFacts(cluster_id=cluster_id, partitions=partitions, unreadable=unreadable or {})


def known(read_ms: int = 5, error: str | None = None, **more: Any) -> KnownCluster:
    return KnownCluster(facts=facts(**more), read_ms=read_ms, error=error)


EAST, HUB = known(clicks=2, _audit=1), known(cluster_id="H", clicks=2)
SELECTED = {"east": SelectedReplicas(replicas={"clicks": ["clicks"], "_schemas": ["_schemas"]})}
MIRRORS = KnownMirrors(facts=MirrorFacts(has_selection=True), read_ms=7, selected=SELECTED)


def build(east: KnownCluster = EAST, hub: KnownCluster = HUB, mirrors: KnownMirrors = MIRRORS) -> Expectations:
    return expectations_of(["east"], "hub", {"east": east, "hub": hub}, mirrors)


def reasons(expected: Expectations) -> list[tuple[str, str | None, str | None, int | None]]:
    return [(witness.name, witness.cluster, witness.topic, witness.since_ms) for witness in expected.unknown]


def test_a_selected_topic_is_expected_without_any_route() -> None:
    expected = build()
    assert expected.mirrored == [MirroredTopic(cluster="east", topic="clicks", replica_topic="clicks")]
    assert expected.partitions == {("east", "clicks"): 2, ("hub", "clicks"): 2}
    assert expected.unknown == [] and list(expected.routes) == []
    assert expected.read_to_ms == {"east": 5, "hub": 5}


def test_without_a_hub_no_mirror_is_asked_for() -> None:
    expected = expectations_of(["east"], None, {"east": EAST}, KnownMirrors())
    assert expected.unknown == [] and expected.mirrored == [] and expected.replica_cluster is None


def test_each_party_that_is_missing_is_a_witness() -> None:
    assert reasons(build(east=KnownCluster())) == [("cluster east", "east", None, None)]
    assert reasons(build(east=known(error="away", clicks=2))) == [("cluster east", "east", None, 5)]
    assert reasons(build(hub=KnownCluster(error="away"))) == [("cluster hub", "hub", None, None)]
    assert reasons(build(mirrors=KnownMirrors())) == [("mirror", None, None, None)]
    assert reasons(build(mirrors=KnownMirrors(facts=MirrorFacts(), read_ms=7, selected=SELECTED))) == [
        ("mirror", None, None, None)
    ]
    late = KnownMirrors(facts=MirrorFacts(has_selection=True), read_ms=7, error="away", selected=SELECTED)
    assert reasons(build(mirrors=late)) == [("mirror", None, None, 7)]
    assert reasons(build(mirrors=KnownMirrors(facts=MirrorFacts(has_selection=True), read_ms=7))) == [
        ("mirror", "east", None, None)
    ]


def with_facts(**more: Any) -> KnownMirrors:
    return KnownMirrors(facts=MirrorFacts(has_selection=True, **more), read_ms=7, selected=SELECTED)


def test_troubles_of_mirrors_are_witnesses() -> None:
    assert reasons(build(mirrors=with_facts(troubles={"m": "is not complete"}))) == [("mirror m", None, None, None)]
    assert reasons(build(mirrors=with_facts(losses=["lost records"]))) == [("mirror", None, None, None)]
    assert reasons(build(mirrors=with_facts(without_selection=["east", "elsewhere"]))) == [
        ("mirror", "east", None, None)
    ]
    assert reasons(build(mirrors=with_facts(cluster_ids={"east": "another"}))) == [("mirror", "east", None, None)]
    assert reasons(build(mirrors=with_facts(cluster_ids={"east": "E"}))) == []


def test_topics_that_nobody_can_tell_about_are_named_and_very_many_are_one_witness() -> None:
    few = {f"topic-{number}": "takes too long" for number in range(3)}
    expected = build(
        mirrors=KnownMirrors(facts=MIRRORS.facts, read_ms=7, selected={"east": SelectedReplicas(unknown=few)})
    )
    assert [witness.topic for witness in expected.unknown] == sorted(few)
    many = {f"topic-{number}": "has no leader" for number in range(MAX_TOPIC_WITNESSES + 1)}
    expected = build(east=known(unreadable=many, clicks=2))
    assert [(witness.cluster, witness.topic) for witness in expected.unknown] == [("east", None)]
    assert "1001 topics" in str(expected.unknown[0])


def test_internal_topics_are_expected_nowhere() -> None:
    routes = [
        Route(cluster="east", source=TopicPartition(name, 0), replica=TopicPartition(name, 0))
        for name in ("_schemas", "clicks")
    ]
    expected = build(east=known(unreadable={"_x": "gone"}, clicks=1), mirrors=with_facts(routes=routes))
    assert [route.source for route in expected.routes] == [CLICKS]
    assert expected.unknown == []


def test_a_witness_says_what_to_do() -> None:
    (found,) = build(mirrors=KnownMirrors(facts=MirrorFacts(), read_ms=7, selected=SELECTED)).unknown
    assert isinstance(found, Witness) and "start the mirror, or upgrade it" in str(found)
