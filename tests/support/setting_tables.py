"""Writes the tables of settings in docs/ from their declarations: `python -m tests.support.setting_tables`.

A comment `<!-- settings: BrokerConfig -->` stands before the table of this class.
"""

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import MaxLen
from pydantic.fields import FieldInfo

from pipeline.audit.config import AuditConfig, ClusterConfig, CountingConfig
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.broker.settings.broker import FIELDS, BrokerConfig
from pipeline.broker.settings.dynamic import CHANGEABLE
from pipeline.broker.settings.entries import BROKER_TEXTS, as_text
from pipeline.broker.settings.listeners import ListenersConfig
from pipeline.broker.settings.topic import DefaultOf, TopicSettings
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig, bounds
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.group.config import GroupConfig
from pipeline.client.registry.config import SerializerConfig
from pipeline.coordination.zookeeper_security import ZooKeeperSecurity
from pipeline.deployment.company import (
    Company,
    CompanyDatacenter,
    CompanyHost,
    CompanyLoad,
    CompanyMirror,
    CompanyPorts,
    CompanySecurity,
)
from pipeline.hadoop.load.config import LoadConfig, LoadSelection
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.mirror.config import FlowConfig, MirrorConfig, SourceConfig
from pipeline.model import MAX_INT64
from pipeline.net.http.login import HttpLogin
from pipeline.net.http.security import HttpSecurity
from pipeline.schema_registry.config import RegistryConfig, SubjectRights
from pipeline.settings import MAX_INT32, SettingsModel

DOCS = Path(__file__).parents[2] / "docs"
MODELS: Mapping[type[Any], str] = {
    BrokerConfig: "broker.md",
    ListenersConfig: "broker.md",
    ZooKeeperSecurity: "security/zookeeper.md",
    CountingConfig: "broker.md",
    TopicSettings: "broker.md",
    MirrorConfig: "mirror/settings.md",
    SourceConfig: "mirror/settings.md",
    FlowConfig: "mirror/flows.md",
    AuditConfig: "audit/service.md",
    ClusterConfig: "audit/service.md",
    ReaderConfig: "audit/foreign.md",
    LoadConfig: "load/settings.md",
    LoadSelection: "load/jobs.md",
    UpkeepConfig: "load/upkeep.md",
    RegistryConfig: "registry.md",
    HttpSecurity: "security/http.md",
    HttpLogin: "security/http.md",
    SubjectRights: "security/http.md",
    ConnectorConfig: "client/connector.md",
    GroupConfig: "client/group.md",
    ClientConfig: "client/discovery.md",
    ProducerConfig: "client/producer.md",
    ConsumerConfig: "client/consumer.md",
    SerializerConfig: "registry/serialisers.md",
    Company: "deploy/description.md",
    CompanyDatacenter: "deploy/description.md",
    CompanyHost: "deploy/description.md",
    CompanyMirror: "deploy/description.md",
    CompanyLoad: "deploy/description.md",
    CompanySecurity: "deploy/description.md",
    CompanyPorts: "deploy/description.md",
}
NUMBERS = {MAX_INT32: "2³¹−1", MAX_INT64: "2⁶³−1", sys.float_info.max: "no limit"}


def settings_table(model: type[Any]) -> str:
    """Return the settings of a service, a topic or a client as a Markdown table."""
    texts = descriptions(model)
    if model is BrokerConfig:
        extra, texts = ["dynamic"], texts | dict(BROKER_TEXTS)
        fields = [model.model_fields[name] for name in FIELDS.values()]
        rows = [[*_cells(field), "yes" if field.alias in CHANGEABLE else ""] for field in fields]
    elif issubclass(model, SettingsModel):
        extra, rows = [], [_cells(field) for field in model.model_fields.values()]
    else:
        extra, rows = [], [_client_cells(model, field) for field in dataclasses.fields(model) if field.name in texts]
    header = ["setting", "default", "bounds", *extra, "meaning"]
    lines = [header, *([f"`{row[0]}`", *row[1:], texts[row[0]]] for row in rows)]
    first, *rest = (re.sub(" +", " ", f"| {' | '.join(line)} |") for line in lines)
    return "\n".join([first, "|" + "---|" * len(header), *rest])


def descriptions(model: type[Any]) -> dict[str, str]:
    """Return the description of each setting: the docstring under its field."""
    if issubclass(model, SettingsModel):
        return model.descriptions()
    (declared,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(declared, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(str(ast.literal_eval(text.value)).split())
        for field, text in zip(declared.body, declared.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def write_tables(page: str, text: str) -> str:
    """Return the text of a page with the present tables."""
    for model, its_page in MODELS.items():
        if its_page == page:
            place = re.compile(rf"(?<=<!-- settings: {model.__name__} -->\n\n).*?\n(?=\n|\Z)", re.DOTALL)
            text, count = place.subn(lambda _, model=model: settings_table(model) + "\n", text)  # type: ignore[misc]
            assert count == 1, f"{page} holds {count} tables of {model.__name__}"
    return text


def _cells(field: FieldInfo) -> list[str]:
    return [str(field.alias), _default(field), _bounds(field)]


def _client_cells(model: type[Any], field: "dataclasses.Field[Any]") -> list[str]:
    value, bound = field.default, bounds(model).get(field.name)
    if value is dataclasses.MISSING:
        return [field.name, "needed", ""]
    if isinstance(value, Enum):
        return [field.name, f"`{type(value).__name__}.{value.name}`", ", ".join(f"`{one.name}`" for one in type(value))]
    if inspect.isfunction(value):
        return [field.name, f"`{value.__name__}`", ""]
    limits = f"{_number(bound.lowest)} to {_number(bound.highest)}" if bound else ""
    return [field.name, _text(field.name, value), limits]


def _default(field: FieldInfo) -> str:
    for mark in field.metadata:
        if isinstance(mark, DefaultOf):
            return f"`{mark.setting}`"
    return "needed" if field.is_required() else _text(str(field.alias), field.get_default())


def _text(name: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool | Enum):
        return _number(value)
    text = as_text(name, value.value if isinstance(value, Enum) else value)
    return text if isinstance(value, bool) and text else f"`{text}`" if text else "none"


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
