"""`python -m deploy.figure3.front_end`: a front end, which publishes what users do.

Takes POST `/events` with lines of an access log from the balancer, and answers once brokers have acknowledged them. Its
producer is counted for the audit. An answer other than 200 says that some of the events may have been published.
"""

import argparse
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from deploy.figure3.delays import Delays
from deploy.figure3.page_views import TOPIC, event_of, schema
from deploy.figure3.programs import program_options, run_program, serve
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.cli.demo.access_log import parse_line
from pipeline.cli.terminal.connect import randomness, wall_clock
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import Producer
from pipeline.client.registry.avro import AvroSerializer
from pipeline.client.registry.client import open_schema_registry
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.net.http.json_body import BodyRefusedError, error_response, read_body
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses

logger = get_logger(__name__)


class Lines(BaseModel):
    """Body of a request."""

    lines: list[str]


@dataclass(slots=True)
class FrontEnd:
    """Publishes the events of requests. `delays`: from a request to the acknowledgement of its last event."""

    producer: Producer
    serializer: AvroSerializer
    delays: Delays

    async def take(self, request: Request) -> JSONResponse:
        """Publish the lines of a request."""
        received_ms = wall_clock()
        try:
            views = [parse_line(line) for line in (await read_body(request, Lines)).lines]
        except BodyRefusedError as error:
            return error_response(error.status, str(error))
        except ValueError as error:
            return error_response(400, str(error))
        size = 0
        try:
            deliveries = []
            for view in views:
                value = await self.serializer.serialize(TOPIC, event_of(view, received_ms))
                size += len(value or b"")
                key = view.client_address.encode()
                deliveries.append(await self.producer.send(TOPIC, value, key=key, timestamp_ms=view.time_ms))
            for delivery in deliveries:
                await delivery.wait()
        except PipelineError as error:
            logger.warning("events_not_published", reason=str(error))
            return error_response(503, str(error))
        self.delays.note(wall_clock() - received_ms, len(views))
        return JSONResponse({"published": len(views), "bytes": size})


async def run(options: argparse.Namespace) -> None:
    """Serve until cancelled."""
    client = ClientConfig(bootstrap=parse_addresses(options.bootstrap), client_id=options.host)
    async with (
        open_schema_registry([options.registry]) as registry,
        open_cluster(client) as cluster,
        open_audited_producer(
            cluster,
            ProducerConfig(compression=Codec.ZSTD),
            datacenter=options.datacenter,
            host=options.host,
            clock=wall_clock,
            rng=randomness(),
        ) as producer,
    ):
        front_end = FrontEnd(producer, AvroSerializer(registry, schema()), Delays())
        await serve(options.listen, front_end.delays, [Route("/events", front_end.take, methods=["POST"])])


def main() -> None:
    """Run the program."""
    given = program_options(__doc__).parse_args()
    run_program(lambda: run(given))


if __name__ == "__main__":
    main()
