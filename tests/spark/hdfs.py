"""A real HDFS, a name node and a data node in one process, fetched by its Maven coordinates."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Self

from tests.servers import wait_until

from penstock.bus.testing.kafka import JAVA_OPTIONS, classpath

VERSION = "3.4.1"
START_S = 300.0
PROGRAM = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>hdfs</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-minicluster</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


class Hdfs:
    """Listens on a free loopback port, inside a `with` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = ""

    def __enter__(self) -> Self:
        jars = classpath(POM, name="hdfs", version=VERSION)
        written = self._directory / "hdfs.xml"
        command = ["java", *JAVA_OPTIONS, f"-Dtest.build.data={self._directory}/data", "-cp", jars]
        command += [PROGRAM, "-nomr", "-format", "-writeConfig", str(written)]
        log = self._directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            # It says where it is once it can be used.
            wait_until(
                lambda: self._url(written) or self._process.poll() is not None, timeout_s=START_S
            )
            self.url = self._url(written)
            assert self.url, f"HDFS did not start:\n{log.read_text()[-5000:]}"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _url(self, written: Path) -> str:
        text = written.read_text() if written.exists() else ""
        found = re.search(r"fs\.defaultFS</name><value>(hdfs://[^<]+)</value>", text)
        return found[1] if found and "</configuration>" in text else ""
