"""ApiVersions on a broker."""

from pipeline.broker.requests.dispatch import SERVED
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from tests.support.broker_in_process import TIMEOUT_S, Start


async def test_api_versions_lists_the_served_versions(start: Start) -> None:
    async with start() as broker:
        response = await broker.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"))
        ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        assert set(ranges) == set(SERVED)
        assert ranges[0][0] == 0
        features = await broker.pool.features(broker.address, timeout_s=TIMEOUT_S)
        assert features == {"pipeline.keep_offsets": (1, 3), "pipeline.range_sums": (1, 2)}
