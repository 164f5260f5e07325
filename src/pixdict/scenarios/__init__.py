"""Scenarios: what goes wrong between an institution and the directory, played on real parts, with a ledger as proof."""

from __future__ import annotations

from pixdict.scenarios import claims, directory, parts, requests
from pixdict.scenarios.ledger import Ledger, Line
from pixdict.scenarios.page import scenarios_page
from pixdict.scenarios.player import Player, Scenario
from pixdict.scenarios.stage import Stage

SCENARIOS = [*directory.SCENARIOS, *requests.SCENARIOS, *claims.SCENARIOS, *parts.SCENARIOS]
"""All of them."""

__all__ = ["SCENARIOS", "Ledger", "Line", "Player", "Scenario", "Stage", "scenarios_page"]
