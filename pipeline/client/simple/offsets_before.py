"""Offsets that divide a log, for programs that read its parts side by side. Pure."""


def divided_offsets(start: int, newest: int, at_most: int) -> list[int]:
    """Return `newest` and offsets below it down to `start`, descending, each once, at the same distances.

    Alone it is `newest`, and two are `newest` and `start`.
    """
    newest = max(start, newest)  # the log start offset may have moved since it was asked for
    parts = min(at_most - 1, newest - start)
    offsets = [newest, *(start + (newest - start) * part // parts for part in range(parts - 1, -1, -1))]
    return list(dict.fromkeys(offsets))
