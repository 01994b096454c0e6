from pipeline.client.cluster.backoff import backoff_ms


def test_doubles_up_to_the_bound() -> None:
    assert [backoff_ms(failures, 100, 1000) for failures in range(6)] == [100, 100, 200, 400, 800, 1000]
    assert backoff_ms(10**6, 100, 1000) == 1000
