from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.schema.import_plan import in_order, in_waves, plan_import
from pipeline.client.registry.administration import RegistryContents, SchemaEntry


def entry(subject: str, *, id_: int = 1, refer: tuple[tuple[str, int], ...] = ()) -> SchemaEntry:
    references = [{"name": "x", "subject": name, "version": number} for name, number in refer]
    content = {"schema": f'"{id_}"', "references": references}
    return SchemaEntry(subject=subject, version=1, id=id_, content=content)


def contents(*entries: SchemaEntry) -> RegistryContents:
    return RegistryContents(schemas={(each.subject, each.version): each for each in entries})


def always(*_: Any) -> bool:
    return True


def test_references_come_first_whatever_their_ids() -> None:
    a, b = entry("a", id_=1, refer=(("b", 1), ("c", 1))), entry("b", id_=2, refer=(("c", 1),))
    plan = plan_import(contents(a, b, entry("c", id_=3)), RegistryContents(), always)
    assert [each.subject for each in plan.registrations] == ["c", "b", "a"]
    assert plan.conflicts == []


def test_references_are_named_within_the_context() -> None:
    inner = entry(":.c:a", id_=1, refer=(("b", 1),))
    ordered, faults = in_order({(e.subject, 1): e for e in (inner, entry(":.c:b", id_=2), entry("b", id_=3))})
    assert [each.subject for each in ordered] == [":.c:b", "b", ":.c:a"]
    assert faults == []
    _, faults = in_order({(inner.subject, 1): inner}, [("b", 1)])
    missing = ":.c:b version 1, which neither the export nor the registry has"
    assert faults == [f":.c:a version 1 refers to {missing}"]


def test_circles_and_missing_versions_are_conflicts() -> None:
    a, b, c = entry("a", refer=(("b", 1),)), entry("b", id_=2, refer=(("a", 1),)), entry("c", id_=3, refer=(("d", 1),))
    plan = plan_import(contents(a, b, c), RegistryContents(), always)
    assert plan.conflicts == [
        "c version 1 refers to d version 1, which neither the export nor the registry has",
        "versions refer to one another: a version 1 -> b version 1 -> a version 1",
    ]
    itself = plan_import(contents(entry("a", refer=(("a", 1),))), RegistryContents(), always)
    assert itself.conflicts == ["versions refer to one another: a version 1 -> a version 1"]


def test_types_that_the_registry_does_not_take_are_conflicts() -> None:
    other = SchemaEntry(subject="p", version=1, id=1, content={"schema": "x", "schemaType": "PROTOBUF"})
    plan = plan_import(contents(other), RegistryContents(), always, ["AVRO"])
    assert plan.conflicts == ["p version 1 is of type PROTOBUF, which the registry does not take"]
    assert plan_import(contents(other), contents(other), always, ["AVRO"]).conflicts == []


def test_ids_of_other_contexts_are_other_ids() -> None:
    plan = plan_import(contents(entry(":.c:a", id_=1)), contents(entry("a", id_=1)), lambda *_: False)
    assert (plan.conflicts, len(plan.registrations)) == ([], 1)


def test_a_config_is_set_if_an_attribute_differs() -> None:
    export = RegistryContents(configs={None: {"a": 1}, "s": {"a": 1}, "t": {"a": 2}})
    registry = RegistryContents(configs={None: {"a": 1, "b": 2}, "s": {"a": 2}})
    assert plan_import(export, registry, always).configs == {"s": {"a": 1}, "t": {"a": 2}}


@given(st.dictionaries(st.integers(0, 20), st.sets(st.integers(0, 20)), max_size=20))
def test_any_references_without_circles_are_ordered(targets: dict[int, set[int]]) -> None:
    schemas = {
        (str(n), 1): entry(str(n), id_=n + 1, refer=tuple((str(t), 1) for t in others if t < n))
        for n, others in targets.items()
    }
    ordered, _ = in_order(schemas)
    assert {(each.subject, 1) for each in ordered} == schemas.keys()
    waves = in_waves(ordered)
    assert all(waves)
    for places in ([[each] for each in ordered], waves):
        place_of = {(each.subject, 1): place for place, group in enumerate(places) for each in group}
        assert place_of.keys() == schemas.keys()
        for each in ordered:
            for _, subject, version in each.references:
                assert place_of.get((subject, version), -1) < place_of[each.subject, 1]
