"""Values of the settings of subjects and contexts: configs (compatibility and more) and modes. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel


class RegistryMode(StrEnum):
    """Mode of a subject: the writes that it allows."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    """Global: no subject may be written, whatever its own mode."""
    IMPORT = "IMPORT"
    """Only schemas that bring their ids are registered, without a check of compatibility."""

    @property
    def read_only(self) -> bool:
        """True if nothing may be written."""
        return self in {RegistryMode.READONLY, RegistryMode.READONLY_OVERRIDE}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectConfig:
    """Config of a subject; None is not set."""

    level: CompatibilityLevel | None = None
    normalize: bool | None = None
    alias: str | None = None
    """Subject that is meant by requests for this one."""
    more: str = ""
    """Attributes of other registries that have no effect here: a JSON object, to be written again."""


NO_CONFIG: Final = SubjectConfig()
