"""Writes the tables of settings in docs/*.md from their declarations: `python -m tests.support.setting_tables`.

A comment `<!-- settings: BrokerConfig -->` stands before the table of this class.
"""

import re
import sys
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import MaxLen
from pydantic.fields import FieldInfo

from pipeline.audit.config import AuditConfig, ClusterConfig, CountingConfig
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import CHANGEABLE
from pipeline.broker.settings.entries import BROKER_TEXTS, as_text
from pipeline.broker.settings.topic import BROKER_DEFAULTS, TopicSettings
from pipeline.hadoop.load import LoadConfig
from pipeline.mirror.config import MirrorConfig, SourceConfig
from pipeline.schema_registry.config import RegistryConfig
from pipeline.settings import MAX_INT32, MAX_INT64, SettingsModel

DOCS = Path(__file__).parents[2] / "docs"
MODELS: dict[type[SettingsModel], str] = {
    BrokerConfig: "broker.md",
    CountingConfig: "broker.md",
    TopicSettings: "broker.md",
    MirrorConfig: "mirror.md",
    SourceConfig: "mirror.md",
    AuditConfig: "audit.md",
    ClusterConfig: "audit.md",
    LoadConfig: "load.md",
    RegistryConfig: "registry.md",
}
NUMBERS = {MAX_INT32: "2³¹−1", MAX_INT64: "2⁶³−1", sys.float_info.max: "no limit"}


def settings_table(model: type[SettingsModel]) -> str:
    """Return the settings of a service, or of a topic, as a Markdown table."""
    is_broker = model is BrokerConfig
    texts = model.descriptions() | (BROKER_TEXTS if is_broker else {})
    header = ["setting", "default", "bounds", *(["dynamic"] if is_broker else []), "meaning"]
    rows = [header]
    for field in model.model_fields.values():
        name = str(field.alias)
        dynamic = ["yes" if name in CHANGEABLE else ""] if is_broker else []
        default = (
            f"`{BROKER_DEFAULTS[name]}`" if model is TopicSettings and name in BROKER_DEFAULTS else _default(field)
        )
        rows.append([f"`{name}`", default, _bounds(field), *dynamic, texts[name]])
    lines = [re.sub(" +", " ", f"| {' | '.join(row)} |") for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def write_tables(page: str, text: str) -> str:
    """Return the text of a page with the present tables."""
    for model, its_page in MODELS.items():
        if its_page == page:
            place = re.compile(rf"(?<=<!-- settings: {model.__name__} -->\n\n).*?\n(?=\n|\Z)", re.DOTALL)
            text, count = place.subn(lambda _, model=model: settings_table(model) + "\n", text)  # type: ignore[misc]
            assert count == 1, f"{page} holds {count} tables of {model.__name__}"
    return text


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default()
    if isinstance(value, int | float):
        return "true" if value is True else "false" if value is False else _number(value)
    text = as_text(str(field.alias), value.value if isinstance(value, Enum) else value)
    return f"`{text}`" if text else "none"


def _bounds(field: FieldInfo) -> str:
    kinds = get_args(field.annotation) if get_origin(field.annotation) in {Union, UnionType} else (field.annotation,)
    choices: list[Any] = [choice for kind in kinds for choice in _choices(kind)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    limits = {
        kind: getattr(limit, kind) for limit in field.metadata for kind in ("ge", "gt", "le") if hasattr(limit, kind)
    }
    longest = [limit.max_length for limit in field.metadata if isinstance(limit, MaxLen)]
    if longest and get_origin(field.annotation) is tuple:
        return f"{1 if field.is_required() else 0} to {longest[0]}"
    if not limits:
        return ""
    if limits.get("le", MAX_INT64) == MAX_INT64:
        return f"≥ {_number(limits['ge'])}"
    lowest = f"above {_number(limits['gt'])}," if "gt" in limits else _number(limits["ge"])
    return f"{lowest} to {_number(limits['le'])}"


def _choices(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _number(value: float) -> str:
    return NUMBERS.get(value, str(value))


if __name__ == "__main__":
    for name in sorted(set(MODELS.values())):
        path = DOCS / name
        path.write_text(write_tables(name, path.read_text(encoding="utf-8")), encoding="utf-8")
