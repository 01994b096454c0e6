"""Commits of the load, as a reader of HDFS sees them: when each came, and which records it brought."""

import io
import json
import re
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import trio

from deploy.figure3.delays import Delays
from deploy.figure3.page_views import RECEIVED, TOPIC
from pipeline.cli.terminal.connect import wall_clock
from pipeline.hadoop.files.hdfs import HdfsFileSystem

LOOK_S = 0.1


@dataclass(slots=True)
class Lake:
    """Watches the manifests of a topic. A commit counts from the moment at which its manifest was first listed."""

    url: str
    folder: str
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Time in ms, and records, by the path of each manifest."""

    @property
    def records(self) -> int:
        """Records of the commits that were seen."""
        return sum(records for _, records in self.seen.values())

    async def watch(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look for new commits until cancelled. Those of the first look are old: they have the time 0."""
        files = await trio.to_thread.run_sync(HdfsFileSystem, self.url)
        is_first = True
        while True:
            paths = await trio.to_thread.run_sync(self._manifests, files)
            now_ms = 0 if is_first else wall_clock()
            for path in paths - self.seen.keys():
                manifest = json.loads(await trio.to_thread.run_sync(files.read, path))
                self.seen[path] = (now_ms, sum(file["records"] for file in manifest["files"]))
            if is_first:
                is_first = False
                task_status.started()
            await trio.sleep(LOOK_S)

    def _manifests(self, files: HdfsFileSystem) -> set[str]:
        listed = files.list_files(f"{self.folder}/{TOPIC}/_commits")
        return {file.path for file in listed if re.fullmatch(r"\d+\.json", file.path.rpartition("/")[2])}

    def forget_times(self) -> None:
        """Count no delays of the commits that were seen so far."""
        self.seen = {path: (0, records) for path, (_, records) in self.seen.items()}

    async def delays(self) -> Delays:
        """Return the delays of all records of new commits: from the front end to the commit."""
        return await trio.to_thread.run_sync(partial(self._delays, HdfsFileSystem(self.url)))

    def _delays(self, files: HdfsFileSystem) -> Delays:
        delays = Delays()
        for path, (seen_ms, _) in self.seen.items():
            if not seen_ms:
                continue
            for file in json.loads(files.read(path))["files"]:
                data = files.read(f"{self.folder}/{TOPIC}/{file['path']}")
                column = pq.read_table(io.BytesIO(data), columns=[RECEIVED])[RECEIVED]
                delays.note_all(seen_ms - np.asarray(column.to_numpy(), np.int64))
        return delays
