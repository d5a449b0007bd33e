"""What the documents on the chart say is there: tests behind ticks, alerts, values, examples."""

from __future__ import annotations

import re
from typing import Any

import yaml
from helm_chart import CHART, EXAMPLES, ROOT

COMPARED = (ROOT / "docs/reference/charts_compared.md").read_text()
ALERTS = (ROOT / "docs/operate/alerts.md").read_text()
OPERATIONS = "".join(
    (ROOT / "docs/operate" / f"{name}.md").read_text()
    for name in ("kubernetes", "upgrades", "overload", "scaling", "memory", "recovery", "alerts")
)
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
}


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_tick_of_ours_names_tests_that_exist() -> None:
    ours = {row[0]: row[1] for row in rows(COMPARED)[1:]}
    ticked = {feature: cell for feature, cell in ours.items() if cell.startswith("✓")}
    assert len(ticked) >= 30
    for feature, cell in ours.items():
        named = re.findall(r"`(test_\w+)`", cell)
        assert bool(named) == (feature in ticked), feature
        assert not set(named) - TESTS, feature


def test_comparison_says_yes_in_part_or_no_of_every_chart_in_every_row() -> None:
    for row in rows(COMPARED)[1:]:
        assert len(row) == 5
        assert all(cell[0] in "✓~\N{EN DASH}" for cell in row[1:]), row


def test_operations_explain_every_alert_and_no_other() -> None:
    groups = yaml.safe_load((ROOT / "observability" / "rules.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    explained = {row[0].strip("`") for row in rows(ALERTS) if row[0].startswith("`Slipway")}
    assert explained == alerts


def test_operations_name_values_and_examples_that_exist() -> None:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    for dotted in re.findall(r"`([a-zA-Z]+\.[a-zA-Z]+)[`: ]", OPERATIONS):
        section, name = dotted.split(".")
        if section in values:
            assert name in values[section], dotted
    for name in re.findall(r"examples/([\w-]+\.yaml)", OPERATIONS):
        assert CHART / "examples" / name in EXAMPLES
