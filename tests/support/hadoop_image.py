"""An image of Hadoop for tests that reach no image registry: HDFS's servers, with the interface of apache/hadoop.

Settings are environment variables (`CORE-SITE.XML_fs.defaultFS`), the command is `hdfs namenode` or `hdfs datanode`. A
NameNode whose ENSURE_NAMENODE_DIR is missing is formatted first.
"""

import shutil
from pathlib import Path

from tests.support.hdfs import DATA_NODE, NAME_NODE, hdfs_jars

CONTAINERFILE = """\
ARG BASE
FROM ${BASE}
USER 0
COPY jars /opt/hadoop
COPY --chmod=755 hdfs /usr/local/bin/hdfs
USER 10001:10001
ENTRYPOINT []
HEALTHCHECK NONE
"""
HDFS = f"""\
#!/opt/pipeline/bin/python
import os, subprocess, sys
from pathlib import Path

conf = Path("/tmp/hadoop/conf")
for webapp in ("hdfs", "datanode"):  # without them the servers refuse to start
    (conf / "webapps" / webapp).mkdir(parents=True, exist_ok=True)
for name in ("core-site.xml", "hdfs-site.xml"):
    begin = name.upper() + "_"
    given = [(key.removeprefix(begin), value) for key, value in os.environ.items() if key.startswith(begin)]
    rows = "".join(f"<property><name>{{key}}</name><value>{{value}}</value></property>" for key, value in given)
    (conf / name).write_text(f"<configuration>{{rows}}</configuration>")
(conf / "log4j.properties").write_text(
    "log4j.rootLogger=WARN,out\\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\\n"
    "log4j.appender.out.layout=org.apache.log4j.SimpleLayout\\n"
)
server = {{"namenode": "{NAME_NODE}", "datanode": "{DATA_NODE}"}}[sys.argv[1]]
java = ["java", "-Xmx200m", "-XX:+UseSerialGC", "-cp", f"{{conf}}:/opt/hadoop/*", server]
if sys.argv[1] == "namenode" and not Path(os.environ["ENSURE_NAMENODE_DIR"]).exists():
    subprocess.run([*java, "-format", "-nonInteractive"], check=True)
os.execvp("java", java)
"""


def write_hadoop_build(directory: Path) -> None:
    """Write what the image is built from: `Containerfile`, whose BASE has Python and Java, and what it copies."""
    directory.mkdir()
    (directory / "Containerfile").write_text(CONTAINERFILE)
    (directory / "hdfs").write_text(HDFS)
    shutil.copytree(hdfs_jars(), directory / "jars")
