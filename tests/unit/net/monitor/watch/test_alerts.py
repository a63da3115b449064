"""The alert rules for Prometheus: the same set as the console's."""

from __future__ import annotations

from pathlib import Path

import yaml

from penstock.net.monitor.watch.alerts import METRIC, alert_rules
from penstock.net.monitor.watch.attention import RULES

SHIPPED = Path(__file__).parents[5] / "contrib" / "prometheus" / "penstock.rules.yml"


def test_the_file_that_is_shipped_is_made_from_the_rules() -> None:
    assert alert_rules() == SHIPPED.read_text()


def test_there_is_an_alert_for_each_rule() -> None:
    (group,) = yaml.safe_load(alert_rules())["groups"]
    down, *alerts = group["rules"]

    assert 'up{job="penstock"} == 0' == down["expr"]
    assert [f'{METRIC}{{rule="{rule.name}"}} > 0' for rule in RULES] == [
        alert["expr"] for alert in alerts
    ]
    assert [rule.severity for rule in RULES] == [alert["labels"]["severity"] for alert in alerts]
    for alert in alerts:
        assert {"alert", "expr", "for", "labels", "annotations"} == alert.keys()
        assert {"summary", "description"} == alert["annotations"].keys()
