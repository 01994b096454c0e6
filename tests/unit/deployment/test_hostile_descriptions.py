"""Whatever stands in a description, it has faults that are told, or files that say what it says."""

import json
import tomllib
from datetime import UTC, date, datetime
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cli.deploy.acl_scripts import acl_scripts
from pipeline.cli.deploy.service_readers import reader_faults
from pipeline.deployment.company import ServiceRole, company_of
from pipeline.deployment.faults import faults_of
from pipeline.deployment.files import rendered_files
from pipeline.deployment.services import services_of
from pipeline.settings import flatten
from tests.support.companies import example_document, secure

TEXTS = (
    *("", " ", "a b", "../a", "a/b", "'", '"', "a\nb", "a\rb", "\0", "\\", "%i", "$(id)", "`id`", "#", "=", "\u00e9"),
    *("{{ a }}", "1e3", "on", "null", "(", ".*", "_audit", "_schemas", "east", "hub", "a:1", "::1", "localhost"),
    *("/data/1", "/a/../b", "//a", "${env:A}", "hdfs://a:b@c/d", "a" * 300),
)
SCALARS = st.one_of(
    st.sampled_from(TEXTS),
    st.text(max_size=5),
    st.sampled_from((0, 1, -1, 2, 65536, 2**70, 1.5, float("inf"), float("nan"), True, False)),
    st.sampled_from((date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC))),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
KEYS = st.sampled_from(
    ("name", "listen", "rack", "ports", "roles", "log.dirs", "a\nb", "", "num.partitions", "sources", "sasl.password")
)


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, item in items for found in places(item, (*place, key)))]


PLACES = places(example_document())[1:]


def changed(place: tuple[Any, ...], value: Any, key: str | None, *, secured: bool) -> Any:
    """Return the example's document with another value at a place, or with a further key in the table there."""
    document = example_document(*([secure] if secured else []))
    holder: Any = document
    for part in place[:-1]:
        holder = holder[part]
    inner = holder.get(place[-1]) if isinstance(holder, dict) else holder[place[-1]]
    if isinstance(inner, dict) and key is not None:
        inner[key] = value
    else:
        holder[place[-1]] = value
    return document


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLACES), VALUES, st.none() | KEYS, st.booleans())
def test_faults_are_told_or_the_files_say_what_the_description_says(
    place: Any, value: Any, key: str | None, secured: bool
) -> None:
    company, faults = company_of(changed(place, value, key, secured=secured))
    if company is None or faults_of(company, reader_faults):
        assert company is not None or faults
        return
    files = {**rendered_files(company, "company.toml"), **acl_scripts(company, "company.toml")}
    for service in services_of(company):
        folder = f"{service.host.name}/etc/pipeline/{service.name}"
        if service.role is ServiceRole.ZOOKEEPER:
            assert len(files[f"{folder}.properties"].splitlines()) == len(service.settings) + 1
        else:
            assert plain(flatten(tomllib.loads(files[f"{folder}.toml"]))) == plain(service.settings)
    groups = yaml.safe_load(files["ansible/inventory.yml"])["all"]["children"].values()
    assert sorted(name for group in groups for name in group["hosts"]) == sorted(host.name for host in company.hosts)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
