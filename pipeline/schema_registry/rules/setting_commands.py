"""Rules of configs and modes. Pure."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.errors import Code, RegistryError, subject_not_found
from pipeline.schema_registry.rules.references import check_unused
from pipeline.schema_registry.rules.registry import WritePlan, check_subject, check_writable
from pipeline.schema_registry.state.contexts import (
    GLOBAL_CONTEXT,
    context_of,
    in_scope,
    join_subject,
    split_subject,
    subject_beside,
)
from pipeline.schema_registry.state.events import ConfigSet, ModeSet, SubjectCleared, WrittenEvent
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.subject_settings import NO_CONFIG, RegistryMode, SubjectConfig

_SERVED: Final = ("compatibility", "normalize", "alias")
_REFUSED: Final = (
    "aliasForDeks",
    "compatibilityGroup",
    "compatibilityPolicy",
    "defaultMetadata",
    "defaultRuleSet",
    "overrideMetadata",
    "overrideRuleSet",
    "validateFields",
    "validateNewSchemas",
    "validateRules",
)
ConfigUpdate = Mapping[str, Any]
"""Attributes of SubjectConfig that change."""


def parse_level(text: object) -> CompatibilityLevel:
    """Parse a level's name, in any case. Raises RegistryError 42203."""
    try:
        return CompatibilityLevel(text.upper() if isinstance(text, str) else "")
    except ValueError:
        names = ", ".join(level.value.lower() for level in CompatibilityLevel)
        raise RegistryError(Code.INVALID_LEVEL, f"Invalid compatibility level. Valid values are {names}") from None


def parse_mode(content: Mapping[str, Any]) -> RegistryMode | None:
    """Parse the body of a change of a mode, its name in any case; null resets it. Raises RegistryError 42204."""
    text = content.get("mode", "")
    if text is None:
        return None
    try:
        return RegistryMode(text.upper() if isinstance(text, str) else "")
    except ValueError:
        names = ", ".join(mode.value for mode in RegistryMode)
        raise RegistryError(Code.INVALID_MODE, f"Invalid mode. Valid values are {names}") from None


def parse_config(content: Mapping[str, Any]) -> ConfigUpdate:
    """Parse the body of a change of a config; null resets an attribute. Raises RegistryError: 422, 42203."""
    refused = [name for name in _REFUSED if content.get(name)]
    if refused:
        raise RegistryError(Code.UNPROCESSABLE, f"'{refused[0]}' is not served: leave it out")
    if not any(name in content for name in _SERVED):
        raise RegistryError(Code.INVALID_LEVEL, "The body needs 'compatibility', or 'normalize', or 'alias'")
    update: dict[str, Any] = {}
    if "compatibility" in content:
        level = content["compatibility"]
        update["level"] = None if level is None else parse_level(level)
    for name, kind in (("normalize", bool), ("alias", str)):
        if name in content:
            if not isinstance(content[name], kind | None):
                raise RegistryError(Code.UNPROCESSABLE, f"'{name}' must be a {kind.__name__}, or null")
            update[name] = content[name]
    return update


def config_json(config: SubjectConfig, *, level: str = "compatibilityLevel") -> dict[str, Any]:
    """Return a config as the API shows it; `level` is the name of its level there."""
    shown = {"alias": config.alias, "normalize": config.normalize, level: config.level}
    more: dict[str, Any] = json.loads(config.more) if config.more else {}
    return {**{name: value for name, value in shown.items() if value is not None}, **more}


def get_config(state: RegistryState, subject: str | None, *, or_default: bool) -> SubjectConfig:
    """Return the config of a subject; with `or_default` what it does not set is that of its context, and so on.

    Raises RegistryError 40408 if the subject has no config of its own, and no default is wanted.
    """
    if not or_default and state.settings.own_config(subject) is None and not _is_global(subject):
        reason = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise RegistryError(Code.NO_SUBJECT_CONFIG, reason)
    if or_default:
        return state.settings.config(subject)
    own = state.settings.own_config(subject) or NO_CONFIG
    return own if own.level is not None else replace(own, level=state.settings.level(subject))


def set_config(state: RegistryState, subject: str | None, update: ConfigUpdate) -> WritePlan[SubjectConfig]:
    """Change the config of a subject (which need not exist yet), a context, or the default context (None)."""
    if subject is not None:
        check_subject(subject, settings=True)
    if update.get("alias"):
        check_subject(update["alias"])
    check_writable(state, subject)
    config = replace(state.settings.own_config(subject) or NO_CONFIG, **update)
    if config == state.settings.own_config(subject):
        return WritePlan(config)
    return WritePlan(config, (ConfigSet(subject=subject, config=config),))


def reset_config(state: RegistryState, subject: str | None) -> WritePlan[SubjectConfig]:
    """Reset a config; the answer is the config before. Raises RegistryError 40401 if the subject had none."""
    config = state.settings.own_config(subject)
    if config is None and not _is_global(subject):
        raise subject_not_found(str(subject))
    check_writable(state, subject)
    before = get_config(state, subject, or_default=False)
    return WritePlan(before, () if config is None else _no_config(state, subject))


def get_mode(state: RegistryState, subject: str | None, *, or_default: bool) -> RegistryMode:
    """Return the mode of a subject; with `or_default` that of its context, and so on, if it has none.

    Raises RegistryError 40409 if the subject has no mode of its own, and no default is wanted.
    """
    own = state.settings.own_mode(subject)
    in_force = state.settings.mode(subject)
    if or_default or in_force is RegistryMode.READONLY_OVERRIDE:
        return in_force
    if own is None and not _is_global(subject):
        reason = f"Subject '{subject}' does not have subject-level mode configured"
        raise RegistryError(Code.NO_SUBJECT_MODE, reason)
    return own or RegistryMode.READWRITE


def set_mode(
    state: RegistryState, subject: str | None, mode: RegistryMode | None, *, force: bool
) -> WritePlan[RegistryMode | None]:
    """Set the mode of a subject (which need not exist yet), a context, or the default context (None); None resets it.

    An import begins without schemas, unless `force` is set: those that are soft-deleted are permanently deleted. Raises
    RegistryError: 42205 if there are others, 42206 if others refer to deleted ones.
    """
    if subject is not None:
        check_subject(subject, settings=True)
    change: tuple[WrittenEvent, ...] = ()
    if state.settings.own_mode(subject) is not mode:
        change = _no_mode(state, subject) if mode is None else (ModeSet(subject=subject, mode=mode),)
    if mode is not RegistryMode.IMPORT or state.settings.mode(subject) is RegistryMode.IMPORT or force:
        return WritePlan(mode, change)
    if state.has_subjects(subject):
        raise RegistryError(Code.NOT_PERMITTED, "Cannot import since found existing subjects")
    return WritePlan(mode, (*_cleared(state, subject), *change))


def _cleared(state: RegistryState, scope: str | None) -> tuple[WrittenEvent, ...]:
    """Return what permanently deletes the soft-deleted versions of a scope, and tells other registries of it."""
    subjects = [subject for subject in state.subjects(deleted=True) if in_scope(scope, subject)]
    versions = [version for subject in subjects for version in state.versions(subject, deleted=True)]
    check_unused(state, versions, deleted=True, but_by=subjects)
    removed = [event for version in reversed(versions) for event in state.removal(version.subject, version.number)]
    return (*((state.reserved_ids(),) if removed else ()), *removed, SubjectCleared(subject=scope))


def reset_mode(state: RegistryState, subject: str | None, *, recursive: bool) -> WritePlan[RegistryMode | None]:
    """Reset a mode, with `recursive` also those of the subjects of a context; the answer is the mode before.

    Raises RegistryError 40401 if there was none.
    """
    before = state.settings.own_mode(subject)
    if before is None and not recursive and not _is_global(subject):
        raise subject_not_found(str(subject))
    scopes = [subject] if before is not None else []
    if recursive and (subject is None or not split_subject(subject)[1]):
        context = context_of(subject or "")
        scopes += [
            name for name in state.settings.scopes_with_mode() if context_of(name) == context and name != subject
        ]
    events = tuple(event for scope in scopes for event in _no_mode(state, scope))
    return WritePlan(before or (RegistryMode.READWRITE if _is_global(subject) else None), events)


def subject_meant(state: RegistryState, subject: str) -> str:
    """Return the subject that the alias of a subject names, or the subject itself."""
    config = state.settings.own_config(subject)
    return subject if config is None or not config.alias else subject_beside(subject, config.alias)


def forget_settings(state: RegistryState, subject: str) -> tuple[WrittenEvent, ...]:
    """Return what resets the config and mode of a subject that is gone."""
    config = () if state.settings.own_config(subject) is None else _no_config(state, subject)
    mode = () if state.settings.own_mode(subject) is None else _no_mode(state, subject)
    return (*config, *mode)


def _no_config(state: RegistryState, subject: str | None) -> tuple[WrittenEvent, ...]:
    keys = (None, *state.settings.other_keys(ConfigSet, subject))
    return tuple(ConfigSet(subject=subject, config=None, other_key=key) for key in keys)


def _no_mode(state: RegistryState, subject: str | None) -> tuple[WrittenEvent, ...]:
    keys = (None, *state.settings.other_keys(ModeSet, subject))
    return tuple(ModeSet(subject=subject, mode=None, other_key=key) for key in keys)


def _is_global(subject: str | None) -> bool:
    return subject is None or subject == join_subject(GLOBAL_CONTEXT, "")
