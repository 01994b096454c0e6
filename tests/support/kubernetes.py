"""Helm, kubeconform and the schemas of Kubernetes, from Go modules.

A test that first needs them makes them in .cache/kubernetes. Schemas are those of Kubernetes' own description of its
API (`api/openapi-spec/swagger.json` of module k8s.io/kubernetes), a file per kind. They are strict: a field that the
API does not know is a fault.
"""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "kubernetes"
CHART = ROOT / "deploy" / "kubernetes" / "pipeline"
VERSIONS = ("1.34.4", "1.35.4", "1.36.3")
TOOLS = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.5",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7",
}
BUILD_TIMEOUT_S = 1500
COMMAND_TIMEOUT_S = 120
SCALARS = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}
"""Types that are strings in the description, and that may be numbers too."""


def why_no_kubernetes() -> str | None:
    """Return why the tools cannot be made on this machine; None if they can, or are there."""
    made = all((CACHE / "bin" / tool).exists() for tool in TOOLS)
    return None if made or shutil.which("go") else "there is no Go to build helm and kubeconform with"


@contextmanager
def held() -> Iterator[None]:
    """One process at a time makes what is missing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def tool(name: str) -> str:
    """Return the path of a tool, which is built if it is not there."""
    path = CACHE / "bin" / name
    with held():
        if not path.exists():
            environment = {**os.environ, "GOBIN": str(path.parent), "GOFLAGS": "-buildvcs=false"}
            subprocess.run(["go", "install", TOOLS[name]], env=environment, check=True, timeout=BUILD_TIMEOUT_S)
    return str(path)


@cache
def schemas(version: str) -> Path:
    """Return the folder with the schemas of a version of Kubernetes."""
    folder = CACHE / "schemas" / version
    with held():
        if not folder.exists():
            command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=BUILD_TIMEOUT_S)
            api = Path(json.loads(done.stdout)["Dir"]) / "api" / "openapi-spec" / "swagger.json"
            _write_schemas(json.loads(api.read_text())["definitions"], folder)
    return folder


def _write_schemas(definitions: Mapping[str, Any], folder: Path) -> None:
    written = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir(parents=True)
    strict = {name: SCALARS.get(name) or _strict(schema) for name, schema in definitions.items()}
    (written / "_definitions.json").write_text(json.dumps({"definitions": strict}))
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            group = kind["group"].split(".")[0]
            suffix = f"-{group}-{kind['version']}" if group else f"-{kind['version']}"
            path = written / f"{kind['kind']}{suffix}.json".lower()
            path.write_text(json.dumps({"$ref": f"_definitions.json#/definitions/{name}"}))
    written.rename(folder)


def _strict(schema: Any) -> Any:
    """Return a schema without the marks of Kubernetes, whose objects have no further fields."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _strict(value) for key, value in schema.items() if not key.startswith("x-kubernetes")}
    if isinstance(kept.get("properties"), dict) and "additionalProperties" not in kept:
        kept["additionalProperties"] = False
    if isinstance(kept.get("$ref"), str):
        return {"$ref": kept["$ref"].replace("#/definitions/", "_definitions.json#/definitions/")}
    return kept


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    command = [tool("helm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)


@cache
def render(*arguments: str, version: str = VERSIONS[0]) -> str:
    """Return the manifests of the chart with these values, for a release `dc` in the namespace `data`."""
    place = ["template", "dc", str(CHART), "--namespace", "data", "--kube-version", version]
    done = helm(*place, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(*arguments: str) -> list[dict[str, Any]]:
    """Return the objects of the chart with these values."""
    return [each for each in yaml.safe_load_all(render(*arguments)) if each is not None]


def kubeconform(manifests: str, version: str) -> str:
    """Return what is wrong with manifests for a version of Kubernetes; "" if nothing is."""
    location = f"{schemas(version)}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [tool("kubeconform"), "-strict", "-summary", "-schema-location", location, "-"]
    done = subprocess.run(
        command, input=manifests, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S
    )
    is_well = done.returncode == 0 and "Invalid: 0, Errors: 0, Skipped: 0" in done.stdout
    return "" if is_well else done.stdout + done.stderr
