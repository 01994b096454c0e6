"""Loss of power: what a broker's log dirs look like after it."""

from pathlib import Path

from pipeline.log.checkpoint import BOOT_ID, CLEAN_SHUTDOWN


def lose_power(directory: Path) -> None:
    """The machine of this stopped broker loses what was not flushed of the topic `t`."""
    for log_dir in directory.parent.glob(f"{directory.name}*"):
        (log_dir / BOOT_ID).write_text("another boot")
        (log_dir / CLEAN_SHUTDOWN).unlink()
        for checkpoint in log_dir.glob("*-checkpoint"):
            checkpoint.unlink()
        for path in log_dir.glob("t-0/0*"):
            path.write_bytes(b"")
