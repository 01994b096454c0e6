"""Claims and fences, over any interleaving of writers, late appends, repairs and compactions."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import pytest

from pipeline.schema_registry.state.events import Ignored, decode_event
from pipeline.schema_registry.writing.writers import (
    MAX_STEP,
    Fence,
    FenceVerdict,
    Stamp,
    WriterClaim,
    claim_key,
    decode_claim,
    encode_claim,
    is_claim_key,
    parse_stamp,
)

KEYS = (b"k0", b"k1", b"k2")


@dataclass(frozen=True)
class Entry:
    offset: int
    key: bytes
    value: bytes | None
    stamp: Stamp | None


class Reader:
    """What a prefix of a log gives."""

    def __init__(self) -> None:
        self.fence = Fence()
        self.verdicts: dict[int, FenceVerdict] = {}
        self.values: dict[bytes, bytes | None] = {}

    def take(self, entries: Iterable[Entry]) -> "Reader":
        for entry in entries:
            verdict = self.verdicts[entry.offset] = self.fence.judge(entry.key, entry.value, entry.stamp)
            if verdict is FenceVerdict.COUNTS:
                self.values[entry.key] = entry.value
        return self


class Writer(Reader):
    """A registry that knows a prefix of the log. What it has sent may arrive later."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.stamp: Stamp | None = None
        self.read = 0
        self.under_way: list[tuple[bytes, bytes | None, Stamp]] = []


class Walk:
    """One log, beside it the same log as compaction leaves it, and registries that write at their own times."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.entries: list[Entry] = []
        self.compacted: list[Entry] = []
        self.writers = [Writer(name) for name in "abc"]
        self.truth = Reader()
        self.claims = 0
        self.whole_at = [0]
        """Offsets before which no record is damaged, so that compaction may have come as far."""

    def append(self, key: bytes, value: bytes | None, stamp: Stamp | None) -> None:
        entry = Entry(len(self.entries), key, value, stamp)
        self.entries.append(entry)
        self.compacted.append(entry)
        self.truth.take([entry])
        if not self.truth.fence.damaged_keys:
            self.whole_at.append(len(self.entries))

    def send(self, writer: Writer, records: list[tuple[bytes, bytes | None]], stamp: Stamp) -> None:
        is_late = self.rng.random() < 0.3
        for key, value in records:
            if is_late:
                writer.under_way.append((key, value, stamp))
            else:
                self.append(key, value, stamp)

    def step(self) -> None:
        rng, writer = self.rng, self.rng.choice(self.writers)
        if rng.random() < 0.4:
            writer.take(self.entries[writer.read :])
            writer.read = len(self.entries)
        if writer.under_way and rng.random() < 0.3:
            self.append(*writer.under_way.pop(rng.randrange(len(writer.under_way))))
        fence, roll = writer.fence, rng.random()
        if roll < 0.1:
            self.compact(rng.choice(self.whole_at))
        elif roll < 0.15:
            self.append(rng.choice(KEYS), b"foreign %d" % len(self.entries), None)
        elif fence.current is None or fence.current.stamp != writer.stamp:
            if roll < 0.5:
                self.claims += 1
                writer.stamp = stamp = Stamp(fence.epoch + 1, f"{writer.name}{self.claims}")
                self.send(writer, [encode_claim(WriterClaim(stamp, "http://x:1"))], stamp)
        elif roll < 0.5:
            self.send(writer, [(rng.choice(KEYS), b"%d" % len(self.entries))], fence.current.stamp)
        elif roll < 0.8:
            repairs = [(key, writer.values.get(key)) for key in fence.damaged_keys]
            self.send(writer, repairs, fence.current.stamp)
        else:
            self.send(writer, [(key, None) for key in fence.needless_claims()], fence.current.stamp)

    def compact(self, end: int) -> None:
        """Keep the last record of each key before an offset, and perhaps no tombstone."""
        last = {entry.key: entry.offset for entry in self.entries[:end]}
        keeps_tombstones = self.rng.random() < 0.5
        self.compacted = [
            entry
            for entry in self.compacted
            if entry.offset >= end
            or (last[entry.key] == entry.offset and (entry.value is not None or keeps_tombstones))
        ]


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_every_reader_of_every_compacted_log_gives_the_same_verdicts(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        walk = Walk(seed)
        for number in range(1, 151):
            walk.step()
            if number % 10:
                continue
            reader = Reader().take(walk.compacted)
            assert reader.verdicts.items() <= walk.truth.verdicts.items(), seed
            assert reader.fence.epoch == walk.truth.fence.epoch, seed
            assert reader.fence.damaged_keys == walk.truth.fence.damaged_keys, seed
            for key in KEYS:
                assert reader.values.get(key) == walk.truth.values.get(key), (seed, key)


def test_a_record_counts_only_if_no_later_writer_stands_before_it() -> None:
    for seed in range(50):
        walk = Walk(seed)
        for _ in range(150):
            walk.step()
        claimed: list[Stamp] = []
        for entry in walk.entries:
            claim = decode_claim(entry.key, entry.value)
            if claim is not None and all(claim.stamp.epoch > before.epoch for before in claimed):
                claimed.append(claim.stamp)
            if entry.stamp is not None and not is_claim_key(entry.key):
                assert (walk.truth.verdicts[entry.offset] is FenceVerdict.COUNTS) == (entry.stamp == claimed[-1])
        assert len(claimed) > 3


def test_of_two_claims_of_one_epoch_the_first_counts() -> None:
    fence = Fence()
    first, second = (WriterClaim(Stamp(1, name), f"http://{name}:1") for name in "ab")
    assert fence.judge(*encode_claim(first), first.stamp) is FenceVerdict.CLAIM
    assert fence.judge(*encode_claim(second), second.stamp) is FenceVerdict.FENCED
    assert fence.current == first
    assert fence.judge(b"k", b"v", second.stamp) is FenceVerdict.FENCED
    assert list(fence.damaged_keys) == [b"k"]
    assert fence.judge(b"k", b"v", first.stamp) is FenceVerdict.COUNTS
    assert not fence.damaged_keys


def test_only_claims_that_fenced_nothing_are_needless() -> None:
    fence = Fence()
    stamps = [Stamp(epoch, f"w{epoch}") for epoch in (1, 2, 3, 4)]
    for stamp in stamps[:2]:
        fence.judge(*encode_claim(WriterClaim(stamp, "")), stamp)
    fence.judge(b"k", b"late", stamps[0])
    for stamp in stamps[2:]:
        fence.judge(*encode_claim(WriterClaim(stamp, "")), stamp)
    assert fence.needless_claims() == [claim_key(stamps[0]), claim_key(stamps[2])]
    fence.judge(claim_key(stamps[0]), None, stamps[3])
    assert fence.needless_claims() == [claim_key(stamps[2])]


def test_a_stamp_is_read_back_and_nothing_else_is_one() -> None:
    stamp = Stamp(7, "0f3a")
    assert parse_stamp(stamp.encode()) == stamp
    for other in (None, b"", b"7", b"x 0f3a", b"7 ", b"7 a b", "7 ä".encode(), b"-1 a", b"9" * 30 + b" a"):
        assert parse_stamp(other) is None


def test_other_registries_skip_a_claim() -> None:
    """Its key is a NOOP to them, and its bytes differ from those of their own NOOP records."""
    key, value = encode_claim(WriterClaim(Stamp(3, "ab"), "http://x:1"))
    assert key.startswith(b'{"keytype":"NOOP","magic":0,')
    assert isinstance(decode_event(key, value), Ignored)
    assert decode_claim(key, value) == WriterClaim(Stamp(3, "ab"), "http://x:1")
    assert decode_claim(key, b"not json") is None
    assert decode_claim(key, None) is None
    assert decode_claim(b'{"keytype":"NOOP","magic":0,"epoch":"x","writer":"a"}', value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (claim_key(Stamp(0, "x")), b'{"url":""}'),
        (claim_key(Stamp(1, "x")), b'{"url":' + b"[" * 100_000),
        (b'{"keytype":"NOOP","magic":0,"epoch":' + b"[" * 100_000, b'{"url":""}'),
        (claim_key(Stamp(10**18 - 1, "x")), b'{"url":"http://x:1"}'),
        (claim_key(Stamp(MAX_STEP, "x")), b'{"url":"http://x:1"}'),
    ],
)
def test_no_record_keeps_registries_from_claiming(key: bytes, value: bytes) -> None:
    before, after = WriterClaim(Stamp(1, "a"), "http://a:1"), WriterClaim(Stamp(1, "b"), "http://b:1")
    for begun in ([], [encode_claim(before)]):
        fence = Fence()
        log: list[tuple[bytes, bytes | None]] = [*begun, (key, value)]
        for record in log:
            fence.judge(*record, None)
        for number in range(3):
            after = WriterClaim(Stamp(fence.epoch + 1, f"b{number}"), "http://b:1")
            log += [encode_claim(after), *((needless, None) for needless in fence.needless_claims())]
            for record in log[-2:]:
                fence.judge(*record, after.stamp)
            assert fence.current == after
        compacted = Fence()
        for number, record in enumerate(log):
            if record[0] not in [later for later, _ in log[number + 1 :]] and record[1] is not None:
                compacted.judge(*record, None)
        assert compacted.current == after


@pytest.mark.parametrize("stamp", [b"0 x", b"%d x" % (10**18 - 1), b"%d x" % MAX_STEP])
def test_no_header_keeps_registries_from_claiming(stamp: bytes) -> None:
    fence = Fence()
    fence.judge(b"k", b"v", parse_stamp(stamp))
    claim = WriterClaim(Stamp(fence.epoch + 1, "a"), "http://a:1")
    fence.judge(*encode_claim(claim), claim.stamp)
    assert fence.current == claim


def test_a_url_at_which_nothing_can_listen_is_left_out() -> None:
    for url in ("http://[", "http://a b", "\ud800", "file:///etc", "http://a:1/path", "http://" + "a" * 10_000):
        key, value = encode_claim(WriterClaim(Stamp(1, "a"), url))
        assert decode_claim(key, value) == WriterClaim(Stamp(1, "a"), "")
    for url in ("http://a-1.b_c:8081", "http://[::1]:8081"):
        key, value = encode_claim(WriterClaim(Stamp(1, "a"), url))
        assert decode_claim(key, value) == WriterClaim(Stamp(1, "a"), url)
