from collections.abc import Callable

import pytest

from pipeline.hadoop.commit.manifest import Manifest
from tests.support.manifests import manifest_after


@pytest.fixture
def make_manifest() -> Callable[..., Manifest]:
    return manifest_after
