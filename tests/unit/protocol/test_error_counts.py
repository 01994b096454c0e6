from pipeline.protocol.error_counts import count_errors
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.api_versions import ApiVersionsResponse
from pipeline.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from pipeline.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic


def test_codes_are_counted_wherever_they_stand() -> None:
    counts: dict[int, int] = {}
    count_errors(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), counts)
    assert counts == {35: 1}
    partitions = [PartitionData(error_code=code) for code in (0, 1, 1, 3)]
    count_errors(FetchResponse(error_code=1, responses=[FetchableTopicResponse(partitions=partitions)]), counts)
    assert counts == {35: 1, 1: 3, 3: 1}


def test_answers_without_errors_count_nothing() -> None:
    counts: dict[int, int] = {}
    topic = MetadataResponseTopic(name="t", partitions=[MetadataResponsePartition()])
    count_errors(MetadataResponse(topics=[topic]), counts)
    count_errors(FetchResponse(responses=[]), counts)
    assert counts == {}
