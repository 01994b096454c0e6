"""Sentences for people about one difference. Pure."""

from pipeline.audit.judgement.comparison import Remark
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Explanation, Finding, Stage, Status

_TIERS = {
    "produced": "produced",
    "live": "live",
    "mirrored": "mirrored",
    "replica": "at the replica",
    "loaded": "loaded",
    "stored": "stored",
    "consumed": "consumed",
}


def participle(stage: Stage) -> str:
    """Return what records of a stage are: `live`, `at the replica`, `loaded by /lake`."""
    words = _TIERS[stage.tier]
    return f"{words} by {stage.name}" if stage.name else words


def number_text(number: int, noun: str) -> str:
    """Return a number of things: `1 batch`, `2 batches`, `0 records`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def records_text(records: int) -> str:
    """Return a number of records: `1 record`, `2 records`."""
    return number_text(records, "record")


def sentence(finding: Finding, remark: Remark = Remark.NONE) -> str:
    """Return the sentence of a finding."""
    where = f"{finding.cluster} {finding.source}"
    if finding.replica is not None and finding.after.tier != "produced":
        where += f" (replica {finding.replica})"
    text = f"{where}: {finding.at}: {_what(finding, remark)}"
    if finding.quarantined and finding.status is not Status.QUARANTINED:
        text += f"; {records_text(finding.quarantined)} in the quarantine of the load"
    if finding.offsets is not None and finding.status.is_difference:
        text += f", between offsets {finding.offsets.first} and {finding.offsets.last}"
    if finding.kind is DiscrepancyKind.MISPLACED:
        text += "; another partition of the topic has exactly these batches too many"
    return text


def _what(finding: Finding, remark: Remark) -> str:
    records, after = records_text(finding.records), participle(finding.after)
    verb = "was" if finding.records == 1 else "were"
    match finding.status:
        case Status.MISSING:
            return f"{records} that {verb} {after} {_is(finding)} missing" + _MISSING.get(remark, "")
        case Status.EXPLAINED:
            return _explained(finding, remark)
        case Status.QUARANTINED:
            return f"{records} {_is(finding)} in the quarantine of the load"
        case Status.EXTRA if finding.kind is DiscrepancyKind.DOUBLED:
            return f"{records} more than were {after}: the files have their offsets twice"
        case Status.EXTRA:
            return f"{records} more than were {after}"
        case Status.RECOMPRESSED if remark is Remark.UNCOMPARED:
            return (
                f"as many records as were {after}, beside records of producers that do not count; brokers wrote the "
                "batches anew, so contents were not compared"
            )
        case Status.RECOMPRESSED:
            return (
                f"as many records and batches as were {after}, with the same headers, in another codec; their contents "
                "were not compared"
            )
        case Status.PENDING if finding.kind is DiscrepancyKind.LATE:
            return f"{records} that {verb} {after} late, after the hour was over, {_has(finding)} not come yet"
        case Status.PENDING if remark is Remark.MIRRORED:
            return f"{records} that the mirror copied {_is(finding)} in no report of the brokers yet"
        case Status.PENDING:
            return f"{records} that {verb} {after} {_has(finding)} not come yet" if finding.records else _UNDER_WAY
        case Status.UNKNOWN:
            return _unknown(finding, remark)
        case _ if remark is Remark.REORDERED:
            return f"the same batches as were {after}, at other offsets"
        case _:
            return f"as many records as were {after}, but other bytes"


_UNDER_WAY = "as many records, but other bytes so far; not all counts have come yet"
_MISSING = {
    Remark.STALLED: "; the replica has reported nothing new for longer than pending.max.ms",
    Remark.UNMARKED: " among the records of producers without marks",
}
_OTHER_WAYS = {
    Remark.COPIED: "the topic is a replica itself, or was one then, and its copies are counted as well",
    Remark.PROMOTED: "the replica was promoted, and producers may have written to it",
}


def _is(finding: Finding) -> str:
    return "is" if finding.records == 1 else "are"


def _has(finding: Finding) -> str:
    return "has" if finding.records == 1 else "have"


def _explained(finding: Finding, remark: Remark) -> str:
    records = records_text(finding.records)
    if remark is Remark.UNCERTAIN:
        return f"{records} more than were acknowledged; the producer does not know the outcome of at least as many"
    missing = f"{records} that were {participle(finding.after)} {_is(finding)} missing"
    if finding.explanation is Explanation.COMPACTION:
        return f"{missing}; the topic is compacted, so the audit cannot tell compaction from loss here"
    if finding.explanation is None:
        return missing
    return f"{missing}, as {finding.explanation} says"


def _unknown(finding: Finding, remark: Remark) -> str:
    records = records_text(finding.records)
    if remark is Remark.FOREIGN_OR_DOUBLED:
        what = f"{records} more without a mark than were {participle(finding.after)}: records of producers that do not "
        return what + "count, or records doubled; nobody can tell which"
    if remark in _OTHER_WAYS:
        return f"{records} more than were {participle(finding.after)}: {_OTHER_WAYS[remark]}"
    records += " differs" if finding.records == 1 else " differ"
    if remark is Remark.DOUBTFUL:
        return f"{records} from what was {participle(finding.after)}; a counter does not know all of the hour"
    what = f"{records} from what was {participle(finding.after)}"
    return what if finding.witness is None else f"{what}, and the reason is not known: {finding.witness}"
