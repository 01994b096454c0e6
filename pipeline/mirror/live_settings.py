"""Settings of a running mirror: compared with other ones (`plan`), and replaced by them (`apply`).

Invariants:
A. Settings are checked as a whole before anything is changed. Settings that are refused change nothing.
B. An apply names the version of the settings that its plan saw, and is refused if other settings are in force. So two
   operators do not overwrite each other's settings.
C. Applies come one after the other.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import trio
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.mirror.changes import (
    changed_settings,
    flow_changes,
    is_opened_anew,
    needs_restart,
    source_changes,
    topic_changes,
    version_of,
)
from pipeline.mirror.config import MirrorConfig, SourceConfig
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.table import PartitionTable
from pipeline.mirror.matching import match_within_bound
from pipeline.mirror.selection import compile_patterns
from pipeline.mirror.topics.flows import SourceFlows, flows_of
from pipeline.net.http.json_body import BodyRefusedError, error_response, read_body

CHECK_FILE_S = 5.0
"""Interval between looks at the settings file."""

logger = get_logger(__name__)

ReadFile = Callable[[], Mapping[str, Any]]
"""Returns the settings of the mirror's file. Raises ConfigurationError."""
FetchTopics = Callable[[SourceConfig], Awaitable[Mapping[str, int]]]
"""Returns the number of partitions of each topic of a source. Raises PipelineError."""


class PlanRequest(BaseModel):
    """Settings to compare with those in force."""

    model_config = ConfigDict(extra="forbid", strict=True)

    settings: dict[str, Any]


class ApplyRequest(PlanRequest):
    """Settings to have in force. `version` is that of the settings in force which they replace."""

    version: str = Field(min_length=1, max_length=100)


class OutdatedPlanError(PipelineError):
    """Other settings are in force than the plan saw."""


class LiveSettings:
    """The settings of one mirror. `change` puts checked settings in force."""

    def __init__(
        self,
        current: CurrentConfig,
        table: PartitionTable,
        fetch_topics: FetchTopics,
        change: Callable[[MirrorConfig, Mapping[str, SourceFlows]], Awaitable[None]],
        read_file: ReadFile | None,
    ) -> None:
        self._current = current
        self._table = table
        self._fetch_topics = fetch_topics
        self._change = change
        self._read_file = read_file
        self._turn = trio.Lock()
        self._is_of_file: bool | None = None if read_file is None else True
        self._file_error: str | None = None

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the HTTP server."""
        return [
            Route("/v1/plan", self._serve_plan, methods=["POST"]),
            Route("/v1/apply", self._serve_apply, methods=["POST"]),
        ]

    def status(self) -> dict[str, Any]:
        """Return the part of `/v1/status` about settings.

        `is_of_file`: False if a restart would put other settings in force, None if that is not known.
        """
        version = version_of(self._current.now)
        return {"version": version, "is_of_file": self._is_of_file, "file_error": self._file_error}

    async def watch_file(self) -> None:
        """Compare the settings in force with those of the file now and then, until cancelled."""
        while self._read_file is not None:
            await self._compare_with_file(self._read_file)
            await trio.sleep(CHECK_FILE_S)

    async def plan(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what these settings would change. Raises ConfigurationError if they are wrong."""
        new = MirrorConfig.from_settings(settings)
        flows = checked_flows(new)
        now = self._current.now
        running_flows = checked_flows(now)
        sources = {each.name: each for each in now.sources}
        topics: list[dict[str, Any]] = []
        unknown: dict[str, str] = {}

        async def compare(source: SourceConfig) -> None:
            before = sources.get(source.name)
            try:
                partitions = await self._fetch_topics(source)
            except PipelineError as error:
                unknown[source.name] = str(error)
                return
            topics.extend(
                topic_changes(
                    source.name,
                    partitions,
                    None if before is None else running_flows[source.name],
                    flows.get(source.name),
                    partial(self._table.replica_of, source.name),
                    is_restarted=before is not None and is_opened_anew(before, source),
                )
            )

        if new != now:
            async with trio.open_nursery() as nursery:
                for source in (sources | {each.name: each for each in new.sources}).values():
                    nursery.start_soon(compare, source)
        mirror = changed_settings(now, new, without=("sources", "flows", "topics", "topics.exclude"))
        return {
            "version": version_of(now),
            "new_version": version_of(new),
            "is_same": new == now,
            "need_restart": [each for each in mirror if needs_restart(each["setting"])],
            "settings": [each for each in mirror if not needs_restart(each["setting"])],
            "sources": source_changes(now, new),
            "flows": flow_changes(now, new),
            "topics": sorted(topics, key=lambda each: (each["source"], each["topic"])),
            "unknown_sources": unknown,
        }

    async def apply(self, settings: Mapping[str, Any], version: str) -> dict[str, Any]:
        """Put these settings in force, in place of those of `version`. Return what `/v1/apply` answers.

        Raises ConfigurationError if they are wrong or need a restart, OutdatedPlanError if others are in force. Nothing
        is changed then. If the caller is cancelled, the change is made in whole or not at all.
        """
        new = MirrorConfig.from_settings(settings)
        flows = checked_flows(new)
        async with self._turn:
            now = self._current.now
            if version_of(now) != version:
                reason = f"the settings in force are version {version_of(now)}, not {version} as in the plan"
                raise OutdatedPlanError(f"{reason}: somebody else has changed them. Run `pipeline mirror plan` again")
            for each in changed_settings(now, new):
                if needs_restart(each["setting"]):
                    reason = f"is {each['running']} in the running mirror, which cannot change it: restart the mirror"
                    raise ConfigurationError(each["setting"], reason)
            if new != now:
                with trio.CancelScope(shield=True):
                    await self._change(new, flows)
                logger.info("settings_applied", before=version, version=version_of(new))
            if self._read_file is not None:
                await self._compare_with_file(self._read_file)
            return {"version": version_of(new), "is_of_file": self._is_of_file, "is_changed": new != now}

    async def _compare_with_file(self, read_file: ReadFile) -> None:
        try:
            of_file = MirrorConfig.from_settings(await trio.to_thread.run_sync(read_file))
        except ConfigurationError as error:
            self._is_of_file, self._file_error = None, str(error)
        else:
            self._is_of_file, self._file_error = of_file == self._current.now, None

    async def _serve_plan(self, request: Request) -> JSONResponse:
        try:
            asked = await read_body(request, PlanRequest)
            return JSONResponse(await self.plan(asked.settings))
        except BodyRefusedError as error:
            return error_response(error.status, str(error))
        except ConfigurationError as error:
            return error_response(400, str(error))

    async def _serve_apply(self, request: Request) -> JSONResponse:
        try:
            asked = await read_body(request, ApplyRequest)
            return JSONResponse(await self.apply(asked.settings, asked.version))
        except BodyRefusedError as error:
            return error_response(error.status, str(error))
        except ConfigurationError as error:
            return error_response(400, f"nothing was applied: {error}")
        except OutdatedPlanError as error:
            return error_response(409, f"nothing was applied: {error}")
        except PipelineError as error:
            return error_response(503, f"nothing was applied: {error}")


def checked_flows(config: MirrorConfig) -> Mapping[str, SourceFlows]:
    """Return the flows of settings by source, once all patterns are checked. Raises ConfigurationError."""
    compile_patterns("groups", config.groups)
    compile_patterns("groups.exclude", config.groups_exclude)
    return flows_of(config, match_within_bound)
