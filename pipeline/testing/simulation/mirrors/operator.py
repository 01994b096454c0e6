"""The operator of the mirrors: skips gaps of halted partitions, pauses and resumes."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from pipeline.mirror.copying.resume import ResumeRequest
from pipeline.mirror.journals.pauses import PauseScope
from pipeline.mirror.pausing import PauseRequest
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.testing.simulation.mirrors.mirror_process import SimulatedMirror
from pipeline.testing.simulation.mirrors.pause_rules import covers
from pipeline.testing.simulation.mirrors.site import SimulatedSite
from pipeline.testing.simulation.recovery import until

SKIP_S = (1.0, 6.0)
PAUSE_S = (0.5, 3.0)
RETRY_S = 0.5


class SiteOperator:
    """Works on the mirrors of a site through requests, as `pipeline mirror` does."""

    def __init__(self, site: SimulatedSite, rng: random.Random, is_over: Callable[[], bool]) -> None:
        self._site = site
        self._rng = rng
        self._is_over = is_over
        self._doubtful: dict[PauseScope, None] = {}
        """Scopes of requests without an answer: they may be carried out late."""

    # Gaps

    async def skip_now_and_then(self) -> None:
        """Skip gaps of halted partitions now and then until the clients' work is over."""
        while not self._is_over():
            await trio.sleep(self._rng.uniform(*SKIP_S))
            self.skip_gaps()

    def skip_gaps(self) -> None:
        """Skip the gaps of all partitions that are halted."""
        for mirror, document in self._site.statuses():
            for source in document["sources"]:
                names = [f"{each['topic']}-{each['partition']}" for each in source["partitions"] if each["halt"]]
                if names:
                    request = ResumeRequest(names=names, source=source["name"], skip=True)
                    mirror.request(f"RESUME {', '.join(names)} of {source['name']}", partial(_skip, request))

    # Pauses

    async def pause_now_and_then(self) -> None:
        """Pause and resume until the clients' work is over."""
        while not self._is_over():
            await trio.sleep(self._rng.uniform(*PAUSE_S))
            mirror, paused, free = self._rng.choice(self._site.mirrors), self._site.pauses.scopes, self._free()
            if paused and self._rng.random() < 0.5:
                self._resume(mirror, self._rng.choice(paused))
            elif free:
                self._pause(mirror, self._rng.choice(free))

    def _free(self) -> list[PauseScope]:
        """Return what may be paused: nothing that a request under way, or one that may come late, pauses or resumes."""
        found = []
        for source in self._site.sources:
            found += [PauseScope(source=source), PauseScope(flow=source)]
            for topic, count in self._site.plan.topics:
                found += [PauseScope(source=source, topic=topic)]
                found += [PauseScope(source=source, topic=topic, partition=number) for number in range(count)]
        known = [*self._doubtful, *self._site.pauses.scopes]
        return [scope for scope in found if not any(scope == other or _is_alike(scope, other) for other in known)]

    def _pause(self, mirror: SimulatedMirror, scope: PauseScope) -> None:
        process = mirror.process

        def answered(scopes: list[PauseScope]) -> None:
            self._doubtful.pop(scope, None)
            self._site.pauses.answered(scopes, process)

        if mirror.request(f"PAUSE {scope}", partial(_pause, _request_of(scope)), answered):
            self._doubtful[scope] = None

    def _resume(self, mirror: SimulatedMirror, scope: PauseScope) -> None:
        def answered(_scopes: list[PauseScope]) -> None:
            self._doubtful.pop(scope, None)

        if mirror.request(f"UNPAUSE {scope}", partial(_unpause, _request_of(scope)), answered):
            self._doubtful[scope] = None
            self._site.pauses.ends(scope)

    async def pause_for_certain(self) -> None:
        """Pause something, unless all is in doubt, and return once all mirrors show what is paused."""
        free = self._free()
        if free:
            scope = self._rng.choice(free)
            while scope not in self._site.pauses.scopes:
                self._pause(self._rng.choice(self._site.mirrors), scope)
                await trio.sleep(RETRY_S)
        scopes = self._site.pauses.scopes
        await until(lambda: all(self._shows(mirror, scopes) for mirror in self._site.mirrors))
        for mirror in self._site.mirrors:
            self._site.pauses.answered(scopes, mirror.process)

    def _shows(self, mirror: SimulatedMirror, scopes: Sequence[PauseScope]) -> bool:
        """Return True if a mirror knows these pauses, and shows the partitions that they hold as paused."""
        if mirror.answering is None:
            return False
        document = mirror.answering.status()
        return {*scopes} <= {_scope_of(each) for each in document["pauses"]} and all(
            partition["state"] in {"paused", "elsewhere"}
            for source in document["sources"]
            for partition in source["partitions"]
            if any(
                covers(scope, source["name"], TopicPartition(partition["topic"], partition["partition"]))
                for scope in scopes
            )
        )

    async def resume_all(self) -> None:
        """End all pauses, and return once no mirror shows one."""
        self._site.pauses.end_all()  # also of requests whose answers come later
        while found := [(mirror, each) for mirror, document in self._site.statuses() for each in document["pauses"]]:
            mirror, pause = self._rng.choice(found)
            scope = _scope_of(pause)
            mirror.request(f"UNPAUSE {scope}", partial(_unpause, _request_of(scope)))
            await trio.sleep(RETRY_S)

    async def keep_resumed(self) -> None:
        """End pauses that come later, by requests under way since then, until cancelled."""
        while True:
            await trio.sleep(RETRY_S)
            await self.resume_all()


def _scope_of(pause: Mapping[str, Any]) -> PauseScope:
    return PauseScope(**{name: pause[name] for name in ("flow", "source", "topic", "partition")})


def _is_alike(scope: PauseScope, other: PauseScope) -> bool:
    """Return True if a request that ends one of these pauses may end the other one, too."""
    return scope.topic is not None and (scope.source, scope.topic) == (other.source, other.topic)


def _request_of(scope: PauseScope) -> PauseRequest:
    if scope.topic is None:
        return PauseRequest(flow=scope.flow, source=scope.source)
    name = scope.topic if scope.partition is None else f"{scope.topic}-{scope.partition}"
    return PauseRequest(names=[name], source=scope.source)


async def _skip(request: ResumeRequest, service: MirrorService) -> object:
    return await service.resumption.resume(request)


async def _pause(request: PauseRequest, service: MirrorService) -> list[PauseScope]:
    return await service.pausing.pause(request)


async def _unpause(request: PauseRequest, service: MirrorService) -> list[PauseScope]:
    return await service.pausing.resume(request)
