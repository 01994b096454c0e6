"""The chart in a real Kubernetes without machines: API server, etcd, controllers; the test says what kubelets would."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.deploy.test_kubernetes import CASES
from tests.support.kubernetes import CHART, COMMAND_TIMEOUT_S, tool, why_no_kubernetes
from tests.support.kubernetes_api import KubernetesApi, kubernetes_api, wait_for

pytestmark = [
    pytest.mark.long,  # builds Kubernetes when it first runs: up to an hour on two cores
    pytest.mark.timeout(7200),
    pytest.mark.skipif(why_no_kubernetes() is not None, reason=str(why_no_kubernetes())),
]

VALUES = (
    "--set",
    "datacenter=hub,mirror.replicas=2,mirror.sources[0].name=east,mirror.sources[0].bootstrap=broker:9094,"
    "audit.enabled=true,audit.live[0].name=east,audit.live[0].bootstrap=broker:9094,"
    "loads[0].name=lake,loads[0].root=hdfs://name-node:8020/lake,loads[0].schedule=7 * * * *",
)
BROKERS = ["dc-broker-0", "dc-broker-1", "dc-broker-2"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: Any) -> Iterator[KubernetesApi]:
    with kubernetes_api(tmp_path_factory.mktemp("kubernetes")) as api:
        wait_for("the namespace default has its account", lambda: "default" in api.objects(accounts("default")))
        helm(api, "install", "--create-namespace", *VALUES)
        yield api


def accounts(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/serviceaccounts"


def helm(api: KubernetesApi, action: str, *arguments: str, namespace: str = "data", fails: bool = False) -> str:
    """Install or upgrade a release; return what helm said."""
    command = [tool("helm"), action, "dc", str(CHART), "--namespace", namespace, "--kubeconfig", str(api.kubeconfig)]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def uids(api: KubernetesApi) -> dict[str, str]:
    """Return the identities of the pods of the brokers."""
    return {name: pod["metadata"]["uid"] for name, pod in api.pods("broker").items()}


def changed_since(api: KubernetesApi, before: dict[str, str]) -> set[str]:
    """Return the brokers that have other pods than before."""
    return {name for name, uid in uids(api).items() if uid != before[name]}


def update_status(api: KubernetesApi) -> tuple[int, int]:
    """Return the numbers of brokers with the newest settings, and of those that are ready."""
    status = api.client.get("/apis/apps/v1/namespaces/data/statefulsets/dc-broker").json()["status"]
    return status.get("updatedReplicas", 0), status.get("readyReplicas", 0)


def make_ready(api: KubernetesApi) -> None:
    """Say that all brokers are ready, and wait until the controllers know."""
    for broker in wait_for("all brokers have pods", lambda: sorted(api.pods("broker")) == BROKERS and BROKERS):
        api.say(broker, is_ready=True)
    path = "/apis/apps/v1/namespaces/data/statefulsets/dc-broker"
    wait_for("brokers are available", lambda: api.client.get(path).json()["status"].get("availableReplicas") == 3)
    budget = "/apis/policy/v1/namespaces/data/poddisruptionbudgets/dc-broker"
    wait_for("the budget knows", lambda: api.client.get(budget).json()["status"].get("disruptionsAllowed") == 1)


def test_controllers_make_all_pods_and_volumes(api: KubernetesApi) -> None:
    make_ready(api)
    for part, number in {"zookeeper": 3, "registry": 2, "mirror": 2, "audit": 1}.items():
        wait_for(f"pods of {part}", lambda part=part, number=number: len(api.pods(part)) == number)
    claims = api.objects("/api/v1/namespaces/data/persistentvolumeclaims")
    assert {f"disk-0-{broker}" for broker in BROKERS} <= claims.keys()
    assert "dc-load-lake" in api.objects("/apis/batch/v1/namespaces/data/cronjobs")


def test_an_update_takes_one_broker_after_the_other_and_waits_until_it_is_ready(api: KubernetesApi) -> None:
    make_ready(api)
    before = uids(api)
    helm(api, "upgrade", *VALUES, "--set", "broker.settings.log\\.retention\\.hours=24")
    left = set(BROKERS)
    while left:
        replaced = wait_for("the next broker is replaced", lambda: changed_since(api, before) & left)
        assert len(replaced) == 1
        updated = len(BROKERS) - len(left) + 1
        wait_for(
            "the controller knows its pod", lambda number=updated: update_status(api) == (number, len(BROKERS) - 1)
        )
        assert changed_since(api, before) & left == replaced  # further ones wait for this one
        assert api.evict(next(iter(left - replaced or set(BROKERS) - replaced))) == 429
        api.say(*replaced, is_ready=True)
        left.difference_update(replaced)
    assert before.keys() == uids(api).keys()


def test_a_drain_takes_one_broker_at_a_time(api: KubernetesApi) -> None:
    make_ready(api)
    first, second, third = BROKERS
    assert api.evict(first) in (200, 201)
    assert api.evict(second) == 429
    wait_for("the broker has a new pod", lambda: sorted(api.pods("broker")) == BROKERS)
    assert api.evict(third) == 429  # the new one is not ready yet
    make_ready(api)
    assert api.evict(third) in (200, 201)
    make_ready(api)


def test_what_the_api_refuses_to_change_leaves_everything_as_it_is(api: KubernetesApi) -> None:
    make_ready(api)
    before = uids(api)
    said = helm(api, "upgrade", *VALUES, "--set", "broker.storage.size=1Ti", fails=True)
    assert "updates to statefulset spec for fields other than" in said
    assert uids(api) == before
    helm(api, "upgrade", *VALUES)


@pytest.mark.parametrize("name", CASES)
def test_the_api_takes_all_objects(api: KubernetesApi, name: str) -> None:
    namespace = name.lower().replace(" ", "-")
    helm(api, "install", "--create-namespace", *CASES[name], namespace=namespace)
    wait_for("brokers have pods", lambda: api.objects(f"/api/v1/namespaces/{namespace}/pods"))
