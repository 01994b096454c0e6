"""Descriptions of companies for tests: the example, changed."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.deployment.company import Company, company_of

EXAMPLE = Path(__file__).parents[2] / "deploy" / "company.example.toml"
Document = dict[str, Any]


def example_document(*changes: Callable[[Document], object]) -> Document:
    """Return the example's document, after these changes."""
    document = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    for change in changes:
        change(document)
    return document


def example_company(*changes: Callable[[Document], object]) -> Company:
    """Return the company of the example, after these changes, whose form must be right."""
    company, faults = company_of(example_document(*changes))
    assert company is not None, faults
    return company


def host_of(document: Document, name: str) -> Document:
    """Return the table of a host."""
    found: Document
    (found,) = (host for host in document["hosts"] if host["name"] == name)
    return found


def change_host(name: str, /, **values: object) -> Callable[[Document], object]:
    """Return the change that gives a host these values; None removes one."""

    def change(document: Document) -> None:
        host = host_of(document, name)
        for key, value in values.items():
            if value is None:
                host.pop(key, None)
            else:
                host[key] = value

    return change


def secure(document: Document) -> None:
    """Turn TLS and SASL on."""
    document["security"] = {"tls": True, "sasl": True}
