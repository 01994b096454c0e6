"""Java programs from the public repositories, for tests and benchmarks: HDFS, Apache Kafka, command line tools.

Java is enough: the Ivy that lies among pyspark's jars resolves and downloads with its own default resolver. What was
fetched is kept in `.cache/jars` of the repository, or in `$PIPELINE_CACHE/jars`.

Invariant: a directory under its final name is complete. It is filled under a temporary name and renamed, so a
download that was cut short is never taken for a whole one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

FETCH_TIMEOUT_S = 900
ALONE = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, order=True)
class Artifact:
    """What a Java module is called in the public repositories. `classifier` names a further jar of it, fetched too."""

    organisation: str
    name: str
    revision: str
    classifier: str = ""

    def __str__(self) -> str:
        classifier = f":{self.classifier}" if self.classifier else ""
        return f"{self.organisation}:{self.name}:{self.revision}{classifier}"


class JarFetchError(Exception):
    """The jars could not be had; carries what Ivy said."""


def java() -> str:
    """The java of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise JarFetchError("no java found: set JAVA_HOME or install Java 17")
    return found


def pyspark_jars() -> Path:
    """The directory of the jars that pyspark carries (Spark, the Hadoop client, ZooKeeper, Ivy)."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarFetchError("pyspark is not installed")
    return Path(spec.origin).parent / "jars"


def fetch_jars(*artifacts: Artifact, alone: bool = False) -> Path:
    """A directory that holds the jars of `artifacts` and of all they depend on. Downloads them the first time.

    With `alone` only their own jars, which must hold all that they need.
    """
    if not artifacts:
        raise ValueError("name at least one artifact")
    digest = hashlib.sha256("\n".join(map(str, sorted(artifacts))).encode()).hexdigest()[:12]
    cache = _cache_directory()
    final = cache / f"{artifacts[0].name}-{artifacts[0].revision}-{digest}"
    if final.is_dir():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.is_dir():
            with tempfile.TemporaryDirectory(dir=cache, prefix="incomplete-") as temporary:
                _retrieve(artifacts, Path(temporary), cache / "ivy", alone=alone)
                (Path(temporary) / "jars").rename(final)
    return final


def _cache_directory() -> Path:
    root = os.environ.get("PIPELINE_CACHE")
    return (Path(root) if root else REPOSITORY / ".cache") / "jars"


def _retrieve(artifacts: tuple[Artifact, ...], directory: Path, ivy_cache: Path, *, alone: bool) -> None:
    configurations = "default->default" if alone else "default->master,runtime(*)"
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(artifact.organisation)} name={quoteattr(artifact.name)}"
        f" rev={quoteattr(artifact.revision)} conf={quoteattr(configurations)}>{_jars_of(artifact)}</dependency>"
        for artifact in artifacts
    )
    description = directory / "ivy.xml"
    description.write_text(
        f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="pipeline" module="tests"/>
  <configurations><conf name="default"/></configurations>
  <publications/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
""",
        encoding="utf-8",
    )
    ivy = next(pyspark_jars().glob("ivy-*.jar"))
    command = [java(), "-jar", str(ivy), "-ivy", str(description), "-cache", str(ivy_cache), "-confs", "default"]
    command += ["-retrieve", str(directory / "jars" / "[artifact]-[revision](-[classifier]).[ext]"), "-types", "jar"]
    command += ["bundle"]
    if alone:  # descriptions of modules are not read, nor those of their parents
        settings = directory / "settings.xml"
        settings.write_text(ALONE, encoding="utf-8")
        command += ["-settings", str(settings)]
    print(f"fetching {', '.join(map(str, artifacts))} (once)", file=sys.stderr)
    result = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    if result.returncode != 0:
        raise JarFetchError(f"{artifacts[0]}: Ivy ended with {result.returncode}:\n{result.stdout[-4000:]}")


def _jars_of(artifact: Artifact) -> str:
    """Without a classifier, Ivy takes the jar that the module's description names."""
    if not artifact.classifier:
        return ""
    jar = f"<artifact name={quoteattr(artifact.name)} type='jar' ext='jar'"
    return f"{jar}/>{jar} m:classifier={quoteattr(artifact.classifier)}/>"
