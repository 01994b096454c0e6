"""The suite itself: which tests run when."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.long_suite import (
    PROPERTIES,
    TIMED,
    PassedParts,
    files_with_long_tests,
    parts_left,
    run_parts,
    states_of_code,
)
from tests.support.sizes import SIZES, size_named
from tests.support.suite import MAX_REPEATED, PARTS, ROOT, Part, PartResult, Suite

TESTS = """\
import pytest

def test_ordinary(): pass

@pytest.mark.long
def test_soak(): pass
"""

EXAMPLES = """\
from hypothesis import settings

print(f"{settings.default.max_examples} examples")
"""

FAILS_ONCE = """\
from pathlib import Path

def test_first_time():
    mark = Path(__file__).with_suffix(".mark")
    assert mark.exists() or mark.touch()
"""


@pytest.mark.parametrize(("options", "selected"), [([], "test_ordinary"), (["-m", "long"], "test_soak")])
def test_long_tests_run_only_when_they_are_asked_for(tmp_path: Path, options: Any, selected: Any) -> None:
    (tmp_path / "test_sample.py").write_text(TESTS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        ROOT / "pyproject.toml",
        "--collect-only",
        "-q",
        *options,
        tmp_path,
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert [line.rpartition("::")[2] for line in listed.splitlines() if "::" in line] == [selected]


def test_each_file_of_tests_is_in_one_part_of_the_suite() -> None:
    files = {path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    found: Counter[Path] = Counter()
    for part in PARTS:
        assert all((ROOT / "tests" / path).exists() for path in (*part.paths, *part.without))
        found.update(
            path
            for path in files
            if any(path.is_relative_to(own) for own in part.paths)
            and not any(path.is_relative_to(other) for other in part.without)
        )
    assert found == dict.fromkeys(files, 1)


@pytest.mark.long
def test_a_test_that_passes_when_it_runs_alone_is_named_and_one_that_fails_again_ends_the_suite(
    tmp_path: Path, capfd: Any
) -> None:
    def write(name: str, program: str) -> Part:
        (tmp_path / "tests" / f"test_{name}.py").write_text(program, encoding="utf-8")
        return Part(name, [f"test_{name}.py"])

    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    suite = Suite(tmp_path)
    assert suite.run([write("rare", FAILS_ONCE)]) == ""
    assert "failed beside others: tests/test_rare.py::test_first_time" in capfd.readouterr().out
    never = write("never", "def test_fails(): assert False\n")
    assert suite.run([write("scarce", FAILS_ONCE), never]) == "tests/test_never.py::test_fails"
    broken = write("broken", "import nothing_of_this_name\n")
    assert set(suite.run([write("few", FAILS_ONCE), broken]).split(", ")) == {"few", "broken"}
    many = FAILS_ONCE.replace("def ", f"@pytest.mark.parametrize('number', range({MAX_REPEATED + 1}))\ndef ")
    many = many.replace("test_first_time()", "test_first_time(number)").replace(".mark", ".{number}").replace('"', 'f"')
    assert suite.run([write("many", "import pytest\n" + many)]) == "many"


@pytest.mark.long
def test_long_tests_that_passed_with_this_code_are_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: x\n", encoding="utf-8")
    for name in ("a", "b", "c"):
        program = TESTS if name != "b" else TESTS.replace("test_soak(): pass", "test_soak(): assert False")
        (tmp_path / f"tests/test_{name}.py").write_text(program, encoding="utf-8")
    (tmp_path / "tests/test_short.py").write_text("def test_ordinary(): pass\n", encoding="utf-8")
    files = files_with_long_tests([], tmp_path)
    assert files == ["test_a.py", "test_b.py", "test_c.py"]

    kept = tmp_path / "passed.jsonl"
    passed = PassedParts(kept, dict.fromkeys(files, "code 1"))
    suite = Suite(tmp_path, processes=2, on_end=passed.add)
    assert suite.run(list(parts_left(files, passed))) == "tests/test_b.py::test_soak"
    assert [part.name for part in parts_left(files, PassedParts(kept, dict.fromkeys(files, "code 1")))] == ["test_b.py"]
    other = PassedParts(kept, dict.fromkeys(files, "code 2"))
    first, *others = [part.name for part in parts_left(files, other)]
    assert (first, {*others}) == ("test_b.py", {"test_a.py", "test_c.py"})  # that of unknown duration first
    assert other.durations_s.keys() == {"test_a.py", "test_c.py"}


def test_the_state_of_a_part_rests_on_all_code_and_of_the_tests_on_its_own(tmp_path: Path) -> None:
    files = ["test_a.py", "deep/test_b.py"]
    parts = [*files, PROPERTIES.name]
    shared = ("pipeline/x.py", "deploy/role.yml", "tests/support/y.py")
    for name in (*shared, *(f"tests/{file}" for file in files)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")

    def changed_by(name: str) -> set[str]:
        before = states_of_code(parts, tmp_path)
        (tmp_path / name).write_text("changed", encoding="utf-8")
        after = states_of_code(parts, tmp_path)
        return {part for part in parts if before[part] != after[part]}

    for name in shared:
        assert changed_by(name) == {*parts}
    for file in files:
        assert changed_by(f"tests/{file}") == {file, PROPERTIES.name}
    assert states_of_code(files, tmp_path, "full") != states_of_code(files, tmp_path, "usual")


@pytest.mark.long
def test_long_tests_with_bounds_of_time_run_alone_at_the_end(tmp_path: Path) -> None:
    assert all((ROOT / "tests" / name).exists() for name in TIMED)
    (tmp_path / "tests").mkdir()
    names = ["test_timed.py", "test_one.py", "test_other.py", "test_failing.py"]
    for name in names:
        (tmp_path / "tests" / name).write_text(f"def test_it(): assert {name != 'test_failing.py'}\n", encoding="utf-8")
    ended: list[str] = []
    parts = [Part(name, [name]) for name in names]
    failed = run_parts(parts, 2, lambda result: ended.append(result.name), timed=names[:1], root=tmp_path)
    assert failed == "tests/test_failing.py::test_it"
    assert (ended[-1], set(ended[:3])) == (names[0], set(names[1:]))


def test_properties_are_a_part_that_is_kept_as_the_files_are(tmp_path: Path) -> None:
    kept, names = tmp_path / "passed.jsonl", ["test_a.py", PROPERTIES.name]
    passed = PassedParts(kept, dict.fromkeys(names, "code"))
    passed.add(PartResult(PROPERTIES.name, 0, (), 9.0))
    assert list(parts_left(names, passed))[1:] == [PROPERTIES]
    again = PassedParts(kept, dict.fromkeys(names, "code"))
    assert [part.name for part in parts_left(names, again)] == ["test_a.py"]


@pytest.mark.parametrize(
    ("options", "expected"), [([], "25"), (["-m", "long"], "100"), (["--hypothesis-profile=random"], "100")]
)
def test_properties_have_few_examples_in_make_test_alone(options: Any, expected: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_bytes((ROOT / "tests/conftest.py").read_bytes())
    (tmp_path / "test_sample.py").write_text(EXAMPLES, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-q", "-s", *options, tmp_path]
    assert f"{expected} examples\n" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_a_size_that_there_is_not_is_named() -> None:
    assert [size_named(name) for name in SIZES] == ["usual", "full"]
    with pytest.raises(ValueError, match=r"^SIZE is Full: it has to be one of usual, full$"):
        size_named("Full")
