"""Writes the settings of a pod from those that all pods share: settings.py SOURCE TARGET.

Replaces @POD_NAME@, @POD_IP@, @ORDINAL@ (number at the end of the pod's name) and @RACK@. The rack is the zone of the
pod's node: RACK_FROM=node asks Kubernetes for the node's label, RACK_FROM=pod takes ZONE, the label that Kubernetes
1.35 copies to the pod. A node without a zone is a rack of its own. Without RACK_FROM there is no rack to replace.
"""

import json
import os
import re
import ssl
import sys
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("SERVICE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
LABEL = "topology.kubernetes.io/zone"
TIMEOUT_S = 20


def zone_of(node: str) -> str:
    """Return the zone of a node, "" if it has none. Raises OSError, upon which Kubernetes starts this script again."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/nodes/{node}"
    token = (ACCOUNT / "token").read_text(encoding="ascii").strip()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
        labels: dict[str, str] = json.load(answer)["metadata"].get("labels", {})
    return labels.get(LABEL, "")


def main() -> None:
    """Write the target as a whole, so that a service never reads half of it."""
    source, target = map(Path, sys.argv[1:])
    values = {name: os.environ[name] for name in ("POD_NAME", "POD_IP")}
    values["ORDINAL"] = values["POD_NAME"].rpartition("-")[2]
    rack_from = os.environ.get("RACK_FROM", "none")
    if rack_from != "none":
        node = os.environ["NODE_NAME"]
        zone = zone_of(node) if rack_from == "node" else os.environ.get("ZONE", "")
        values["RACK"] = zone or node
    text = source.read_text(encoding="utf-8")
    written = target.with_name(f"{target.name}.new")
    written.write_text(
        re.sub("@(POD_NAME|POD_IP|ORDINAL|RACK)@", lambda found: values[found[1]], text), encoding="utf-8"
    )
    written.replace(target)


main()
