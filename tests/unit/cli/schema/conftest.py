"""Commands of `pipeline schema`, and registries that they ask."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.registry_model import RegistryModel, serving_model
from tests.support.registry_thread import registry_in_thread


@pytest.fixture
def model() -> RegistryModel:
    return RegistryModel()


@pytest.fixture(params=["ours", "model"])
def url(request: pytest.FixtureRequest, model: RegistryModel, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    with registry_in_thread() if request.param == "ours" else serving_model(model) as url:
        capsys.readouterr()  # the registry's log
        yield url


@pytest.fixture
def our_url(capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    with registry_in_thread() as url:
        capsys.readouterr()  # the registry's log
        yield url


@pytest.fixture
def model_url(model: RegistryModel) -> Iterator[str]:
    with serving_model(model) as url:
        yield url


@pytest.fixture
def schema(pipeline_command: Callable[..., Any]) -> Callable[..., Any]:
    """Run `pipeline schema` on a registry; stdout, and the exit code if another one than 0 is expected."""

    def run(url: str, *arguments: str, code: int = 0) -> Any:
        ended, out, err = pipeline_command("schema", *arguments, "--registry", url)
        assert ended == code, (ended, out, err)
        assert "Traceback" not in err
        return json.loads(out) if "--json" in arguments and out else out + err

    return run
