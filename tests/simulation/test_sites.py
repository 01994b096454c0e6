"""Sites of live clusters, a hub and mirrors: seeds that must pass, runs that must be equal, broken mirrors."""

import pytest

from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.testing.simulation.mirrors.logs import BatchIdentity, Explained, LogContent, compare, differ_within
from pipeline.testing.simulation.mirrors.variants import VARIANTS
from tests.support.simulated_runs import assert_noticed, assert_pass, assert_repeats
from tests.support.sizes import size

SEEDS = 3
LAST_SEED = size(60, 240)
"""The last one of the long run."""
LAST_SEED_TO_NOTICE = 300
SELDOM_NOTICED = frozenset(
    {
        "appends without an expected end",
        "checks no copier epochs",
        "counts the age of an answer from its arrival",
        "does not compare the replica's end",
        "does the duties of a source at once",
        "remembers its position",
        "takes the last record of the table",
    }
)
"""Broken rules that few seeds notice. `make test-long` tries them."""


def test_seeds_pass() -> None:
    assert_pass("mirror", 1, SEEDS)


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_many_seeds_pass() -> None:
    assert_pass("mirror", SEEDS + 1, LAST_SEED)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(2, marks=pytest.mark.long, id="two sources and mirrors"),
        pytest.param(1, marks=pytest.mark.long, id="a source that loses records"),
        pytest.param(33, marks=pytest.mark.long, id="a group"),
    ],
)
def test_a_seed_repeats_a_run_exactly(seed: int) -> None:
    assert_repeats("mirror", seed)


def test_variants_replace_what_is_there_and_leave_it_as_it_was() -> None:
    kept = KeptOffsets.locate
    for variant in VARIANTS.values():
        with variant.breaks():
            pass
    assert KeptOffsets.locate is kept


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in SELDOM_NOTICED else name for name in VARIANTS],
)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert_noticed(VARIANTS[name], LAST_SEED_TO_NOTICE)


A, B, C, OTHER = BatchIdentity(0, 4, 11), BatchIdentity(5, 5, 12), BatchIdentity(6, 9, 13), BatchIdentity(5, 9, 14)


def log(*batches: BatchIdentity, start: int = 0) -> LogContent:
    return LogContent(start=start, end=batches[-1].last_offset + 1, batches=batches)


@pytest.mark.parametrize(
    ("source", "replica", "gaps", "problems"),
    [
        (log(A, B, C), log(A, B, C), [], 0),
        (log(A, B, C), log(A, C), [], 2),
        (log(A, B, C), log(A, C), [(5, 5)], 0),
        (log(A, OTHER), log(A, B, C), [], 3),
        (log(A, OTHER), log(A, B, C), [(5, 8)], 2),
        (log(A, OTHER), log(A, B, C), [(5, 7), (8, 9)], 0),
        (log(C, start=6), log(A, B, C), [], 0),
        (log(C, start=6), log(A, C), [], 1),
        (log(A, B), log(A, BatchIdentity(5, 5, 99)), [(5, 5)], 1),
        (log(A, B), log(A, A, B), [], 1),
    ],
    ids=[
        "equal",
        "a batch is missing",
        "the ledger names it",
        "the source lost batches",
        "the ledger names a part",
        "the ledger names all",
        "the source deleted what was copied",
        "the source deleted what was not",
        "the source never had it",
        "doubled",
    ],
)
def test_a_replica_is_what_its_source_is_but_for_what_the_ledger_says(
    source: LogContent, replica: LogContent, gaps: list[tuple[int, int]], problems: int
) -> None:
    found = list(compare("orders-0", source, replica, Explained(gaps), {A, B, C, OTHER}))
    assert len(found) == problems, found


def test_a_gap_is_true_if_the_logs_differ_within_it() -> None:
    assert differ_within(log(A, OTHER), log(A, B, C), 5, 9)
    assert not differ_within(log(A, OTHER), log(A, B, C), 0, 4)


def test_a_log_continues_behind_all_ranges_that_touch() -> None:
    explained = Explained([(10, 19), (20, 24), (30, 39)])
    assert [explained.behind(end) for end in (9, 10, 24, 25, 30)] == [9, 25, 25, 25, 40]
