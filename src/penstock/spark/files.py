"""
Files wherever Spark finds them: on disk, in HDFS, in an object store.

Spark's own file systems are asked, in the driver's JVM. The Python process that holds the
session has a way to it. Spark plans a write in another one, on the same machine, which is
told by a file of its user's where the JVM listens and by which secret.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDRESS = "driver.json"


class Files:
    """The file systems of a session."""

    def __init__(self, jvm: Any, session: Any) -> None:
        self._jvm = jvm
        self._session = session
        self._hadoop = session.sessionState().newHadoopConf()

    def setting(self, name: str) -> str:
        """Return a setting of the session; empty if it has none."""
        return str(self._session.conf().get(name, ""))

    def newest_s(self, directory: str) -> float | None:
        """Return when the entry with the highest number was written; None if there is none."""
        path, system = self._locate(directory)
        if not system.exists(path):
            return None
        entries = {each.getPath().getName(): each for each in system.listStatus(path)}
        newest = max((name for name in entries if name.isdigit()), key=int, default=None)
        return None if newest is None else entries[newest].getModificationTime() / 1000

    def is_empty(self, directory: str) -> bool:
        """Tell whether a directory holds nothing, or is not there."""
        path, system = self._locate(directory)
        return not system.exists(path) or not len(system.listStatus(path))

    def read(self, file: str) -> str | None:
        """Return what a file says; None if it is not there."""
        path, system = self._locate(file)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, file: str, text: str) -> bool:
        """Write a file that was not there, and tell whether it was so."""
        from py4j.protocol import Py4JJavaError

        path, system = self._locate(file)
        try:
            stream = system.create(path, False)
        except Py4JJavaError as error:
            if "FileAlreadyExists" in str(error.java_exception.getClass().getName()):
                return False
            raise
        stream.write(bytearray(text.encode()))
        stream.close()
        return True

    def _locate(self, location: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(location)
        return path, path.getFileSystem(self._hadoop)


def files_of(spark: SparkSession) -> Files:
    """Return the file systems of a session in its own process."""
    return Files(spark.sparkContext._jvm, spark._jsparkSession)


def leave_address(spark: SparkSession) -> str:
    """Write down where the JVM of a session is; return the file. Only its user can read it."""
    parameters = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    directory = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    file = os.path.join(directory, ADDRESS)
    Path(file).write_text(json.dumps({"port": parameters.port, "token": parameters.auth_token}))
    return file


@contextmanager
def driver_files(address: str) -> Iterator[Files]:
    """Connect to the JVM of a session from another process of its machine."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    where = json.loads(Path(address).read_text())
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=where["port"], auth_token=where["token"])
    )
    try:
        yield Files(gateway.jvm, gateway.jvm.org.apache.spark.sql.SparkSession.active())
    finally:
        gateway.close()
