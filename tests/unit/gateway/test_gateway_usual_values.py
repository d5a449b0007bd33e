"""Usual values of a served model's fields."""

from __future__ import annotations

from slipway_client.served_model import ServedModel


def test_usual_values_may_be_whole_numbers_and_fractions() -> None:
    parameters = {
        "usual_steps": "4",
        "usual_guidance_scale": "1.0",
        "usual_other": "many",
        "usual_low": "-1",
        "range_steps": "1:4",
    }
    assert ServedModel("wan_t2v", parameters).usual == {"steps": 4, "guidance_scale": 1.0}
