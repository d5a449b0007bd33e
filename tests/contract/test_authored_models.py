"""The authored configs against the code that they serve: tensors, programs, names."""

from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

import slipway_models
from slipway_export.config import authored_config
from slipway_export.spec import AuthoredModel
from slipway_serving.diffusion.requests import PromptEmbeds, PromptRequest
from slipway_serving.events import output_fields
from slipway_serving.fields import fields_of
from slipway_serving.models import read_config
from slipway_serving.program import Settings
from slipway_serving.video.requests import Decoding
from slipway_serving.wan_t2v.request import Denoising, TextToVideoRequest

REPOSITORY = slipway_models.FOLDER
MODELS = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))
TYPES = {"BYTES": "TYPE_STRING"}
# What each model takes and answers with, as the family's plan has it.
WAN = (
    AuthoredModel("wan_t2v", request=TextToVideoRequest),
    AuthoredModel("wan_t2v_cached_denoiser", request=Denoising),
    AuthoredModel("wan_t2v_tokenizer", request=PromptRequest),
    AuthoredModel("wan_t2v_vae_decoder", request=Decoding),
    AuthoredModel("wan_t2v_prompt", request=PromptRequest, events=(PromptEmbeds,)),
)
# What clients and the models among themselves rely on: name, type, dims and whether it may be left out.
SERVED: dict[str, tuple[set[Any], set[Any]]] = {
    "wan_t2v_cached_denoiser": (
        {
            ("hidden_states", "TYPE_FP32", (-1, 16, -1, -1, -1), True),
            ("timestep", "TYPE_FP32", (-1, 1), True),
            ("encoder_hidden_states", "TYPE_FP32", (-1, -1, -1), True),
            ("cache_threshold", "TYPE_FP32", (1,), True),
        },
        {("sample", "TYPE_FP32", (-1, 16, -1, -1, -1)), ("cached", "TYPE_BOOL", (1,))},
    ),
    "wan_t2v_prompt": (
        {("prompt", "TYPE_STRING", (1,), False)},
        {("prompt_embeds", "TYPE_FP32", (-1, -1)), ("attention_mask", "TYPE_INT64", (-1,))},
    ),
    "wan_t2v_tokenizer": (
        {("prompt", "TYPE_STRING", (1,), False)},
        {("input_ids", "TYPE_INT64", (-1,)), ("attention_mask", "TYPE_INT64", (-1,))},
    ),
    "wan_t2v_vae_decoder": (
        {("latents", "TYPE_FP32", (1, 16, -1, -1, -1), True)},
        {("frames", "TYPE_UINT8", (-1, -1, -1, 3))},
    ),
}


def config_of(model: str) -> Any:
    """Return the config as the export writes it."""
    text = (REPOSITORY / model / "config.pbtxt").read_text(encoding="utf-8")
    for each in WAN:
        if each.name == model and each.request is not None:
            text = authored_config(text, each.request, each.events or each.request.events)
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def type_name(tensor: Any) -> str:
    return str(model_config_pb2.DataType.Name(tensor.data_type))


def test_wan_t2v_inputs_are_the_fields_of_its_request() -> None:
    given = [
        (tensor.name, type_name(tensor), tuple(tensor.dims), tensor.optional)
        for tensor in config_of("wan_t2v").input
    ]
    wanted = [
        (field.name, TYPES.get(field.datatype, f"TYPE_{field.datatype}"), field.shape, field.optional)
        for field in fields_of(TextToVideoRequest)
    ]
    assert given == wanted


def test_wan_t2v_outputs_are_the_fields_of_its_events() -> None:
    given = {tensor.name: (type_name(tensor), tuple(tensor.dims)) for tensor in config_of("wan_t2v").output}
    wanted = {
        field.name: (TYPES.get(field.datatype, f"TYPE_{field.datatype}"), field.shape)
        for field in output_fields(TextToVideoRequest.events)
    }
    assert given == wanted


@pytest.mark.parametrize("model", SERVED)
def test_model_around_a_denoiser_has_the_tensors_that_others_rely_on(model: str) -> None:
    config, (inputs, outputs) = config_of(model), SERVED[model]
    assert {(t.name, type_name(t), tuple(t.dims), t.optional) for t in config.input} == inputs
    assert {(t.name, type_name(t), tuple(t.dims)) for t in config.output} == outputs


@pytest.mark.parametrize("model", MODELS)
def test_python_model_names_a_program_that_can_be_imported(model: str) -> None:
    config = read_config(REPOSITORY / model)
    if config.get("backend") != "python":
        assert config["platform"] == "ensemble"
        return
    assert (REPOSITORY / model / "1" / "model.py").is_file()
    module, _, name = Settings(model, REPOSITORY, config).parameters["program"].partition(":")
    program = getattr(__import__(module, fromlist=[name]), name)
    assert callable(program.run)
    assert callable(program.close)
    assert isinstance(program.reports_requests, bool)


def test_ensemble_feeds_each_model_what_its_config_takes() -> None:
    ensemble = config_of("wan_t2v_prompt")
    tokenizer = config_of("wan_t2v_tokenizer")
    first, second = ensemble.ensemble_scheduling.step
    assert set(first.input_map) == {tensor.name for tensor in tokenizer.input}
    assert set(first.output_map) == {tensor.name for tensor in tokenizer.output}
    assert set(second.input_map) == set(first.output_map.values())
    produced = {*first.output_map.values(), *second.output_map.values()}
    assert {tensor.name for tensor in ensemble.output} <= produced


def test_decoder_keeps_all_sessions_in_one_instance() -> None:
    config = config_of("wan_t2v_vae_decoder")
    assert [group.count for group in config.instance_group] == [1]
    assert config.model_transaction_policy.decoupled
    videos = sum(group.count for group in config_of("wan_t2v").instance_group)
    assert int(config.parameters["max_sessions"].string_value) >= videos
