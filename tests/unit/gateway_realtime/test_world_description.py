"""The description of a world for a page: fields, controls, and an example that comes with the checkpoint."""

from __future__ import annotations

from slipway_gateway.realtime.description import world_description
from slipway_gateway.realtime.world_kinds import world_kinds


def test_description_has_controls_and_fields_of_each_world() -> None:
    for kind in world_kinds().values():
        described = world_description(kind, {})
        names = {field["name"] for field in described["fields"]}
        assert {"image", "seed", "fps"} <= names and "output" not in names
        assert described["formats"] == ["m4s", "jpeg"] and described["can_save"] and described["continues"]
        assert all(control["columns"] for control in described["controls"])


def test_description_names_the_columns_and_bounds_of_the_controls() -> None:
    mouse, keyboard = world_description(world_kinds()["matrix_game_universal"], {})["controls"]
    assert (mouse["columns"], mouse["minimum"], mouse["maximum"]) == (["up", "right"], -1, 1)
    assert (keyboard["columns"], keyboard["minimum"]) == (["forward", "back", "left", "right"], 0)


def test_example_and_usual_value_come_from_the_served_model() -> None:
    parameters = {"example_image": "iVBORw==", "usual_fps": "12", "checkpoint_note": "It is small."}
    described = world_description(world_kinds()["matrix_game_universal"], parameters)
    assert described["note"] == "It is small."
    fields = {field["name"]: field for field in described["fields"]}
    assert fields["image"]["type"] == "picture" and fields["image"]["required"]
    assert fields["image"]["example"] == "iVBORw==" and fields["fps"]["default"] == 12
    assert "example" not in fields["seed"]
