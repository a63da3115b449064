"""
The jars of Spark's own Kafka connector, fetched by their Maven coordinates.

They are those of the Spark that runs, or where a repository does not have these the
newest before them that work with it.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.bus.testing.kafka import classpath, kept_classpath
from penstock.errors import MissingExtra

NAME = "spark-kafka"
CONNECTOR = ("org.apache.spark", "spark-sql-kafka-0-10_2.13")
TOKEN_PROVIDER = ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13")
CLIENTS = ("org.apache.kafka", "kafka-clients", "3.9.1")
POOL = ("org.apache.commons", "commons-pool2", "2.12.0")

BEFORE = ("4.2.0", "4.0.0")
"""Versions of the connector and of its token provider that work with Spark 4.3 as well."""

# What else they ask for is part of Spark.
DEPENDENCY = """\
<dependency>
  <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
</dependency>
"""
POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>penstock</groupId><artifactId>connector</artifactId><version>1</version>"
    "<dependencies>{dependencies}</dependencies></project>"
)


class Connector(NamedTuple):
    """The connector's version, and its jars as `spark.jars` takes them."""

    version: str
    jars: str


def fetch_connector(spark_version: str) -> Connector:
    """Return the connector for a version of Spark; raise `MissingExtra` where there is none."""
    # Maven takes its time to find out again that a repository does not have it.
    if kept_classpath(NAME, spark_version) is None and kept_classpath(NAME, BEFORE[0]) is not None:
        return _fetch(*BEFORE)
    try:
        return _fetch(spark_version, spark_version)
    except MissingExtra:
        return _fetch(*BEFORE)


def _fetch(version: str, token_provider_version: str) -> Connector:
    artifacts = (
        (*CONNECTOR, version),
        (*TOKEN_PROVIDER, token_provider_version),
        CLIENTS,
        POOL,
    )
    pom = POM.format(dependencies="".join(DEPENDENCY.format(*each) for each in artifacts))
    jars = classpath(pom, name=NAME, version=version)
    return Connector(version, jars.replace(":", ","))
