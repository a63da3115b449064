"""
A real Kafka broker as a process of its own, which can be killed and comes back.

The broker is Apache Kafka itself, in KRaft mode, fetched by its Maven coordinates the
first time and kept where Maven keeps what it fetches. It needs Java 17 and Maven.
"""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import MissingExtra
from penstock.net.process import HOST, free_ports

VERSION = "4.1.0"
READY_TIMEOUT_S = 100.0
STOP_TIMEOUT_S = 30.0
FETCH_TIMEOUT_S = 90.0

JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a broker that lives for a minute."""

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>kafka-broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""

META = "version=1\ncluster.id={cluster}\nnode.id=1\ndirectory.id={directory}\n"


class KafkaBroker:
    """One broker on a free loopback port. Use with `with`."""

    def __init__(
        self,
        directory: str | Path,
        *,
        java_options: Sequence[str] = JAVA_OPTIONS,
        settings: Sequence[str] = (),
    ) -> None:
        self._directory = Path(directory)
        self._settings = settings
        self._java_options = java_options
        self._log = self._directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        """Host and port; the same after a restart."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The URL for `EventBus.open`."""
        return f"kafka://{self.address}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it, on the port and with the topics it had before."""
        assert self._process is None, "it runs already"
        jars = classpath()
        if not self.port:
            self._format()
        command = ["java", *self._java_options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-cp", jars, "kafka.Kafka", str(self._directory / "server.properties")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Have it shut down in good order."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Kill it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _format(self) -> None:
        """Write the configuration and an empty data directory."""
        self.port, controller_port = free_ports(2)
        settings = PROPERTIES.format(
            host=HOST, port=self.port, controller_port=controller_port, directory=self._directory
        )
        settings += "".join(f"{line}\n" for line in self._settings)
        (self._directory / "server.properties").write_text(settings)
        data = self._directory / "data"
        data.mkdir(parents=True)
        (data / "meta.properties").write_text(META.format(cluster=_uuid(), directory=_uuid()))

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not _is_open(self.port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                log = self._log.read_text(errors="replace")[-5000:]
                raise RuntimeError(f"the broker did not start:\n{log}")
            time.sleep(0.05)


def classpath(pom: str = POM, *, name: str = "kafka", version: str = VERSION) -> str:
    """Return the jars of some Maven coordinates, fetching what is not on this machine."""
    kept = kept_classpath(name, version)
    if kept is not None:
        return kept
    for command in ("java", "mvn"):
        if shutil.which(command) is None:
            raise MissingExtra(f"`{command}` is needed, and is not on this machine")
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        jars = _fetch(Path(directory), pom.format(version=version))
    cache = _cache(name, version)
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(jars)
    return jars


def kept_classpath(name: str, version: str) -> str | None:
    """Return the jars that were fetched before, if all of them are still there."""
    cache = _cache(name, version)
    jars = cache.read_text() if cache.exists() else ""
    return jars if jars and all(Path(jar).exists() for jar in jars.split(":")) else None


def _cache(name: str, version: str) -> Path:
    return Path.home() / ".m2" / "penstock" / f"{name}-{version}.classpath"


def _fetch(directory: Path, pom: str) -> str:
    (directory / "pom.xml").write_text(pom)
    command = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
    try:
        answer = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise MissingExtra("Maven could not fetch what is needed in time") from None
    if answer.returncode:
        lines = (answer.stdout + answer.stderr).strip().splitlines() or ["no reason given"]
        raise MissingExtra(f"Maven cannot fetch what is needed: {lines[0]}")
    return (directory / "classpath").read_text().strip()


def _uuid() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
