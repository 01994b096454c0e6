"""The table of a group: complete, and drawn in the docs as it is."""

from pathlib import Path

from pipeline.broker.groups.group import Group
from pipeline.broker.groups.transitions import TABLE, Event, State, diagram

PAGE = Path(__file__).parents[4] / "docs" / "groups.md"


def test_the_table_decides_every_event_in_every_state():
    assert set(TABLE) == {(state, event) for state in State for event in Event}
    assert all(hasattr(Group, reaction.by) and reaction.to for reaction in TABLE.values())


def test_nothing_leads_out_of_dead():
    assert all(TABLE[State.DEAD, event].to == {State.DEAD} for event in Event)


def test_the_diagram_of_the_docs_is_that_of_the_table():
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text()
