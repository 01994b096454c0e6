"""The Helm chart: rendered by helm, held to the API of three versions of Kubernetes; services read its settings."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli.deploy.service_readers import READERS
from pipeline.cli.secured.certificates import Authority
from pipeline.credentials import without_places
from pipeline.deployment.company import ServiceRole
from pipeline.net.http.users import SALT_BYTES, Role, password_entry
from pipeline.settings import flatten
from tests.support.kubernetes import CHART, VERSIONS, helm, kubeconform, render, rendered, why_no_kubernetes

pytestmark = [
    pytest.mark.long,  # builds helm and kubeconform when it first runs
    pytest.mark.skipif(why_no_kubernetes() is not None, reason=str(why_no_kubernetes())),
]

EXAMPLES = CHART.parent
MINIMAL = ("--set", "datacenter=east")
TWO_LOADS = ",".join(f"loads[{n}].name=lake,loads[{n}].root=file:///l,loads[{n}].schedule=@daily" for n in (0, 1))
TWO_SOURCES = (
    "datacenter=hub,mirror.replicas=1,mirror.sources[0].name=east,mirror.sources[0].bootstrap=a:1,"
    "mirror.sources[1].name=west,mirror.sources[1].bootstrap=b:1,audit.live[0].name=east,audit.live[0].bootstrap=a:1"
)
OPEN_LOADS = json.dumps(
    [
        {"name": "lake", "root": "hdfs://name-node:8020/lake", "schedule": "7 * * * *"},
        {"name": "often", "root": "file:///lake", "interval": "60s"},
    ]
)
CASES = {
    "minimal": MINIMAL,
    "one of each": (
        "--set",
        "datacenter=one,broker.replicas=1,zookeeper.replicas=1,registry.replicas=1,broker.rackFrom=none",
    ),
    "other ZooKeeper": (*MINIMAL, "--set", "zookeeper.replicas=0,zookeeper.connect=zk:2181/east,broker.rackFrom=pod"),
    "open loads": (*MINIMAL, "--set-json", f"loads={OPEN_LOADS}", "--set", "networkPolicy.enabled=false"),
    "east": ("--values", str(EXAMPLES / "east.example.yaml")),
    "hub": ("--values", str(EXAMPLES / "hub.example.yaml")),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request: Any) -> tuple[str, ...]:
    return CASES[request.param]


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the specifications of pods by the names of what makes them."""
    found = {}
    for each in objects:
        spec = each.get("spec", {})
        if each["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            found[each["metadata"]["name"]] = spec["template"]["spec"]
    return found


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_fit_the_api(case: Any, version: Any) -> None:
    assert kubeconform(render(*case, version=version), version) == ""


def test_pods_without_java_may_have_an_image_of_their_own() -> None:
    values = ("--set", "image.repository=all,image.servicesRepository=services,image.tag=v1")
    for name, pod in pods(rendered("--values", str(EXAMPLES / "hub.example.yaml"), *values)).items():
        needs_java = name == "dc-zookeeper" or name.startswith("dc-load")
        images = {each["image"] for each in (*pod.get("initContainers", ()), *pod["containers"])}
        assert images == {"all:v1" if needs_java else "services:v1"}, name


def test_helm_finds_no_fault(case: Any) -> None:
    done = helm("lint", str(CHART), "--strict", *case)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("broker.replicas=3", "datacenter"),
        ("datacenter=a,brokers.replicas=3", "brokers"),
        ("datacenter=a,security.sasl=true", "/security/tls"),
        ("datacenter=a,security.tls=true", "/security/secret"),
        ("datacenter=a,zookeeper.replicas=2", "/zookeeper/replicas"),
        ("datacenter=a,zookeeper.replicas=0", "zookeeper.connect: name the servers"),
        ("datacenter=a,broker.external.enabled=true,broker.external.host=b", "/broker/external/host"),
        ("datacenter=a,mirror.replicas=1", "/mirror/sources"),
        ("datacenter=a,audit.enabled=true", "/audit/live"),
        ("datacenter=a,loads[0].name=lake,loads[0].root=file:///l", "/loads/0"),
        (f"datacenter=a,registry.replicas=0,{TWO_LOADS}", "loads: lake has no registry, as registry.replicas is 0"),
        (f"datacenter=a,{TWO_LOADS}", "loads: the name lake is given twice"),
        (
            "datacenter=a,broker.settings.ssl\\.key\\.password=s3cret",
            "broker.settings: ssl.key.password holds a secret",
        ),
        (
            'datacenter=a,broker.settings.plain\\.sasl\\.jaas\\.config=x required username="a" password="s3cret";',
            "broker.settings: plain.sasl.jaas.config holds a secret",
        ),
        (
            f"{TWO_SOURCES},mirror.sources[0].settings.sasl\\.password=s3cret",
            "mirror.sources.east.settings: sasl.password holds a secret",
        ),
        ("datacenter=a,clusterDomain=a; b", "/clusterDomain"),
        ('datacenter=a,image.tag=1"', "/image/tag"),
        ("datacenter=a,broker.storage.size=..", "/broker/storage/size"),
        ("datacenter=a,zookeeper.settings.a=x\ny=z", "/zookeeper/settings/a"),
        ("datacenter=a,zookeeper.settings.server\\.9=x", "server.9"),
        ("datacenter=a,zookeeper.settings.ssl\\.keyStore\\.password=x", "ssl.keyStore.password"),
        (f"{TWO_SOURCES},mirror.sources[1].name=east", "mirror.sources: the name east is given twice"),
        (
            f"{TWO_SOURCES},mirror.sources[1].name=hub",
            "mirror.sources: the name hub is given twice, or is that of this",
        ),
        (f"{TWO_SOURCES},audit.enabled=true", "audit.live: west is a source of the mirror, and the audit would not"),
    ],
)
def test_wrong_values_are_refused(given: Any, reason: Any) -> None:
    done = helm("template", "dc", str(CHART), "--kube-version", VERSIONS[0], "--set", given)
    assert done.returncode != 0
    assert reason in done.stderr
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize(
    ("release", "load", "reason"),
    [
        ("1e3", "lake", "begins with a letter"),
        ("a.b", "lake", "begins with a letter"),
        ("a" * 43, "lake", "at most 42"),
        ("a" * 42, "a" * 5, "more than 46 characters together"),
    ],
)
def test_names_that_kubernetes_would_refuse_are_refused(release: str, load: str, reason: str) -> None:
    values = f"datacenter=a,loads[0].name={load},loads[0].root=file:///l,loads[0].schedule=@daily"
    done = helm("template", release, str(CHART), "--kube-version", VERSIONS[0], "--set", values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_texts_that_look_like_other_values_are_texts() -> None:
    given = ("datacenter=1e3", "security.secret=123", "broker.storage.class=on", "zookeeper.storage.class=null")
    words = ["--set", "security.tls=true", *(word for each in given for word in ("--set-string", each))]
    assert kubeconform(render(*words, version=VERSIONS[0]), VERSIONS[0]) == ""
    external = (
        "broker.external.enabled=true,broker.external.host=b@ORDINAL@,broker.external.annotations.port=109@ORDINAL@"
    )
    annotated = of_kind(rendered(*words, "--set", external), "Service")["dc-broker-2-external"]["metadata"]
    assert annotated["annotations"] == {"port": "1092"}
    labels = of_kind(rendered(*words), "StatefulSet")["dc-broker"]["spec"]["template"]["metadata"]["labels"]
    assert labels["pipeline/datacenter"] == "1e3"


def test_whole_numbers_and_backslashes_reach_zookeeper(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("datacenter: a\nzookeeper: {settings: {jute.maxbuffer: 4194304, dataLogDir: '/a\\b'}}\n")
    lines = of_kind(rendered("--values", str(values)), "ConfigMap")["dc-zookeeper"]["data"]["settings"].splitlines()
    assert {"jute.maxbuffer=4194304", "dataLogDir=/a\\\\b"} <= set(lines)


def test_no_network_policy_lets_everybody_in_if_the_list_of_peers_is_empty() -> None:
    empty = ("--set-json", "networkPolicy.monitoring=[]", "--set-json", "networkPolicy.clients=[]")
    policies = of_kind(rendered(*CASES["open loads"], *empty, "--set", "networkPolicy.enabled=true"), "NetworkPolicy")
    rules = {(name, str(rule["ports"])) for name, each in policies.items() for rule in each["spec"].get("ingress", [])}
    assert {name for name, ports in rules if "9080" in ports or "9190" in ports} == set()
    assert all(rule.get("from") for each in policies.values() for rule in each["spec"].get("ingress", []))
    assert "dc-load-often" in policies


def test_every_value_is_in_the_schema() -> None:
    def keys(values: Any, schema: Any) -> set[str]:
        if not isinstance(values, dict) or "properties" not in schema:
            return set()
        unknown = {key for key in values if key not in schema["properties"]}
        return unknown.union(*(keys(values[key], schema["properties"][key]) for key in values.keys() - unknown))

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert keys(yaml.safe_load((CHART / "values.yaml").read_text()), schema) == set()


def settings_of_pod(settings: str, folder: Path, name: str, rack_from: str) -> str:
    """Return the settings that the init container of a pod writes."""
    source, target = folder / "source", folder / "target"
    source.write_text(settings)
    environment = {
        "POD_NAME": name,
        "POD_IP": "10.1.2.3",
        "NODE_NAME": "node-7",
        "ZONE": "zone-b",
        "RACK_FROM": rack_from,
    }
    script = str(CHART / "files" / "settings.py")
    subprocess.run([sys.executable, script, str(source), str(target)], env={**os.environ, **environment}, check=True)
    return target.read_text()


def test_services_accept_their_settings(case: Any, tmp_path: Path) -> None:
    maps = of_kind(rendered(*case), "ConfigMap")
    for name, each in maps.items():
        role = ServiceRole(name.removeprefix("dc-").split("-")[0])
        text = settings_of_pod(each["data"]["settings"], tmp_path, f"{name}-2", "pod")
        assert "@" not in text, text
        if role is not ServiceRole.ZOOKEEPER:
            READERS[role](flatten(tomllib.loads(without_places(text))))
    assert "dc-broker" in maps


def test_brokers_have_names_racks_and_copies_of_their_own(tmp_path: Path) -> None:
    text = of_kind(rendered(*CASES["hub"]), "ConfigMap")["dc-broker"]["data"]["settings"]
    settings = tomllib.loads(settings_of_pod(text, tmp_path, "dc-broker-2", "pod"))
    assert (settings["broker.id"], settings["broker.rack"]) == ("2", "zone-b")
    assert settings["advertised.listeners"] == (
        "INTERNAL://dc-broker-2.dc-brokers.data.svc.cluster.local:9092,EXTERNAL://broker-2.hub.example.com:9094"
    )
    assert settings["log.dirs"] == "/var/lib/pipeline/disk-0/logs,/var/lib/pipeline/disk-1/logs"
    assert (settings["default.replication.factor"], settings["min.insync.replicas"]) == (3, 2)
    assert settings["log.retention.hours"] == 720


def test_pods_may_do_no_more_than_they_must(case: Any) -> None:
    made = pods(rendered(*case))
    assert made
    for name, pod in made.items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is (name == "dc-broker" and "rackFrom" not in str(case))
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            allowed = container["securityContext"]
            assert allowed["readOnlyRootFilesystem"]
            assert not allowed["allowPrivilegeEscalation"]
            assert allowed["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


def test_no_secret_is_in_a_manifest() -> None:
    objects = rendered(*CASES["hub"])
    assert "Secret" not in {each["kind"] for each in objects}
    for each in of_kind(objects, "ConfigMap").values():
        for line in each["data"]["settings"].splitlines():
            assert "assword" not in line or "${file:/etc/pipeline/secrets/" in line or "PasswordFile" in line, line


def test_updates_take_one_replica_at_a_time(case: Any) -> None:
    objects = rendered(*case)
    sets, budgets = of_kind(objects, "StatefulSet"), of_kind(objects, "PodDisruptionBudget")
    for name, each in sets.items():
        assert each["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
        budget = budgets[name]["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
    broker = sets["dc-broker"]["spec"]
    (container,) = broker["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz?check=replicas"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz?check=process"
    *_, url, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert url.endswith("/readyz?check=stop")
    assert broker["template"]["spec"]["terminationGracePeriodSeconds"] >= 330 + int(seconds)
    assert broker["minReadySeconds"] >= 30


def make_secrets(folder: Path) -> None:
    """Make the files of the Secret that docs/deploy/kubernetes.md describes."""
    folder.mkdir()
    authority, users = Authority(), ("broker", "admin", "mirror", "registry", "audit", "load")
    names = [f"*.dc-{part}.data.svc.cluster.local" for part in ("brokers", "zookeepers", "registries")]
    pair = authority.issue("dc", ["dc-bootstrap.data.svc.cluster.local", *names])
    login = "".join(f' user_{user}="{user}-password"' for user in ("broker", "mirror"))
    entries = [password_entry(user, Role.READ, f"{user}-password", b"s" * SALT_BYTES) for user in users]
    texts = {
        "server.pem": pair.key + pair.certificate,
        "ca.pem": authority.certificate,
        "passwords.properties": "".join(f"{user}={user}-password\n" for user in users),
        "http-users": "\n".join(entries) + "\n",
        "zookeeper.jaas": f"Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required{login}; }};\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
@pytest.mark.parametrize("security", ["open", "secured"])
def test_pods_run_as_the_manifests_say(tmp_path: Path, security: Any) -> None:
    """One pod of each part, on a read-only root, with its init container, probes, preStop and stop."""
    manifest, work, secrets = tmp_path / "manifest.yaml", tmp_path / "work", tmp_path / "secrets"
    is_secured = ("--set", "security.tls=true,security.sasl=true,security.secret=s") if security == "secured" else ()
    manifest.write_text(render(*CASES["one of each"], *is_secured))
    make_secrets(secrets)
    namespaces = ["unshare", "--mount", "--net", "--propagation", "private"]
    done = subprocess.run(
        [*namespaces, sys.executable, "-m", "tests.support.pods", str(manifest), str(work), str(secrets)],
        cwd=CHART.parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "ready": ["dc-zookeeper-0", "dc-broker-0", "dc-registry-0"],
        "records": ["a", "b"],
        "exit_codes": {"dc-registry-0": 0, "dc-broker-0": 0, "dc-zookeeper-0": 143},
    }


def test_every_service_and_policy_selects_pods(case: Any) -> None:
    objects = rendered(*case)
    labels = []
    for each in objects:
        spec = each.get("spec", {})
        template = (spec.get("jobTemplate", {}).get("spec") or spec).get("template")
        if template is not None:
            added = {"statefulset.kubernetes.io/pod-name": each["metadata"]["name"]}
            labels.append(template["metadata"]["labels"] | added)
    for each in objects:
        if each["kind"] == "Service":
            selector = {
                key: value.rpartition("-")[0] if "pod-name" in key else value
                for key, value in each["spec"]["selector"].items()
            }
        elif each["kind"] == "NetworkPolicy":
            selector = each["spec"]["podSelector"]["matchLabels"]
        else:
            continue
        assert any(selector.items() <= found.items() for found in labels), each["metadata"]["name"]
