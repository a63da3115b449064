"""
Files wherever Spark finds them: on disk, in HDFS, in an object store.

Spark's own file systems are asked, in the driver's JVM, and what has to be there as a whole or
not at all is written as Spark writes its checkpoints. The Python process that holds the session
has a way to the JVM. Spark plans a write in another one, on the same machine, which is told by a
file of its user's where the JVM listens and by which secret.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.pipelines.folder import Folder, LocalFolder

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

        try:
            self._write(file, text, overwrite=False)
        except Py4JJavaError as error:
            if "FileAlreadyExists" in str(error.java_exception.getClass().getName()):
                return False
            raise
        return True

    def replace(self, file: str, text: str) -> None:
        """Write a file in the place of the one that is there."""
        self._write(file, text, overwrite=True)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; none if it is not there."""
        path, system = self._locate(directory)
        if not system.exists(path):
            return []
        return [str(each.getPath().getName()) for each in system.listStatus(path)]

    def rename(self, old: str, new: str) -> None:
        """Move a file or a directory to where there is none."""
        path, system = self._locate(old)
        if not system.rename(path, self._locate(new)[0]):
            raise OSError(f"`{old}` could not be renamed to `{new}`")

    def remove(self, location: str) -> None:
        """Remove a file or a directory, unless it is gone."""
        path, system = self._locate(location)
        system.delete(path, True)

    def qualified(self, location: str) -> str:
        """Return a location as it is known from everywhere: with its file system, and absolute."""
        path, system = self._locate(location)
        return str(system.makeQualified(path).toString())

    def local_path(self, location: str) -> Path | None:
        """Return where a location is on this machine; None if it is elsewhere."""
        path, system = self._locate(location)
        if system.getUri().getScheme() != "file":
            return None
        return Path(str(system.makeQualified(path).toUri().getPath()))

    def _write(self, file: str, text: str, *, overwrite: bool) -> None:
        path, _ = self._locate(file)
        manager = _managers(self._jvm).create(path.getParent(), self._hadoop)
        manager.mkdirs(path.getParent())
        stream = manager.createAtomic(path, overwrite)
        stream.write(bytearray(text.encode()))
        stream.close()

    def _locate(self, location: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(location)
        return path, path.getFileSystem(self._hadoop)


def _managers(jvm: Any) -> Any:
    """Return what makes writers of files as Spark's checkpoints have them; it moved in 4.1."""
    from py4j.java_gateway import JavaClass

    streaming = jvm.org.apache.spark.sql.execution.streaming
    found = streaming.checkpointing.CheckpointFileManager
    return found if isinstance(found, JavaClass) else streaming.CheckpointFileManager


class HadoopFolder:
    """A directory of any file system that Spark knows."""

    def __init__(self, files: Files, location: str) -> None:
        self._files = files
        self._location = location

    def at(self, path: str) -> str:
        """Return where Spark finds a path."""
        return f"{self._location}/{path}"

    def find(self, pattern: str) -> list[str]:
        """Return the paths that match."""
        found = [""]
        for level in pattern.split("/"):
            found = [
                f"{parent}/{name}".lstrip("/")
                for parent in found
                for name in self._files.names(self.at(parent))
                if fnmatchcase(name, level)
            ]
        return sorted(found)

    def read(self, path: str) -> str:
        """Return what a file says."""
        text = self._files.read(self.at(path))
        if text is None:
            raise FileNotFoundError(self.at(path))
        return text

    def replace(self, path: str, text: str) -> None:
        """Write a file."""
        self._files.replace(self.at(path), text)

    def rename(self, path: str, new: str) -> None:
        """Move a directory."""
        self._files.rename(self.at(path), self.at(new))

    def remove(self, path: str) -> None:
        """Remove a file or a directory."""
        self._files.remove(self.at(path))


def folder_of(spark: SparkSession, location: str) -> Folder:
    """Return a directory, on this machine or elsewhere."""
    files = files_of(spark)
    path = files.local_path(location)
    return HadoopFolder(files, location) if path is None else LocalFolder(path, location)


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
