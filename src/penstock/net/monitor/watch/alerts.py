"""
The findings as a metric, and the alert rules for Prometheus.

An alert asks for the findings of a rule, so that it cannot say anything else than the console.
`python -m penstock.net.monitor.watch.alerts` prints the file in contrib/prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.net.monitor.metric import Labels, Metric
from penstock.net.monitor.watch.attention import RULES, Rule

if TYPE_CHECKING:
    from penstock.net.monitor.watch.watcher import Watcher

METRIC = "penstock_attention"
HEAD = """\
# Alert rules for Penstock: the rules of the console's page "Attention".
# Made by `python -m penstock.net.monitor.watch.alerts`; a test compares.
groups:
  - name: penstock
    rules:
      - alert: PenstockDown
        expr: up{job="penstock"} == 0
        for: 1m
        labels:
          severity: critical
        annotations:
          summary: "Penstock on {{ $labels.instance }} does not answer"
          description: "Look at the process and its log."
"""
ALERT = """\
      - alert: Penstock{name}
        expr: {metric}{{rule="{rule}"}} > 0
        for: 1m
        labels:
          severity: {severity}
        annotations:
          summary: "{summary} ({{{{ $labels.instance }}}}{labels})"
          description: "{advice}"
"""
NAMED = ("account", "stream", "consumer", "pipeline")


def attention_metrics(watcher: Watcher) -> Iterator[Metric]:
    """Yield the metric that has a sample for each finding, and a zero for each rule without."""
    if watcher.reports is None:
        return
    samples: list[tuple[Labels, float]] = []
    for rule in RULES:
        found = {tuple(each.where.items()) for each in watcher.findings if each.rule == rule.name}
        samples += [({"rule": rule.name} | dict(where), 1) for where in sorted(found)]
        if not found:
            samples.append(({"rule": rule.name}, 0))
    yield Metric(METRIC, "1 for each thing that needs attention, by rule.", samples)


def alert_rules() -> str:
    """Return the file of alert rules."""
    return HEAD + "".join(map(_alert, RULES))


def _alert(rule: Rule) -> str:
    labels = "".join(f"{{{{ with $labels.{name} }}}} {{{{ . }}}}{{{{ end }}}}" for name in NAMED)
    return ALERT.format(
        name="".join(word.capitalize() for word in rule.name.split("_")),
        metric=METRIC,
        rule=rule.name,
        severity=rule.severity,
        summary=rule.summary,
        labels=labels,
        advice=rule.advice,
    )


if __name__ == "__main__":
    print(alert_rules(), end="")
