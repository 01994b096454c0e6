"""Dashboards of Grafana from deploy/monitoring/dashboards.toml. `python -m tests.support.dashboards` writes them."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
SOURCE = {"type": "prometheus", "uid": "${source}"}
MATCHER = 'datacenter=~"$datacenter"'
WIDTH = 24
"""Columns of Grafana's grid. Four stats stand beside each other, and three curves."""


def described() -> dict[str, Any]:
    """Return the description of all dashboards by their names."""
    return tomllib.loads((MONITORING / "dashboards.toml").read_text())


def panels_of(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield title, legend and expression of each query of a dashboard."""
    for row in dashboard["rows"]:
        for panel in row["panels"]:
            for legend, expression in panel["queries"].items():
                yield panel["title"], legend, expression.replace("$dc", MATCHER)


def _panel(panel: Mapping[str, Any], identifier: int, place: Mapping[str, int]) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.get("red", 1)}]
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short")}
    if "stat" in panel:
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "id": identifier,
        "title": panel["title"],
        "type": "stat" if "stat" in panel else "timeseries",
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": expression.replace("$dc", MATCHER),
                "legendFormat": legend,
            }
            for number, (legend, expression) in enumerate(panel["queries"].items())
        ],
    }


def _panels(rows: list[Any]) -> Iterator[dict[str, Any]]:
    identifier = y = 0
    for row in rows:
        identifier += 1
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {
            "id": identifier,
            "title": row["title"],
            "type": "row",
            "gridPos": place,
            "panels": [],
            "collapsed": False,
        }
        x, y, height = 0, y + 1, 0
        for panel in row["panels"]:
            identifier += 1
            size = {"w": 4, "h": 4} if "stat" in panel else {"w": 8, "h": 8}
            if x + size["w"] > WIDTH or height not in (0, size["h"]):
                x, y = 0, y + height
            yield _panel(panel, identifier, {"x": x, "y": y, **size})
            x, height = x + size["w"], size["h"]
        y += height


def dashboard(name: str, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    chosen = {
        "name": "datacenter",
        "label": "Datacenter",
        "type": "query",
        "datasource": SOURCE,
        "query": f'label_values(up{{job="{description["job"]}"}}, datacenter)',
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": f"pipeline-{name}",
        "title": description["title"],
        "tags": ["pipeline"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source, chosen]},
        "links": [{"type": "dashboards", "tags": ["pipeline"], "title": "Pipeline", "asDropdown": True}],
        "panels": list(_panels(description["rows"])),
    }


def written() -> dict[Path, str]:
    """Return the text of each file of a dashboard."""
    return {
        MONITORING / "dashboards" / f"{name}.json": json.dumps(dashboard(name, description), indent=1) + "\n"
        for name, description in described().items()
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
