"""Roles that the routes of a registry need.

READ sees schemas, and asks whether one would be compatible; WRITE registers schemas and sets the compatibility of a
subject; ADMIN deletes, and sets modes and what holds for all subjects.
"""

from typing import Final

from pipeline.net.http.roles import RoleTable
from pipeline.net.http.users import Role

_VERSIONS: Final = "/subjects/{subject}/versions"
_CHECKS: Final = "/compatibility/subjects/{subject}/versions"

REGISTRY_ROLES: Final[RoleTable] = {
    ("GET", "/"): Role.READ,
    ("POST", "/"): Role.READ,
    ("GET", "/v1/metadata/id"): Role.READ,
    ("GET", "/v1/metadata/version"): Role.READ,
    ("GET", "/v1/metadata/deployment"): Role.READ,
    ("GET", "/journal"): Role.READ,
    ("GET", "/schemas"): Role.READ,
    ("GET", "/schemas/types"): Role.READ,
    ("GET", "/schemas/ids/{id}"): Role.READ,
    ("GET", "/schemas/ids/{id}/schema"): Role.READ,
    ("GET", "/schemas/ids/{id}/subjects"): Role.READ,
    ("GET", "/schemas/ids/{id}/versions"): Role.READ,
    ("GET", "/schemas/guids/{guid}"): Role.READ,
    ("GET", "/schemas/guids/{guid}/ids"): Role.READ,
    ("GET", "/contexts"): Role.READ,
    ("DELETE", "/contexts/{context}"): Role.ADMIN,
    ("GET", "/subjects"): Role.READ,
    ("POST", "/subjects/{subject}"): Role.READ,
    ("DELETE", "/subjects/{subject}"): Role.ADMIN,
    ("GET", "/subjects/{subject}/metadata"): Role.READ,
    ("GET", _VERSIONS): Role.READ,
    ("POST", _VERSIONS): Role.WRITE,
    ("GET", f"{_VERSIONS}/{{version}}"): Role.READ,
    ("DELETE", f"{_VERSIONS}/{{version}}"): Role.ADMIN,
    ("GET", f"{_VERSIONS}/{{version}}/schema"): Role.READ,
    ("GET", f"{_VERSIONS}/{{version}}/referencedby"): Role.READ,
    ("POST", _CHECKS): Role.READ,
    ("POST", f"{_CHECKS}/{{version}}"): Role.READ,
    ("GET", "/config"): Role.READ,
    ("PUT", "/config"): Role.ADMIN,
    ("DELETE", "/config"): Role.ADMIN,
    ("GET", "/config/{subject}"): Role.READ,
    ("PUT", "/config/{subject}"): Role.WRITE,
    ("DELETE", "/config/{subject}"): Role.WRITE,
    ("GET", "/mode"): Role.READ,
    ("PUT", "/mode"): Role.ADMIN,
    ("DELETE", "/mode"): Role.ADMIN,
    ("GET", "/mode/{subject}"): Role.READ,
    ("PUT", "/mode/{subject}"): Role.ADMIN,
    ("DELETE", "/mode/{subject}"): Role.ADMIN,
}
