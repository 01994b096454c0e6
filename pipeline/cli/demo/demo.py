"""`pipeline demo`: two live datacenters with online consumers, a real web log, a mirror that is killed half way, two
loads, and the proof.
"""

import contextlib
import shutil
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.demo.access_log import PageView, home_datacenter, parse_line, sample_lines, sample_schema
from pipeline.cli.foreground import read_json, run_until_signalled
from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_config import choose_client_config, http_login
from pipeline.cli.terminal.connect import randomness, wall_clock
from pipeline.cli.terminal.files import held_alone, is_directory

if TYPE_CHECKING:
    from pipeline.cli.demo.datacenters import Datacenters
    from pipeline.cli.demo.online_reader import OnlineReader

TOPIC = "access_log"
SUBJECT = f"{TOPIC}-value"
ONLINE_GROUP = "online-page-counts"
PARTITIONS = 2
MARKER = ".pipeline-demo"
LAKE = "hdfs"
FIRST_LOAD_SHARE = 0.8
MIRROR_TIMEOUT_S = 60.0
ONLINE_TIMEOUT_S = 60.0
AUDIT_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 300.0
POLL_INTERVAL_S = 0.1
TOP_PAGES = f"""SELECT path, count(*) AS views, count(DISTINCT client_address) AS visitors
FROM {TOPIC} WHERE status = 200 GROUP BY path ORDER BY views DESC, path LIMIT 10"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of `demo`."""

    directory: Path
    keep: bool
    json: bool
    secure: bool = False


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory for all data; the data of an earlier demo is removed.")
    ] = Path("demo-data"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running at the end, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Protect all clusters by TLS, SASL and ACLs: each service has its user.")
    ] = False,
) -> None:
    """Run the whole pipeline with a real web log on this machine, and prove that no record was lost."""
    directory = directory.absolute()
    if is_directory(directory) and any(directory.iterdir()) and not (directory / MARKER).exists():
        output.exit_with(f"{directory} holds other files than those of a demo: choose another --dir", output.EXIT_USAGE)
    output.configure_logging("error")
    with held_alone(directory):
        (directory / MARKER).touch()
        _remove_earlier(directory)
        summary = trio.run(_run, DemoOptions(directory=directory, keep=keep, json=json, secure=secure))
    if summary is None:
        raise typer.Exit(output.EXIT_INTERRUPTED)
    if json:
        output.print_json(summary)


def _remove_earlier(directory: Path) -> None:
    """Remove the directories of an earlier demo, and no other files."""
    from pipeline.cli.demo.datacenters import DIRECTORIES

    for name in (*DIRECTORIES, LAKE):
        try:
            shutil.rmtree(directory / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            output.exit_with(f"{directory / name} cannot be removed: {error}", output.EXIT_USAGE)


async def _run(options: DemoOptions) -> dict[str, Any] | None:
    """Run the demo and return its summary; None if a signal ended the demo before that."""
    from pipeline.cli.demo.datacenters import Datacenters
    from pipeline.cli.secured.roles import APPLICATION_USER

    summary: dict[str, Any] | None = None

    async def run() -> None:
        nonlocal summary
        show = Narrator(quiet=options.json)
        async with contextlib.AsyncExitStack() as stack:
            with show.step("Starting two live datacenters (east, west) and a hub, each with ZooKeeper and broker"):
                made = Datacenters(options.directory, [TOPIC], secure=options.secure)
                if made.security is not None:  # of this process, and of commands that name no other
                    choose_client_config(str(made.security.client_file(APPLICATION_USER)))
                datacenters = await stack.enter_async_context(made)
            summary = await Demo(datacenters, options.directory, show).run()
            if options.keep:
                show.say(_how_to_look_around(datacenters, options.directory))
                await trio.sleep_forever()

    await run_until_signalled(run)
    return summary


class Narrator:
    """Prints the steps of the demo; quiet if a program reads the output."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._started = trio.current_time()

    def say(self, text: str) -> None:
        """Print one or more lines."""
        if not self._quiet:
            output.say(text)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Run a step, and print it with its duration."""
        started = trio.current_time()
        yield
        self.say(f"{text} ({trio.current_time() - started:.1f} s)")

    def say_total(self) -> None:
        """Print the duration of the demo."""
        self.say(f"\nAll of this took {trio.current_time() - self._started:.0f} s.")


class Demo:
    """The steps of the demo."""

    def __init__(self, datacenters: "Datacenters", directory: Path, show: Narrator) -> None:
        self._datacenters = datacenters
        self._show = show
        self._root = f"file://{directory / LAKE}"

    async def run(self) -> dict[str, Any]:
        """Run all steps between the start and the stop of the datacenters, and return the results."""
        from pipeline.cli.demo.datacenters import LIVE

        views = [parse_line(line) for line in sample_lines()]
        first, rest = views[: int(len(views) * FIRST_LOAD_SHARE)], views[int(len(views) * FIRST_LOAD_SHARE) :]
        half = len(first) // 2
        with self._show.step(
            f"Registered schema AccessLogEvent as {SUBJECT} and created {TOPIC} in {' and '.join(LIVE)}"
        ):
            await self._prepare()
        async with self._online_readers() as readers:
            with self._show.step(
                f"Published {half} page views at {' and '.join(LIVE)}, each in the home datacenter of its visitor"
            ):
                await self._publish(first[:half])
            counted = {name: reader.records for name, reader in readers.items()}
            self._show.say(f"  meanwhile online consumers counted {counted['east']} at east, {counted['west']} at west")
            with self._show.step("Killed the mirror with -9 on its way, published as many again, and started it again"):
                await self._kill_the_mirror_while_publishing(first[half:])
            with self._show.step(f"The hub has all {len(first)}, at the offsets they have at their sources"):
                await self._wait_for_mirror(len(first))
            loads = [await self._load(1)]
            with self._show.step(f"Published and mirrored the other {len(rest)}"):
                await self._publish(rest)
                await self._wait_for_mirror(len(views))
            online = await self._tell_of(readers, views)
        loads.append(await self._load(2))
        proof = await self._prove()
        self._show.say(f"\nThe data: {len(proof['files'])} Parquet files below {self._root}/{TOPIC}, as the manifests")
        self._show.say(f"in {self._root}/{TOPIC}/_commits list them.")
        self._show.say_total()
        return {"records": len(views), "online": online, "loads": loads, **proof}

    @contextlib.asynccontextmanager
    async def _online_readers(self) -> AsyncGenerator["dict[str, OnlineReader]"]:
        """Open a consumer group in each live datacenter, which reads records as they are published."""
        from pipeline.cli.demo.datacenters import LIVE
        from pipeline.cli.demo.online_reader import open_online_reader

        registry = self._datacenters.registry.url
        readers: dict[str, OnlineReader] = {}
        async with contextlib.AsyncExitStack() as stack:
            for name in LIVE:
                client = self._datacenters.client(name)
                reader = open_online_reader(client, registry, TOPIC, ONLINE_GROUP)
                readers[name] = await stack.enter_async_context(reader)
            yield readers

    async def _tell_of(self, readers: "dict[str, OnlineReader]", views: Sequence[PageView]) -> dict[str, Any]:
        """Wait until the readers have counted all records of their datacenters, and print the counts."""
        online: dict[str, Any] = {}
        with self._show.step("The online consumers in the live datacenters have read all of it, as it was published"):
            with trio.fail_after(ONLINE_TIMEOUT_S):
                for name, reader in readers.items():
                    published = sum(home_datacenter(view.client_address, tuple(readers)) == name for view in views)
                    await reader.wait_for(published)
                    await reader.commit()
                    path, count = min(reader.paths.items(), key=lambda item: (-item[1], item[0]))
                    online[name] = {"group": reader.group, "records": reader.records, "top_page": [path, count]}
        for name, told in online.items():
            path, count = told["top_page"]
            self._show.say(f"  {name}: group {told['group']} counted {told['records']}, most often {path} ({count})")
        return online

    async def _prove(self) -> dict[str, Any]:
        """Run audit, query and list of files at the same time, since all three only read."""
        proof: dict[str, Any] = {}

        async def report() -> None:
            proof["hours"] = (await self._report())["hours"]

        async def query() -> None:
            proof["top_pages"] = await self._query()

        async def files() -> None:
            proof.update(await self._command("load", "files", "--topic", TOPIC, "--root", self._root))

        async with trio.open_nursery() as nursery:
            for step in (report, query, files):
                nursery.start_soon(step)
        return proof

    async def _prepare(self) -> None:
        from pipeline.cli.demo.datacenters import LIVE
        from pipeline.client.admin.topics import NewTopic, create_topics
        from pipeline.client.cluster.cluster import open_cluster
        from pipeline.client.registry.client import open_schema_registry

        async with open_schema_registry([self._datacenters.registry.url], login=http_login()) as registry:
            await registry.register(SUBJECT, sample_schema())
        for name in LIVE:
            async with open_cluster(self._datacenters.client(name)) as cluster:
                await create_topics(cluster, [NewTopic(name=TOPIC, partitions=PARTITIONS)])

    async def _publish(self, views: Sequence[PageView]) -> None:
        from pipeline.cli.demo.datacenters import LIVE

        async with trio.open_nursery() as nursery:
            for name in LIVE:
                at_home = [view for view in views if home_datacenter(view.client_address, LIVE) == name]
                nursery.start_soon(self._publish_in, name, at_home)

    async def _publish_in(self, datacenter: str, views: Sequence[PageView]) -> None:
        """Publish as a frontend server of this datacenter: Avro records with event times, counted for the audit."""
        from pipeline.audit.counting.lives import open_audited_producer
        from pipeline.client.cluster.cluster import open_cluster
        from pipeline.client.cluster.config import ProducerConfig
        from pipeline.client.registry.avro import AvroSerializer
        from pipeline.client.registry.client import open_schema_registry
        from pipeline.records.compression import Codec

        async with (
            open_schema_registry([self._datacenters.registry.url], login=http_login()) as registry,
            open_cluster(self._datacenters.client(datacenter)) as cluster,
            open_audited_producer(
                cluster,
                ProducerConfig(compression=Codec.ZSTD),
                datacenter=datacenter,
                host=f"frontend-1.{datacenter}",
                clock=wall_clock,
                rng=randomness(),
            ) as producer,
        ):
            serializer = AvroSerializer(registry, sample_schema())
            for view in views:
                value = await serializer.serialize(TOPIC, view.fields)
                await producer.send(TOPIC, value, key=view.client_address.encode(), timestamp_ms=view.time_ms)

    async def _kill_the_mirror_while_publishing(self, views: Sequence[PageView]) -> None:
        await self._wait_for_mirror(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish, views)
            self._datacenters.mirror.kill()
            await self._datacenters.mirror.wait()
        await self._datacenters.start_unit(self._datacenters.mirror)

    async def _wait_for_mirror(self, records: int) -> None:
        """Wait until the replicas hold this many records."""
        with trio.fail_after(MIRROR_TIMEOUT_S):
            while True:
                status = await trio.to_thread.run_sync(read_json, f"{self._datacenters.mirror.url}/v1/status")
                partitions = [partition for source in status["sources"] for partition in source["partitions"]]
                copied = sum(partition["position"] or 0 for partition in partitions)
                if copied >= records:
                    return
                await trio.sleep(POLL_INTERVAL_S)

    async def _load(self, number: int) -> dict[str, Any]:
        from pipeline.cli.demo.datacenters import HUB

        with self._show.step(f"Spark load {number}"):
            result = await self._command(
                "load",
                "run",
                "--topic",
                TOPIC,
                "--root",
                self._root,
                "--bootstrap",
                self._datacenters.bootstrap[HUB],
                "--registry",
                self._datacenters.registry.url,
                "--datacenter",
                HUB,
                *_client_config_option(self._datacenters, "load"),
            )
        self._show.say(
            f"  commit {result['commit']}: {result['records']} records in {result['files']} files, and offsets"
        )
        return result

    async def _report(self) -> dict[str, Any]:
        from pipeline.cli.audit.rendering import render

        wait = f"{AUDIT_TIMEOUT_S:.0f}"
        with self._show.step("\nAsked the audit what every tier counted, by hour of the events"):
            report = await self._command(
                "audit", "report", "--audit", self._datacenters.audit.url, "--topic", TOPIC, "--wait", wait
            )
        self._show.say(render(report))
        return report

    async def _query(self) -> list[list[Any]]:
        with self._show.step("\nAsked Spark SQL for the top pages in the loaded files"):
            answer = await self._command("load", "sql", TOP_PAGES, "--topic", TOPIC, "--root", self._root)
        self._show.say(output.table(answer["columns"], answer["rows"]))
        rows: list[list[Any]] = answer["rows"]
        return rows

    async def _command(self, *arguments: str) -> dict[str, Any]:
        """Run another command of this program, as a user would, and return the JSON it prints. Raises typer.Exit."""
        import json
        import tempfile

        from pipeline.processes import start_process

        name = f"pipeline {' '.join(arguments)}"
        with tempfile.TemporaryFile() as stdout, tempfile.NamedTemporaryFile() as errors:
            command = [sys.executable, "-m", "pipeline", *arguments, "--json"]
            child = start_process(name, command, log=Path(errors.name), stdout=stdout.fileno())
            try:
                with trio.fail_after(COMMAND_TIMEOUT_S):
                    code = await child.wait()
            finally:
                await child.stop()
            stdout.seek(0)
            result = stdout.read()
            if code != 0:
                sys.stderr.write(result.decode() + errors.read().decode(errors="replace"))
                output.exit_with(f"`{name}` ended with exit code {code}")
        document: dict[str, Any] = json.loads(result)
        return document


def _client_config_option(datacenters: "Datacenters", user: str) -> list[str]:
    return [] if datacenters.security is None else ["--client-config", str(datacenters.security.client_file(user))]


def _how_to_look_around(datacenters: "Datacenters", directory: Path) -> str:
    root = f"file://{directory / LAKE}"
    lines = ["\nEverything is left up until Ctrl-C. In another terminal:"]
    if datacenters.security is not None:
        lines += [
            f"  export PIPELINE_CLIENT_CONFIG={datacenters.security.client_file('app')}    # admin.properties is beside"
        ]
    lines += [
        f"  pipeline topic describe {TOPIC} -b {address}    # {name}" for name, address in datacenters.bootstrap.items()
    ]
    lines += [
        f"  pipeline consume {TOPIC} -b {datacenters.bootstrap['hub']} --registry {datacenters.registry.url} -n 3",
        *(
            f"  pipeline group describe {ONLINE_GROUP} -b {address}    # {name}"
            for name, address in datacenters.bootstrap.items()
            if name != "hub"
        ),
        f"  pipeline mirror status --mirror {datacenters.mirror.url}",
        f"  pipeline audit report --audit {datacenters.audit.url}",
        f"  pipeline schema show {SUBJECT} --registry {datacenters.registry.url}",
        f"  pipeline load status --topic {TOPIC} --root {root}",
        f"  pipeline load sql 'SELECT status, count(*) FROM {TOPIC} GROUP BY status' --topic {TOPIC} --root {root}",
        f"Processes: {', '.join(f'{name} {pid}' for name, pid in datacenters.pids.items())}",
    ]
    return "\n".join(lines)
