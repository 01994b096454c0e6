"""The table of a group: complete, and drawn in the docs as it is."""

from pathlib import Path

from pipeline.broker.groups.model import GroupState
from pipeline.broker.groups.transitions import TABLE, diagram

PAGE = Path(__file__).parents[4] / "docs" / "groups.md"


def test_the_table_decides_every_event_in_every_state() -> None:
    assert len({row.event for row in TABLE}) == len(TABLE) == 11
    for row in TABLE:
        assert set(row.transitions) == set(GroupState)
        assert all(callable(transition.function) and transition.to for transition in row.transitions.values())


def test_no_transition_leaves_the_dead_state() -> None:
    assert all(row.transitions[GroupState.DEAD].to == {GroupState.DEAD} for row in TABLE)


def test_the_diagram_of_the_docs_is_that_of_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text()
