import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.avro.work import RequestStepsError, Work
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.rules.candidates import Candidate, SchemaComparison, SchemaRequest
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.stored import StoredSchema, Version
from pipeline.schema_registry.work.schema_work import LONG_STEPS, SMALL_BYTES, SchemaWork
from pipeline.schema_registry.work.work_lane import MAX_WAITING, MAX_WAITING_BYTES, WorkLane
from pipeline.testing.memory_journal import MemoryJournal

DEADLINE_S = 30


@asynccontextmanager
async def busy(lane: WorkLane) -> AsyncIterator[None]:
    """Keeps the lane busy until the end of the block."""
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert done.wait(DEADLINE_S)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.run, 0, work)
            await trio.to_thread.run_sync(begun.wait, DEADLINE_S)
            try:
                yield
            finally:
                done.set()


async def test_work_is_done_in_the_order_of_arrival() -> None:
    lane, done = WorkLane(10), []
    async with trio.open_nursery() as nursery, busy(lane):
        for number in range(5):
            nursery.start_soon(lane.run, 0, lambda number=number: done.append(number))
            await trio.testing.wait_all_tasks_blocked()
        assert done == []
    assert done == [0, 1, 2, 3, 4]


async def test_what_waits_too_long_gets_an_answer_that_it_may_try_again() -> None:
    lane = WorkLane(10, max_wait_s=0.01)
    async with busy(lane):
        with pytest.raises(RegistryError, match="Try again later") as caught:
            await lane.run(0, lambda: None)
        assert caught.value.status == 503
    assert await lane.run(0, lambda: 7) == 7


async def test_the_number_that_waits_is_bounded() -> None:
    lane, done = WorkLane(10), []
    async with trio.open_nursery() as nursery, busy(lane):
        for _ in range(MAX_WAITING - 1):
            nursery.start_soon(lane.run, 0, lambda: done.append(1))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RegistryError, match="Too many schemas wait") as caught:
            await lane.run(0, lambda: None)
        assert caught.value.status == 503
    assert len(done) == MAX_WAITING - 1


async def test_the_bytes_that_wait_are_bounded() -> None:
    lane = WorkLane(10)
    async with trio.open_nursery() as nursery, busy(lane):
        nursery.start_soon(lane.run, MAX_WAITING_BYTES - 1, lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RegistryError, match="Too many schemas wait"):
            await lane.run(2, lambda: None)
    assert await lane.run(2, lambda: 7) == 7


async def test_a_cancelled_request_leaves_the_queue() -> None:
    lane = WorkLane(10)
    async with busy(lane):
        with trio.move_on_after(0.01):
            await lane.run(MAX_WAITING_BYTES, lambda: None)
    assert await lane.run(MAX_WAITING_BYTES, lambda: 7) == 7


async def test_all_work_of_a_request_takes_from_its_steps() -> None:
    lane = WorkLane(10)
    await lane.run(0, lambda: Work().take("this", 10))

    def twice() -> None:
        Work().take("this", 6)
        Work().take("that", 6)

    with pytest.raises(RequestStepsError):
        await lane.run(0, twice)
    Work().take("nobody's", 11)


def record(*fields: Any, name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


async def parsed(work: SchemaWork, text: str) -> Candidate:
    return await work.candidate(SchemaRequest(text=text), (), check_defaults=True, normalize=False)


def stored(text: str, number: int) -> Version:
    return Version(subject="s", number=number, schema=schema_of(text, number), deleted=False)


def schema_of(text: str, number: int) -> StoredSchema:
    return StoredSchema(id=number, text=text, schema_type="AVRO", identity=b"%d" % number)


async def test_small_work_does_not_wait_for_large_work() -> None:
    work = SchemaWork()
    async with busy(work.long):
        candidate = await parsed(work, record({"name": "f", "type": "int"}))
        comparison = SchemaComparison(CompatibilityLevel.FULL, ((stored(record(), 1), ()),))
        [backward] = await work.judge(candidate, comparison)
        assert "R.f" in backward
        assert await work.read_body(b"{}") == {}
        with pytest.raises(RegistryError, match="unknown type"):
            await parsed(work, record({"name": "f", "type": "unknown"}))


async def test_what_is_small_but_takes_many_steps_goes_to_the_long_lane() -> None:
    work = SchemaWork()
    text, done = many_steps(), trio.Event()
    assert len(text) <= SMALL_BYTES

    async def parse() -> None:
        await parsed(work, text)
        done.set()

    async with trio.open_nursery() as nursery, busy(work.long):
        nursery.start_soon(parse)
        await trio.testing.wait_all_tasks_blocked()
        await parsed(work, record())  # behind the attempt in the short lane
        assert not done.is_set()
    assert done.is_set()


def many_steps() -> str:
    """A small text: each of 150 values is tried against 150 types, the last of which fits."""
    types = [
        {"type": "record", "name": f"T{number}", "fields": [{"name": "a", "type": "int"}]} for number in range(150)
    ]
    types[-1]["fields"] = [{"name": "a", "type": "string"}]
    default = [{"a": ""} for _ in range(150)]
    items = [f"T{number}" for number in range(150)]
    return record(
        {"name": "types", "type": types}, {"name": "f", "type": {"type": "array", "items": items}, "default": default}
    )


WIDE = record(*({"name": f"f{number}", "type": "int"} for number in range(1_000)))


async def test_a_comparison_beyond_all_steps_is_a_reason_against_the_schema() -> None:
    work = SchemaWork()
    candidate = await parsed(work, WIDE)
    versions = [stored(f"{WIDE}{' ' * number}", number) for number in range(10)]
    comparison = SchemaComparison(CompatibilityLevel.FULL_TRANSITIVE, tuple((version, ()) for version in versions))
    work.long = WorkLane(25_000)
    [reason] = await work.judge(candidate, comparison)
    assert "takes too many steps" in reason
    work.long = WorkLane(LONG_STEPS)
    assert await work.judge(candidate, comparison) == []


async def test_a_schema_beyond_all_steps_is_invalid() -> None:
    work = SchemaWork()
    work.long = WorkLane(25_000)
    dependencies = tuple(schema_of(WIDE.replace('"R"', f'"R{number}"'), number) for number in range(10))
    with pytest.raises(RegistryError, match="too many steps") as caught:
        await work.candidate(SchemaRequest(text='"R1"'), dependencies, check_defaults=True, normalize=False)
    assert caught.value.code is Code.INVALID_SCHEMA


async def test_a_registration_waits_longer_for_its_comparison_than_a_write_may_take() -> None:
    journal, state = MemoryJournal(), RegistryState(CompatibilityLevel.BACKWARD)
    service = RegistryService(
        journal, MemoryJournal(), state, name="one", write_timeout_s=0.2, metrics=CollectorRegistry()
    )
    service.writer.url = "http://one"
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        candidate = await parsed(service.work, WIDE)
        await service.register("s", candidate)
        later = await parsed(service.work, WIDE.replace("f999", "f998b"))
        service.work.long, registered = WorkLane(LONG_STEPS), trio.Event()

        async def register() -> None:
            with pytest.raises(RegistryError, match="f998b") as caught:
                await service.register("s", later)
            assert caught.value.code is Code.INCOMPATIBLE_SCHEMA
            registered.set()

        async with busy(service.work.long):
            nursery.start_soon(register)
            with trio.move_on_after(0.4):  # longer than a write may take
                await registered.wait()
        with trio.fail_after(DEADLINE_S):
            await registered.wait()
        nursery.cancel_scope.cancel()


async def test_a_schema_with_the_types_put_in_is_the_version_that_refers_to_them(open_registry: Any) -> None:
    address = {"type": "record", "name": "x.Address", "doc": "", "fields": []}
    user = {"type": "record", "name": "x.User", "fields": [{"name": "a", "type": ["null", "Address"]}]}
    whole = {**user, "fields": [{"name": "a", "type": ["null", address]}]}
    async with open_registry(MemoryJournal()) as http:
        await http.post("/subjects/address/versions", json={"schema": json.dumps(address)})
        reference = {"name": "x.Address", "subject": "address", "version": 1}
        body = {"schema": json.dumps(user), "references": [reference]}
        assert (await http.post("/subjects/user/versions", json=body)).json()["id"] == 2
        sent = {"schema": json.dumps(whole)}
        for path in ("/subjects/user", "/subjects/user/versions"):
            answer = (await http.post(path, json=sent)).json()
            assert (answer["id"], answer["version"]) == (2, 1)
        other = {"schema": json.dumps({**whole, "doc": "another"})}
        assert (await http.post("/subjects/user", json=other)).json()["error_code"] == 40403
        assert (await http.post("/subjects/address", json=other)).json()["error_code"] == 40403
        assert (await http.post("/subjects/user/versions", json=other)).json()["id"] == 3
