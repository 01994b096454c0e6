"""The file of seeds that have passed."""

from pathlib import Path

import pytest

from pipeline.testing.simulation.__main__ import main
from pipeline.testing.simulation.done_seeds import DoneSeeds


def test_seeds_that_passed_are_left_out_when_the_same_code_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "seeds"
    done = DoneSeeds(path, "this code")
    done.add(3)
    done.add(12)
    assert DoneSeeds(path, "this code").seeds == {3, 12}


def test_seeds_that_passed_with_other_code_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "seeds"
    DoneSeeds(path, "this code").add(3)
    again = DoneSeeds(path, "other code")
    assert again.is_of_other_code
    assert again.seeds == frozenset()
    assert DoneSeeds(path, "other code").seeds == frozenset()


def test_a_line_cut_off_by_an_interruption_is_no_seed(tmp_path: Path) -> None:
    path = tmp_path / "seeds"
    DoneSeeds(path, "this code").add(3)
    with path.open("a") as file:  # seed 17, say
        file.write("1")
    assert DoneSeeds(path, "this code").seeds == {3}


def test_every_seed_is_run_without_a_file_of_done_seeds() -> None:
    done = DoneSeeds(None, "this code")
    done.add(3)
    assert done.seeds == frozenset()


@pytest.mark.long
def test_a_resumed_run_counts_what_had_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seeds", "1", "--first-seed", "10", "--jobs", "1", "--resume", str(tmp_path / "seeds")]
    assert main(arguments) == 0
    assert main([*arguments[:1], "2", "--first-seed", "10", *arguments[4:], "--trace"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "1 passed, 0 failed"
    assert out[-1] == "2 passed, 0 failed"
    assert sum(line.startswith("seed ") for line in out) == 1
