"""What is shipped for running a server: each file is what the tool that reads it expects."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml

import penstock
from penstock.bus import Envelope, EventBus
from penstock.bus.operate.exporter import Exporter
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import ServerConfig

ROOT = Path(__file__).parent.parent
CONTRIB = ROOT / "contrib"
ENVIRONMENT = {
    "PENSTOCK_MONITORING": "127.0.0.1:8222",
    "PENSTOCK_MAX_FILE": "10GB",
    "PENSTOCK_PASSWORD": "secret",
}
METRIC = re.compile(r"\b(?:penstock|process)_[a-z_]+\b")
INSTRUCTIONS = {
    *("FROM", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"),
    *("HEALTHCHECK", "ENTRYPOINT", "CMD"),
}


def check(config: Path, store: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", "-t", "-c", str(config)],
        env={**os.environ, **ENVIRONMENT, "PENSTOCK_STORE": str(store)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr
    assert "warn" not in checked.stderr.lower(), checked.stderr


def test_the_configuration_of_the_server_is_valid(tmp_path: Path) -> None:
    check(CONTRIB / "server.conf", tmp_path)


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on this machine")
    text = (CONTRIB / "systemd" / "penstock.service").read_text()
    program = Path(sys.executable).with_name("penstock")
    (tmp_path / "penstock.service").write_text(
        text.replace("/opt/penstock/bin/penstock", str(program))
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "penstock.service")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (verified.returncode, verified.stderr) == (0, "")


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a container file, continued lines joined."""
    text = re.sub(r"\\\n", "", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_container_file_copies_what_is_there() -> None:
    found = instructions(CONTRIB / "container" / "Containerfile")
    sources = [
        rest.split()[0] for word, rest in found if word == "COPY" and not rest.startswith("--from")
    ]

    assert {word for word, _ in found} <= INSTRUCTIONS
    assert sources == [".", "contrib/server.conf"]
    assert all((ROOT / source).exists() for source in sources)
    for word, rest in found:
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)


def test_the_container_sets_what_the_configuration_reads() -> None:
    wanted = set(re.findall(r"\$(PENSTOCK_\w+)", (CONTRIB / "server.conf").read_text()))
    environment = "".join(
        rest
        for word, rest in instructions(CONTRIB / "container" / "Containerfile")
        if word == "ENV"
    )

    assert wanted - set(re.findall(r"(PENSTOCK_\w+)=", environment)) == {"PENSTOCK_PASSWORD"}


def test_compose_mounts_what_is_there() -> None:
    folder = CONTRIB / "container"
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    volumes = [volume for one in compose["services"].values() for volume in one.get("volumes", ())]
    mounted = [volume.split(":")[0] for volume in volumes]
    build = compose["services"]["broker"]["build"]

    assert [one for one in mounted if one.startswith(".") and not (folder / one).exists()] == []
    assert {one for one in mounted if not one.startswith(".")} == set(compose["volumes"])
    assert (folder / build["context"] / build["dockerfile"]).exists()


@pytest.mark.parametrize(
    "path", sorted((CONTRIB / "container").rglob("*.yaml")), ids=lambda path: path.name
)
def test_a_file_is_yaml(path: Path) -> None:
    assert yaml.safe_load(path.read_text())


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CONTRIB / "kubernetes" / "penstock.yaml").read_text()))


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_kubernetes_takes_a_manifest(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_configuration_in_kubernetes_is_valid(tmp_path: Path) -> None:
    (config,) = [one for one in manifests() if one["kind"] == "ConfigMap"]
    path = tmp_path / "server.conf"
    path.write_text(config["data"]["server.conf"].replace("/data", str(tmp_path / "data")))

    check(path, tmp_path)


@pytest.fixture(scope="module")
def dashboards() -> ModuleType:
    path = CONTRIB / "grafana" / "dashboards.py"
    spec = importlib.util.spec_from_file_location("dashboards", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_dashboards_are_fresh(dashboards: ModuleType, tmp_path: Path) -> None:
    dashboards.write(tmp_path)

    for path in tmp_path.iterdir():
        assert path.read_text() == (CONTRIB / "grafana" / path.name).read_text(), path.name


def test_a_dashboard_shows_only_metrics_that_there_are(
    dashboards: ModuleType, tmp_path: Path
) -> None:
    shown = {
        metric
        for panels in dashboards.DASHBOARDS.values()
        for panel in panels
        for expression in panel.lines.values()
        for metric in METRIC.findall(expression)
    }

    assert len(shown) > 30
    assert shown - asyncio.run(exported(tmp_path)) == set()


async def exported(directory: Path) -> set[str]:
    """Return the metrics of a server with a stream and a consumer, and of a bus on it."""
    config = ServerConfig(
        port=0, http_port=0, jetstream=JetStreamConfig(store_dir=str(directory / "js"))
    )
    async with penstock.Server(config) as server:
        async with EventBus.open(server.url, service="shop") as bus:
            handled = asyncio.Event()

            async def handle(envelope: Envelope[int]) -> None:
                handled.set()

            await bus.subscribe_envelope("orders", handle)
            event = Envelope(aggregate_id="1", event_type="placed", payload=1)
            await bus.publish_envelope("orders", event)
            await handled.wait()
            async with Exporter(bus) as exporter:
                pages = [
                    await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
                    for port in (server.http_port, exporter.port)
                ]
    return set(METRIC.findall("".join(pages)))


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text
