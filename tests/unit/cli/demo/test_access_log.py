"""Every line of the sample is an event that its schema can hold."""

import io
import json

import fastavro
import pytest

from pipeline.cli.demo.access_log import home_datacenter, parse_line, sample_lines, sample_schema


def test_all_lines_of_the_sample_become_events() -> None:
    schema = fastavro.parse_schema(json.loads(sample_schema()))
    views = [parse_line(line) for line in sample_lines()]
    assert len(views) == 10_000
    assert len({view.time_ms // 3_600_000 for view in views}) == 84
    out = io.BytesIO()
    for view in views:
        fastavro.schemaless_writer(out, schema, view.fields)
    halves = [home_datacenter(view.client_address, ("east", "west")) for view in views]
    assert 3000 < halves.count("east") < 7000


def test_fields_are_taken_as_they_stand() -> None:
    view = parse_line('1.2.3.4 - - [17/May/2015:10:05:03 +0200] "GET /a b?q="x" HTTP/1.1" 304 - "-" "agent \\"x\\""')
    assert view.time_ms == 1431849903000
    assert view.fields["path"] == '/a b?q="x"'
    assert view.fields["bytes"] is None
    assert view.fields["referrer"] is None
    assert view.fields["user_agent"] == 'agent \\"x\\"'


def test_other_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="combined format"):
        parse_line("hello")


def test_a_client_stays_in_its_datacenter() -> None:
    assert home_datacenter("1.2.3.4", ("east", "west")) == home_datacenter("1.2.3.4", ("east", "west"))
