"""Fields of a creation request: their places, their names, their defaults and every refusal."""

from __future__ import annotations

import io
import json
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from slipway_client.served_model import ServedModel
from slipway_gateway.errors import ApiError
from slipway_gateway.fields.creation import chosen_model, create, rebuilt_values
from slipway_gateway.fields.description import model_description
from slipway_gateway.fields.kinds import VideoKind, video_kinds
from slipway_gateway.fields.parsing import flatten, nested_form
from slipway_serving.protocol.errors import InvalidRequest

KINDS = video_kinds()
WAN = ServedModel(
    "wan_t2v",
    {
        "usual_frames": "33", "usual_height": "64", "usual_width": "64",
        "range_frames": "1:33", "range_height": "32:64", "range_width": "32:64", "range_image": "0:0",
    },
)  # fmt: skip
FRAMEPACK = ServedModel("framepack_i2v", {"usual_height": "64", "usual_width": "64"})


def wan(**fields: Any) -> Any:
    return create(KINDS["wan_t2v"], fields, WAN, "normal")


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        wan(**fields)
    return str(caught.value)


def picture(width: int = 80, height: int = 48) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_defaults_are_the_served_models_when_only_a_prompt_is_given() -> None:
    made = wan(prompt="a red ball")
    assert (made.width, made.height, made.frames, made.fps, made.steps) == (64, 64, 33, 16, 40)


def test_seed_is_chosen_anew_when_none_is_given() -> None:
    assert wan(prompt="a").seed != wan(prompt="a").seed
    assert wan(prompt="a", seed="7").seed == 7


@pytest.mark.parametrize(
    "fields",
    [
        {"num_frames": "17", "num_inference_steps": 8, "size": "32x64"},
        {"frames": 17, "steps": "8", "width": "32", "height": 64},
        {"seconds": "1", "steps": 8.0, "size": "32 x 64"},
        {"seconds": 1, "fps": 16, "num_inference_steps": "8", "size": "32*64"},
    ],
)
def test_names_of_other_apis_mean_the_same_when_they_are_used(fields: dict[str, Any]) -> None:
    made = wan(prompt="a", **fields)
    assert (made.frames, made.steps, made.width, made.height) == (17, 8, 32, 64)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"seconds": "4"}, "seconds must be 0.0625 to 2.06 at 16 frames per second"),
        ({"seconds": "nan"}, "seconds must be a number above 0"),
        ({"seconds": "1", "frames": 33}, "seconds must agree with frames"),
        ({"num_frames": 32}, "num_frames must be 4k+1 and at least 1, got 32; try 33"),
        ({"num_frames": 17, "frames": 33}, "must agree with"),
        ({"size": "1280x720"}, "height must be 32 to 64 px, the range of the exported models, got 720"),
        ({"size": "big"}, "size must be WIDTHxHEIGHT in pixels, got 'big'"),
        ({"size": "64x64", "width": 32}, "must agree with"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"steps": 8.5}, "steps must be a whole number, got 8.5"),
        ({"guidance_scale": "inf"}, "guidance_scale must be"),
        ({"promt": "a"}, "promt must be a field of the model, got an unknown field; try one of"),
        ({"output": "frames"}, "output must be a field of the model"),
        ({"continue_from": "x"}, "continue_from must be a field of the model"),
        ({"input_reference": b"x"}, "input_reference must be left out for this model's checkpoint"),
        ({"priority": "now"}, "priority must be one of urgent, normal, low"),
        ({"draft": "video"}, "draft must come with stop_after_step"),
    ],
)
def test_field_is_refused_by_name_when_it_breaks_a_rule(fields: dict[str, Any], said: str) -> None:
    assert said in refusal(prompt="a", **fields)


def test_all_problems_are_named_when_there_are_several() -> None:
    message = refusal(steps=0, fps="x", size="?")
    assert all(f"{name} must be" in message for name in ("steps", "fps", "size", "prompt"))


def test_picture_decides_nothing_when_the_model_has_a_usual_size() -> None:
    made = create(KINDS["framepack_i2v"], {"prompt": "a", "input_reference": picture()}, FRAMEPACK, "normal")
    assert (made.width, made.height) == (64, 64)
    assert made.values["image"] == {"content": "input"}
    assert made.pictures == {"input": picture()}


def test_picture_is_refused_when_it_is_none() -> None:
    with pytest.raises(InvalidRequest, match="input_reference must be"):
        create(KINDS["framepack_i2v"], {"prompt": "a", "input_reference": b"GIF89a"}, FRAMEPACK, "normal")
    with pytest.raises(InvalidRequest, match="input_reference must be given"):
        create(KINDS["framepack_i2v"], {"prompt": "a"}, FRAMEPACK, "normal")


@pytest.mark.parametrize(("pictures", "given"), [("0:1", False), ("0:1", True), ("1:1", True)])
def test_picture_is_taken_when_the_checkpoint_takes_one(pictures: str, given: bool) -> None:
    served = ServedModel("wan_t2v", {**WAN.parameters, "range_image": pictures})
    more = {"input_reference": picture()} if given else {}
    made = create(KINDS["wan_t2v"], {"prompt": "a", **more}, served, "normal")
    assert made.pictures == ({"input": picture()} if given else {})


@pytest.mark.parametrize(("pictures", "required"), [("0:0", None), ("0:1", False), ("1:1", True)])
def test_form_asks_for_a_picture_when_the_checkpoint_takes_one(pictures: str, required: bool | None) -> None:
    served = ServedModel("wan_t2v", {**WAN.parameters, "range_image": pictures})
    fields = {field["name"]: field for field in model_description(KINDS["wan_t2v"], served)["fields"]}
    assert fields.get("input_reference", {}).get("required") is required


def test_picture_is_not_described_when_the_export_does_not_say_that_it_is_taken() -> None:
    parameters = {name: value for name, value in WAN.parameters.items() if name != "range_image"}
    described = model_description(KINDS["wan_t2v"], ServedModel("wan_t2v", parameters))
    assert "input_reference" not in {field["name"] for field in described["fields"]}


def test_picture_must_be_given_when_the_checkpoint_needs_one() -> None:
    served = ServedModel("wan_t2v", {**WAN.parameters, "range_image": "1:1"})
    with pytest.raises(InvalidRequest, match="input_reference must be given for this model's checkpoint"):
        create(KINDS["wan_t2v"], {"prompt": "a"}, served, "normal")


def between(pictures: str) -> ServedModel:
    """A model of videos that begin with a picture and may end with one."""
    return ServedModel("wan_t2v", {**WAN.parameters, "range_image": "1:1", "range_last_image": pictures})


@pytest.mark.parametrize("pictures", ["0:1", "1:1"])
def test_last_picture_is_taken_beside_the_first(pictures: str) -> None:
    kind, first, last = KINDS["wan_t2v"], picture(), picture(64, 64)
    given = {"prompt": "a", "input_reference": first, "last_image": last}
    made = create(kind, given, between(pictures), "normal")
    assert (made.values["image"], made.values["last_image"]) == ({"content": "input"}, {"content": "input_2"})
    assert made.pictures == {"input": first, "input_2": last}
    stored = json.loads(json.dumps(made.values))
    rebuilt = kind.request(
        **rebuilt_values(kind, stored, {"image": first, "last_image": last}), output="video"
    )
    assert rebuilt == made.request
    fields = {field["name"]: field for field in model_description(kind, between(pictures))["fields"]}
    assert fields["last_image"]["type"] == "picture"
    assert fields["last_image"]["required"] is (pictures == "1:1")


@pytest.mark.parametrize(
    ("pictures", "last", "said"),
    [
        ("0:0", True, "last_image must be left out for this model's checkpoint, which takes none"),
        ("1:1", False, "last_image must be given for this model's checkpoint, got none"),
        ("0:1", "red", "last_image must be a picture file, a URL or a data URL, got 'red'"),
        ("0:1", b"GIF89a", "last_image must be"),
    ],
)
def test_last_picture_is_refused_by_name(pictures: str, last: Any, said: str) -> None:
    given = {"prompt": "a", "input_reference": picture()}
    if last:
        given["last_image"] = picture() if last is True else last
    with pytest.raises(InvalidRequest, match=said):
        create(KINDS["wan_t2v"], given, between(pictures), "normal")


def test_last_picture_is_not_described_when_the_checkpoint_takes_none() -> None:
    described = model_description(KINDS["wan_t2v"], between("0:0"))
    assert "last_image" not in {field["name"] for field in described["fields"]}


def test_model_that_needs_two_pictures_is_not_chosen_for_one() -> None:
    served = {"wan_t2v": between("1:1"), "framepack_i2v": FRAMEPACK}
    assert chosen_model(None, {"prompt", "input_reference"}, KINDS, served).model == "framepack_i2v"


def test_draft_is_a_video_when_a_stop_is_asked_for() -> None:
    assert wan(prompt="a", stop_after_step=3).values["draft"] == "video"
    assert wan(prompt="a", stop_after_step=3, draft="sheet").values["draft"] == "sheet"


def test_priority_is_low_when_the_key_allows_no_other() -> None:
    assert create(KINDS["wan_t2v"], {"prompt": "a"}, WAN, "low").values["priority"] == "low"


def test_request_is_equal_when_it_is_rebuilt_from_what_a_job_stores() -> None:
    kind = KINDS["wan_t2v"]
    made = wan(prompt="a", guidance_scale_2=3.5, cache_threshold="0.25", seed=3)
    stored = json.loads(json.dumps(made.values))
    assert kind.request(**rebuilt_values(kind, stored, {}), output="video") == made.request


class TestModel:
    """The model of a request that names none."""

    SERVED: ClassVar[dict[str, ServedModel]] = {"wan_t2v": WAN, "framepack_i2v": FRAMEPACK}

    def chosen(
        self, *names: str, model: Any = None, served: dict[str, ServedModel] | None = None
    ) -> VideoKind:
        return chosen_model(model, set(names), KINDS, self.SERVED if served is None else served)

    def test_is_the_one_that_fits_the_fields_when_none_is_named(self) -> None:
        assert self.chosen("prompt").model == "wan_t2v"
        assert self.chosen("prompt", "input_reference").model == "framepack_i2v"

    def test_is_the_only_one_when_another_does_not_exist(self) -> None:
        only = {"framepack_i2v": self.SERVED["framepack_i2v"]}
        assert self.chosen("prompt", served=only).model == "framepack_i2v"

    def test_is_refused_when_nobody_serves_it(self) -> None:
        with pytest.raises(
            ApiError, match=r"model must be one that is served \(framepack_i2v, wan_t2v\)"
        ) as caught:
            self.chosen("prompt", model="sora-2")
        assert (caught.value.status, caught.value.param) == (404, "model")

    def test_is_refused_when_no_server_was_ever_seen(self) -> None:
        with pytest.raises(ApiError) as caught:
            self.chosen("prompt", served={})
        assert caught.value.status == 503

    def test_must_be_given_when_no_field_decides(self) -> None:
        with pytest.raises(ApiError, match="model must be given, one of") as caught:
            self.chosen()
        assert caught.value.status == 400


class TestPlaces:
    """The places of a field in a body."""

    def test_are_equal_when_a_field_is_flat_nested_or_json_text(self) -> None:
        expected = {"prompt": "a", "steps": "8", "seed": 3}
        form = [("prompt", "a"), ("extra_body[steps]", "8"), ("extra_params", '{"seed": 3}')]
        assert flatten(nested_form(form, "videos"), "videos") == expected
        document = {"prompt": "a", "extra_body": {"steps": "8", "extra_params": {"seed": 3}}}
        assert flatten(document, "videos") == expected

    def test_are_refused_when_one_field_comes_twice_with_other_values(self) -> None:
        with pytest.raises(InvalidRequest, match="steps must be given once, got 8 and 9"):
            flatten({"steps": 8, "extra_body": {"steps": 9}}, "videos")
        with pytest.raises(InvalidRequest, match="seed must be given once"):
            nested_form([("seed", "1"), ("seed", "2")], "videos")

    @pytest.mark.parametrize("nested", ["[1]", "{", 3, '"a"', "[" * 5000])
    def test_are_refused_when_the_nested_fields_are_no_object(self, nested: Any) -> None:
        with pytest.raises(InvalidRequest, match="extra_body must be an object or the JSON text of one"):
            flatten({"extra_body": nested}, "videos")

    def test_are_refused_when_a_form_field_is_value_and_object(self) -> None:
        with pytest.raises(InvalidRequest, match="one value or one object"):
            nested_form([("a", "1"), ("a[b]", "2")], "videos")
        with pytest.raises(InvalidRequest, match="must be the name of a field"):
            nested_form([("a]b[", "1")], "videos")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*KINDS["wan_t2v"].fields, "size", "seconds", "num_frames", "input_reference", "x"]),
        json_values,
        max_size=6,
    )
)
def test_any_json_is_a_request_or_a_named_refusal(fields: dict[str, Any]) -> None:
    try:
        made = create(KINDS["wan_t2v"], flatten(fields, "videos"), WAN, "normal")
    except InvalidRequest as error:
        assert " must " in str(error)
    else:
        assert made.frames in range(1, 34)


def test_description_has_what_a_form_needs() -> None:
    described = model_description(KINDS["wan_t2v"], WAN)
    fields = {field["name"]: field for field in described["fields"]}
    assert fields["frames"] == {
        "name": "frames", "type": "integer", "required": False, "rule": "4k+1 and at least 1",
        "help": "number of frames", "default": 33, "minimum": 1, "maximum": 33,
    }  # fmt: skip
    assert fields["priority"]["choices"] == ["urgent", "normal", "low"]
    assert fields["prompt"]["required"] and "known_words" not in fields["prompt"]
    assert "output" not in fields
    few = ServedModel("wan_t2v", {"words_prompt": "red ball", "checkpoint_note": "It is small."})
    notes = [model_description(KINDS["wan_t2v"], served)["note"] for served in (WAN, few)]
    assert notes == ["", "It is small."]
    told = {
        field["name"]: field.get("known_words")
        for field in model_description(KINDS["wan_t2v"], few)["fields"]
    }
    assert (told["prompt"], told["negative_prompt"]) == (["red", "ball"], None)
