"""Routes of configs and modes, and of what the server tells of itself."""

from collections.abc import Callable
from importlib import metadata
from typing import Any

from starlette.requests import Request

from pipeline.schema_registry.api.access import Action
from pipeline.schema_registry.api.api_requests import body_of, flag, scope_of
from pipeline.schema_registry.api.api_routes import ApiRoute
from pipeline.schema_registry.rules import setting_commands
from pipeline.schema_registry.service import RegistryService


def setting_routes(service: RegistryService, cluster_id: Callable[[], str | None]) -> list[ApiRoute]:
    """Return the routes."""
    api = _Settings(service, cluster_id)
    routes = [
        ApiRoute("GET", "/", Action.READ, api.root),
        ApiRoute("POST", "/", Action.READ, api.root),
        ApiRoute("GET", "/v1/metadata/id", Action.READ, api.metadata_id),
        ApiRoute("GET", "/v1/metadata/version", Action.READ, api.metadata_version),
        ApiRoute("GET", "/v1/metadata/deployment", Action.READ, api.metadata_deployment),
    ]
    for scope in ("", "/{subject}"):
        routes += [
            ApiRoute("GET", f"/config{scope}", Action.READ_SETTINGS, api.config),
            ApiRoute("PUT", f"/config{scope}", Action.WRITE_SETTINGS, api.set_config),
            ApiRoute("DELETE", f"/config{scope}", Action.WRITE_SETTINGS, api.reset_config),
            ApiRoute("GET", f"/mode{scope}", Action.READ_SETTINGS, api.mode),
            ApiRoute("PUT", f"/mode{scope}", Action.WRITE_SETTINGS, api.set_mode),
            ApiRoute("DELETE", f"/mode{scope}", Action.WRITE_SETTINGS, api.reset_mode),
        ]
    return routes


class _Settings:
    def __init__(self, service: RegistryService, cluster_id: Callable[[], str | None]) -> None:
        self._service = service
        self._state = service.state
        self._cluster_id = cluster_id

    async def root(self, _request: Request) -> Any:
        return {}

    async def metadata_id(self, _request: Request) -> Any:
        clusters = {"kafka-cluster": self._cluster_id() or "", "schema-registry-cluster": "schema-registry"}
        return {"id": "", "scope": {"path": [], "clusters": clusters}}

    async def metadata_version(self, _request: Request) -> Any:
        return {"version": metadata.version("pipeline"), "commitId": ""}

    async def metadata_deployment(self, _request: Request) -> Any:
        return {"attributes": []}

    async def config(self, request: Request) -> Any:
        or_default = flag(request, "defaultToGlobal")
        config = setting_commands.get_config(self._state, scope_of(request), or_default=or_default)
        return setting_commands.config_json(config)

    async def set_config(self, request: Request) -> Any:
        scope = scope_of(request)
        update = setting_commands.parse_config(await self._service.work.read_body(await body_of(request)))
        config = await self._service.write(lambda state: setting_commands.set_config(state, scope, update))
        return setting_commands.config_json(config, level="compatibility")

    async def reset_config(self, request: Request) -> Any:
        scope = scope_of(request)
        config = await self._service.write(lambda state: setting_commands.reset_config(state, scope))
        return setting_commands.config_json(config)

    async def mode(self, request: Request) -> Any:
        or_default = flag(request, "defaultToGlobal")
        return {"mode": setting_commands.get_mode(self._state, scope_of(request), or_default=or_default)}

    async def set_mode(self, request: Request) -> Any:
        scope, force = scope_of(request), flag(request, "force")
        content = await self._service.work.read_body(await body_of(request))
        mode = setting_commands.parse_mode(content)
        return {
            "mode": await self._service.write(lambda state: setting_commands.set_mode(state, scope, mode, force=force))
        }

    async def reset_mode(self, request: Request) -> Any:
        scope, recursive = scope_of(request), flag(request, "recursive")
        mode = await self._service.write(lambda state: setting_commands.reset_mode(state, scope, recursive=recursive))
        return {} if mode is None else {"mode": mode}
