"""The mirror service: the hub with what all sources share, and a mirror of each source that the settings have."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import Cluster
from pipeline.coordination.interface import CoordinationClient
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.mirror.changes import is_opened_anew
from pipeline.mirror.config import MirrorConfig, SourceConfig
from pipeline.mirror.copying.copy_observer import CopyObserver, NoCopyObserver
from pipeline.mirror.copying.resume import Resumption
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.hub import Hub
from pipeline.mirror.live_settings import LiveSettings, ReadFile, checked_flows
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.page.status_page import PAGE_ROLES, StatusPage
from pipeline.mirror.pausing import Pausing
from pipeline.mirror.shared_work import SharedWork
from pipeline.mirror.source_mirror import FIRST_ANSWER_TIMEOUT_S, SourceMirror
from pipeline.mirror.status import MirrorStatus
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.model import Clock, HostPort
from pipeline.net.http.roles import RoleTable
from pipeline.net.http.service import HttpService, serve_service
from pipeline.net.http.users import Role
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.waiting import Waiting

PLAN_TIMEOUT_S = 5.0
"""Time for the hub to be read, and for a source to list its topics, for a plan. An operator waits for it."""

MIRROR_ROLES: RoleTable = {
    ("GET", "/v1/status"): Role.READ,
    ("POST", "/v1/resume"): Role.WRITE,
    ("POST", "/v1/pause"): Role.WRITE,
    ("POST", "/v1/unpause"): Role.WRITE,
    ("POST", "/v1/plan"): Role.ADMIN,  # the mirror reads secrets at places that the request names
    ("POST", "/v1/apply"): Role.ADMIN,
}

logger = get_logger(__name__)

Connect = Callable[[SourceConfig], AbstractAsyncContextManager[Cluster]]
"""Opens the cluster of a source until the block ends, without waiting for an answer."""


class NotStartedError(PipelineError):
    """The mirror is not running yet, or not any more."""


class MirrorService:
    """A mirror of several sources into one destination. Raises ConfigurationError for a bad pattern."""

    def __init__(
        self,
        config: MirrorConfig,
        connect: Connect,
        destination: Cluster,
        *,
        clock: Clock,
        rng: Random,
        metrics: MirrorMetrics,
        read_file: ReadFile | None = None,
        coordination: CoordinationClient | None = None,
        observer: CopyObserver | None = None,
    ) -> None:
        """`read_file`: returns the settings that a restart would put in force; None if they are not in a file.

        `coordination`: client of the hub's ZooKeeper, if this process shares the work with others. `observer` is
        notified of what was copied.
        """
        self._flows = checked_flows(config)
        self._config = CurrentConfig(config)
        self._connect = connect
        self._hub = Hub(
            self._config, destination, clock=clock, rng=rng, metrics=metrics, observer=observer or NoCopyObserver()
        )
        self.gaps = self._hub.gaps
        self.sources: dict[str, SourceMirror] = {}
        """Mirrors of the sources, in the order of the settings. Filled when `run` begins."""
        self._running: dict[str, _RunningSource] = {}
        self._nursery: trio.Nursery | None = None
        self._hub_opened = trio.Event()
        table = self._hub.journal.table
        self.settings = LiveSettings(self._config, table, self._fetch_topics, self._change_to, read_file)
        self.state = MirrorStatus(self.sources, self._config, self._hub.throttles, metrics, clock=clock)
        self.state.topics, self.state.flows = self._hub.replicas.problems, self._hub.selected.flows
        self.state.settings = self.settings.status
        self.state.gaps = lambda: self.gaps.ledger.totals
        self.pausing = Pausing(self._hub.pauses, table, lambda: [source.copies for source in self.sources.values()])
        self.state.pauses = self.pausing.status
        self.shared: SharedWork | None = None
        """The part of this process in the work of its group; None without one."""
        if coordination is not None:
            self.shared = SharedWork(config, coordination, self._hub, self.sources, rng=rng)
            self.state.group = self.shared.document

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Mirror until cancelled. Reports the start once the sources are known; clusters may be away then."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            config = self._config.now
            opened = [await self._open_source(each, self._flows[each.name]) for each in config.sources]
            self._take_sources(config, opened)
            task_status.started()
            party = f"the hub at {','.join(map(str, config.destination))}"
            await self.state.waiting.wait_for(party, self._open_hub, lambda: self.state.error)
            self._hub_opened.set()
            nursery.start_soon(self.settings.watch_file)
            nursery.start_soon(self._hub.destination.run)
            if self.shared is not None:
                nursery.start_soon(self.shared.run)

    async def wait_for_hub(self) -> None:
        """Return once the hub was reached and its tables were read."""
        await self._hub_opened.wait()

    async def _open_hub(self) -> None:
        timeout_s = FIRST_ANSWER_TIMEOUT_S
        while True:
            try:
                with unwrapped_errors():
                    await self._hub.open(timeout_s=timeout_s)
                break
            except PipelineError as error:
                self.state.error = str(error)
                await trio.sleep(self._config.retry_backoff_s)
            timeout_s = self._config.timeout_s
        self.state.error = None

    async def _open_source(self, config: SourceConfig, flows: SourceFlows) -> "_RunningSource":
        """Return a source that runs once `begun` is set. Raises NotStartedError, ConfigurationError."""
        if self._nursery is None:
            raise NotStartedError("the mirror has not started yet: try again")
        running: _RunningSource = await self._nursery.start(self._run_source, config, flows)
        return running

    async def _run_source(
        self, config: SourceConfig, flows: SourceFlows, *, task_status: trio.TaskStatus["_RunningSource"]
    ) -> None:
        with trio.CancelScope() as scope:
            async with self._connect(config) as cluster:
                running = _RunningSource(SourceMirror(config, cluster, self._hub, flows), scope)
                task_status.started(running)
                await running.begun.wait()
                await self._hub_opened.wait()
                await running.mirror.run()
        running.ended.set()

    async def _change_to(self, config: MirrorConfig, flows: Mapping[str, SourceFlows]) -> None:
        """Put checked settings in force. Raises PipelineError, and changes nothing then.

        The hub has the new selection before anything is copied by it.
        """
        before = self._config.now
        known = {each.name: each for each in before.sources}
        fresh = [each for each in config.sources if each.name not in known or is_opened_anew(known[each.name], each)]
        opened: list[_RunningSource] = []
        try:
            for each in fresh:
                running = await self._open_source(each, flows[each.name])
                opened.append(running)
            if self._hub_opened.is_set():  # else the hub records it when it opens
                with unwrapped_errors():
                    await self._hub.record_selection(config)
        except BaseException:
            for running in opened:
                running.scope.cancel()
            raise
        kept = {each.name for each in config.sources if each not in fresh}
        left = [self._running.pop(name) for name in list(self._running) if name not in kept]
        for running in left:
            running.scope.cancel()
        for running in left:
            await running.ended.wait()
        for name in known.keys() - {each.name for each in config.sources}:
            self._hub.metrics.forget_group_offsets_age(name)
        # Nothing is awaited from here on: all tasks see either the old settings or the new ones.
        self._config.now = config
        self._hub.throttles.change(config)
        if config.topic_settings != before.topic_settings:
            self._hub.replicas.topics.clear()  # read again, with the settings to follow now
        for name in kept:
            self.sources[name].flows.replace(flows[name].flows)
        self._take_sources(config, opened)
        for each in config.sources:
            if each.name in kept:
                self.sources[each.name].change(each, before)

    def _take_sources(self, config: MirrorConfig, opened: list["_RunningSource"]) -> None:
        """Have the sources of these settings, in their order, and let those run that were opened."""
        self._running |= {running.mirror.name: running for running in opened}
        self.sources.clear()
        self.sources.update({each.name: self._running[each.name].mirror for each in config.sources})
        self._hub.set_sources(
            {name: source.known for name, source in self.sources.items()},
            {name: source.flows for name, source in self.sources.items()},
        )
        for running in opened:
            running.begun.set()

    async def _fetch_topics(self, config: SourceConfig) -> Mapping[str, int]:
        """Return the number of partitions of each topic of a source, also of one that is not in force.

        Raises NotStartedError if the partition table cannot be read: it says which replicas the topics keep.
        """
        with trio.move_on_after(PLAN_TIMEOUT_S):
            await self._hub_opened.wait()
        if not self._hub_opened.is_set():
            raise NotStartedError(f"the hub's partition table has not been read yet: {self.state.error or 'try again'}")
        source = self.sources.get(config.name)
        if source is not None and not is_opened_anew(source.config, config):
            view = await source.fetch_topics(timeout_s=PLAN_TIMEOUT_S)
        else:
            async with self._connect(config) as cluster:
                with unwrapped_errors():
                    view = await cluster.fetch_all_topics(timeout_s=PLAN_TIMEOUT_S)
        return {topic.name: len(topic.partitions) for topic in view.topics.values()}

    @property
    def resumption(self) -> Resumption:
        """Resumption of this mirror's halted partitions."""
        return Resumption(lambda: [source.copies for source in self.sources.values()], self.gaps, clock=self._hub.clock)

    def status(self) -> dict[str, Any]:
        """Return the document of `/v1/status`."""
        return self.state.document()


class _RunningSource:
    """A mirror of a source with the scope of its tasks. It runs once `begun` is set, and has `ended` after that."""

    def __init__(self, mirror: SourceMirror, scope: trio.CancelScope) -> None:
        self.mirror = mirror
        self.scope = scope
        self.begun = trio.Event()
        self.ended = trio.Event()


async def run_mirror(
    config: MirrorConfig,
    connect: Connect,
    destination: Cluster,
    *,
    clock: Clock,
    rng: Random,
    metrics: CollectorRegistry,
    read_file: ReadFile | None = None,
    coordination: CoordinationClient | None = None,
    observer: CopyObserver | None = None,
    connect_coordination: Callable[[Waiting], Awaitable[None]] | None = None,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mirror the sources into the destination until cancelled. Reports the address of its HTTP server.

    `connect`, `read_file`, `coordination` and `observer` as in MirrorService. End the session of `coordination` as soon
    as this function has returned. `connect_coordination`: connects it, however long that takes; meanwhile metrics and
    health are served. Raises ConfigurationError for a bad pattern.
    """
    service = MirrorService(
        config,
        connect,
        destination,
        clock=clock,
        rng=rng,
        metrics=MirrorMetrics(metrics),
        read_file=read_file,
        coordination=coordination,
        observer=observer,
    )
    page = StatusPage(service.state, service.gaps, clock=clock)
    routes = [*page.routes(), *service.state.routes(), service.resumption.route()]
    routes += [*service.settings.routes(), *service.pausing.routes()]
    http = HttpService(name="mirror", routes=routes, roles={**PAGE_ROLES, **MIRROR_ROLES}, metrics=metrics)
    async with trio.open_nursery() as nursery:
        address: HostPort = await nursery.start(serve_service, http, config.http_listen, config.http)
        if service.shared is not None:
            service.shared.address = str(address)
        if connect_coordination is not None:
            await connect_coordination(service.state.waiting)
        await nursery.start(service.run)
        nursery.start_soon(page.run)
        task_status.started(address)
        await service.wait_for_hub()
        logger.info(
            "mirror_ready",
            http=str(address),
            destination=",".join(map(str, config.destination)),
            sources={source.name: ",".join(map(str, source.bootstrap)) for source in config.sources},
            flows=[flow["name"] for flow in service.state.flows()],
        )
