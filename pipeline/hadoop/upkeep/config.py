"""Settings of the upkeep of a table."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from pipeline.records.tally import HOUR_MS
from pipeline.settings import SettingsModel

DAY_MS: Final = 24 * HOUR_MS
MIB: Final = 1 << 20


class UpkeepConfig(SettingsModel):
    """Settings of `load compact`, `load expire` and `load clean`."""

    service: ClassVar[str] = "load"

    target_file_bytes: Annotated[int, Field(alias="target.file.bytes", ge=64 * 1024, le=1024 * MIB)] = 128 * MIB
    """Size in bytes up to which compaction joins files. Files of more than half of it stay as they are."""
    retention_ms: Annotated[int | None, Field(alias="retention.ms", ge=HOUR_MS)] = None
    """Age in ms at which `load expire` removes hours, by the hour's end. Without it no hour is removed."""
    manifest_retention_ms: Annotated[int, Field(alias="manifest.retention.ms", ge=HOUR_MS)] = 7 * DAY_MS
    """Age in ms up to which commits, and files that later ones removed, can be read (time travel)."""
    orphan_age_ms: Annotated[int, Field(alias="orphan.age.ms", ge=60_000, le=30 * DAY_MS)] = DAY_MS
    """Age in ms at which the files of a dead run of upkeep are deleted."""
