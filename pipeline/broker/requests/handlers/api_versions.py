"""ApiVersions (18), v0 to v4: the api keys and versions that this broker serves (KIP-35).

- The byte machine answers unknown versions (KIP-511).
- Features of ours (KIP-584) say that Produce can keep the offsets of a mirror's source, and checks the source, and that
  ListOffsets sums over ranges of batches.
"""

from collections.abc import Iterable

from pipeline.protocol.api import ApiKey
from pipeline.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, SupportedFeatureKey
from pipeline.protocol.messages.list_offsets import RANGE_SUMS_FEATURE, RANGE_SUMS_VERSIONS
from pipeline.protocol.messages.produce import KEEP_OFFSETS_FEATURE, KEEP_OFFSETS_VERSIONS

_FEATURES = {KEEP_OFFSETS_FEATURE: KEEP_OFFSETS_VERSIONS, RANGE_SUMS_FEATURE: RANGE_SUMS_VERSIONS}


def describe(apis: Iterable[ApiKey]) -> ApiVersionsResponse:
    """Return the answer of a broker that serves these api keys."""
    return ApiVersionsResponse(
        api_keys=tuple(
            ApiVersion(api_key=api, min_version=api.min_version, max_version=api.max_version) for api in apis
        ),
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in _FEATURES.items()
        ),
    )
