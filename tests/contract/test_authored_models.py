"""The authored configs against the code that they serve: tensors, programs, names."""

from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

import slipway_models
from slipway_serving.models import read_config
from slipway_serving.program import Settings
from slipway_serving.requests import tensor_fields
from slipway_serving.wan_t2v.events import OUTPUTS
from slipway_serving.wan_t2v.request import TextToVideoRequest

REPOSITORY = slipway_models.FOLDER
MODELS = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))
TYPES = {"BYTES": "TYPE_STRING"}


def config_of(model: str) -> Any:
    text = (REPOSITORY / model / "config.pbtxt").read_text(encoding="utf-8")
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
        for field in tensor_fields(TextToVideoRequest)
    ]
    assert given == wanted


def test_wan_t2v_outputs_are_the_fields_of_its_events() -> None:
    given = {tensor.name: (type_name(tensor), tuple(tensor.dims)) for tensor in config_of("wan_t2v").output}
    wanted = {
        name: (TYPES.get(datatype, f"TYPE_{datatype}"), dims) for name, (datatype, _, dims) in OUTPUTS.items()
    }
    assert given == wanted


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


def test_decoder_keeps_all_sequences_in_one_instance() -> None:
    config = config_of("wan_t2v_vae_decoder")
    assert [group.count for group in config.instance_group] == [1]
    assert config.model_transaction_policy.decoupled
    videos = sum(group.count for group in config_of("wan_t2v").instance_group)
    assert int(config.parameters["max_sequences"].string_value) >= videos
