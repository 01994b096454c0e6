"""Prefixes against the plain way to find those of a name."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.broker.security.prefixes import Prefixes

words = st.text("ab-\U0001f600", max_size=6)


@given(st.sets(words.filter(bool)), words)
def test_the_prefixes_of_a_name_are_found_the_longest_first(prefixes: set[str], name: str) -> None:
    found = list(Prefixes(prefixes).of(name))
    assert found == sorted((prefix for prefix in prefixes if name.startswith(prefix)), key=len, reverse=True)
