"""Rules of deleting: versions, subjects, contexts; softly first, then permanently. Pure.

A permanent delete is preceded by a record of the highest ids, so that they are never given out again. A version that
others refer to is not deleted.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pipeline.schema_registry.errors import Code, RegistryError, subject_not_found, version_not_found
from pipeline.schema_registry.rules.references import check_unused
from pipeline.schema_registry.rules.registry import LATEST, WritePlan, check_writable
from pipeline.schema_registry.rules.setting_commands import forget_settings
from pipeline.schema_registry.state.contexts import DEFAULT_CONTEXT, join_subject
from pipeline.schema_registry.state.events import ContextSet, SubjectDeleted, WrittenEvent
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.stored import written

MAX_REMOVED: Final = 1000
"""Versions that one write deletes permanently, so that planning it takes some milliseconds, and appending it little."""


def delete_version(state: RegistryState, subject: str, number: int | None, *, permanent: bool) -> WritePlan[int]:
    """Delete a version softly or, once that is done, permanently; the answer is its number.

    Settings of a subject go with its last version. Raises RegistryError: 40401, 40402, 40406, 40407, 42205, 42206.
    """
    versions = state.versions(subject, deleted=True)
    if not versions:
        raise subject_not_found(subject)
    live = [version for version in versions if not version.deleted]
    version = (live[-1] if live else None) if number is None else state.version(subject, number)
    if version is None:
        raise version_not_found(LATEST if number is None else number)
    number = version.number
    if version.deleted and not permanent:
        reason = f"Subject '{subject}' Version {number} was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(Code.VERSION_SOFT_DELETED, reason)
    check_writable(state, subject)
    check_unused(state, [version], deleted=permanent)
    if permanent:
        if not version.deleted:
            reason = f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted"
            raise RegistryError(Code.VERSION_NOT_SOFT_DELETED, reason)
        events: tuple[WrittenEvent, ...] = (state.reserved_ids(), *state.removal(subject, number))
        left = len(versions) - 1
    else:
        events = (written(version, deleted=True),)
        left = len(live) - 1
    return WritePlan(number, events if left else (*events, *forget_settings(state, subject)))


def delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> WritePlan[list[int]]:
    """Delete all versions softly or, once that is done, permanently; the answer is their numbers.

    Of more than MAX_REMOVED versions a permanent delete removes the latest ones; `remove_versions` removes the others
    (`left_to_remove`). Settings of the subject go with the last ones. Raises RegistryError: 40401, 40404, 40405, 42205,
    42206.
    """
    versions = state.versions(subject, deleted=True)
    if not versions:
        raise subject_not_found(subject)
    live = [version for version in versions if not version.deleted]
    if not live and not permanent:
        reason = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(Code.SUBJECT_SOFT_DELETED, reason)
    check_writable(state, subject)
    check_unused(state, versions if permanent else live, deleted=permanent, but_by=(subject,))
    if not permanent:
        # Also beyond the last live version: the record takes the place of an earlier one, which may have gone further.
        deleted = SubjectDeleted(subject=subject, version=versions[-1].number)
        return WritePlan([version.number for version in live], (deleted, *forget_settings(state, subject)))
    if live:
        reason = f"Subject '{subject}' was not deleted first before being permanently deleted"
        raise RegistryError(Code.SUBJECT_NOT_SOFT_DELETED, reason)
    numbers = [version.number for version in versions]
    return WritePlan(numbers, _removal(state, subject, numbers[-MAX_REMOVED:]))


def left_to_remove(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the parts of a subject's versions that `delete_subject` leaves to `remove_versions`, in this order."""
    for end in range(len(numbers) - MAX_REMOVED, 0, -MAX_REMOVED):
        yield numbers[max(end - MAX_REMOVED, 0) : end]


def remove_versions(state: RegistryState, subject: str, numbers: Sequence[int]) -> WritePlan[None]:
    """Go on with the permanent delete of a subject. Versions that others have removed or written since stay away.

    Raises RegistryError: 42205, 42206.
    """
    versions = [state.version(subject, number) for number in numbers]
    deleted = [version for version in versions if version is not None and version.deleted]
    if not deleted:
        return WritePlan(None)
    check_writable(state, subject)
    check_unused(state, deleted, deleted=True, but_by=(subject,))
    return WritePlan(None, _removal(state, subject, [version.number for version in deleted]))


def _removal(state: RegistryState, subject: str, numbers: Sequence[int]) -> tuple[WrittenEvent, ...]:
    """Return what removes these versions, the latest first, and with the last ones the settings of the subject."""
    removed = [event for number in reversed(numbers) for event in state.removal(subject, number)]
    is_all = len(numbers) == len(state.versions(subject, deleted=True))
    return (state.reserved_ids(), *removed, *(forget_settings(state, subject) if is_all else ()))


def delete_context(state: RegistryState, context: str) -> WritePlan[None]:
    """Delete a context without subjects. Raises RegistryError 42211 if it has some, also soft-deleted ones."""
    if context == DEFAULT_CONTEXT or state.has_subjects(join_subject(context, ""), deleted=True):
        raise RegistryError(Code.CONTEXT_NOT_EMPTY, f"The context '{context}' is not empty")
    if not state.is_recorded(context):
        return WritePlan(None)
    return WritePlan(None, (state.reserved_ids(), ContextSet(context=context, exists=False)))
