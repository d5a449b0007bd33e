"""Builds a component's `config.pbtxt` from its description, with Triton's own protobuf classes.

The same text serves NGC's C++ ONNX Runtime backend and the embedded server's backend of that name.
An authored model has its tensors from its request and its events.
The warm-up request holds the opt sizes, so a reader of the configuration alone knows a shape that
works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.size import Point, Size
from slipway_export.spec import Component, Engine, TensorSpec
from slipway_serving.errors import InvalidRequest
from slipway_serving.events import Event, output_fields
from slipway_serving.fields import Array, Field, fields_of
from slipway_serving.requests import Request, input_fields
from slipway_serving.waiting import MODELS_PARAMETER, PARAMETER


def model_config(component: Component, name: str, engine: Engine) -> pb.ModelConfig:
    """Return the configuration under which Triton serves a component.

    Args:
        component: its description.
        name: of the served model.
        engine: chooses the backend.
    """
    batch = component.batch_axis
    return pb.ModelConfig(
        name=name,
        backend=engine.backend,
        max_batch_size=batch.max if batch else 0,
        input=[
            pb.ModelInput(name=tensor.name, data_type=tensor.dtype.triton, **_dims(component, tensor))
            for tensor in component.inputs
        ],
        output=[
            pb.ModelOutput(name=tensor.name, data_type=tensor.dtype.triton, **_dims(component, tensor))
            for tensor in component.outputs
        ],
        # One instance per device. Merged requests round differently: only where the component allows it.
        dynamic_batching=_dynamic_batching(component) if batch else None,
        instance_group=[pb.ModelInstanceGroup(count=1, kind=pb.ModelInstanceGroup.KIND_AUTO)],
        model_warmup=[_warmup(component, batch is not None)],
        parameters=_parameters(component),
    )


def _parameters(component: Component) -> dict[str, pb.ModelParameter]:
    if component.queue_limit is None:
        return {}
    texts = {PARAMETER: str(component.queue_limit), MODELS_PARAMETER: " ".join(component.queue_limit_with)}
    return {name: pb.ModelParameter(string_value=text) for name, text in texts.items() if text}


def _dynamic_batching(component: Component) -> pb.ModelDynamicBatching | None:
    if component.merge_us is None:
        return None
    # Triton fills a batch up to the largest size that it is to prefer, and no further.
    rows = None if component.merge_rows is None else [component.merge_rows]
    return pb.ModelDynamicBatching(max_queue_delay_microseconds=component.merge_us, preferred_batch_size=rows)


def config_text(config: pb.ModelConfig) -> str:
    """Return the configuration in the text form that Triton reads."""
    return str(text_format.MessageToString(config))


def authored_config(text: str, request: type[Request], events: Sequence[type[Event]]) -> str:
    """Return an authored model's configuration with the tensors that its request and events have.

    Args:
        text: of its `config.pbtxt`, without inputs and outputs.
        request: what the model takes.
        events: what it answers with.

    Raises:
        InvalidRequest: the text has tensors of its own.
    """
    config = text_format.Parse(text, pb.ModelConfig())
    if config.input or config.output:
        raise InvalidRequest(
            f"{config.name or request.model}: config.pbtxt must leave its tensors to {request.__name__},"
            " got some of its own"
        )
    batched = config.max_batch_size > 0
    # Only a batcher makes one batch of requests: an ensemble hands each on by itself.
    merged = config.HasField("dynamic_batching")
    # Triton batches only requests that have an input: there, what a turn must bring stays required.
    turn = request.turn
    in_turns = {field.name for field in fields_of(turn)} if turn is not None else set()
    inputs = [
        pb.ModelInput(
            name=field.name,
            data_type=_triton(field),
            dims=_field_dims(field, batched),
            optional=field.optional or (turn is not None and not (batched and field.name in in_turns)),
            allow_ragged_batch=merged and isinstance(field.rule, Array) and field.rule.ragged,
        )
        for field in input_fields(request)
    ]
    outputs = [
        pb.ModelOutput(name=field.name, data_type=_triton(field), dims=_field_dims(field, batched))
        for field in output_fields(events)
    ]
    tensors = pb.ModelConfig(input=inputs, output=outputs)
    return f"{text.rstrip()}\n{text_format.MessageToString(tensors)}"


def _triton(field: Field) -> str:
    return "TYPE_STRING" if field.datatype == "BYTES" else f"TYPE_{field.datatype}"


def _field_dims(field: Field, batched: bool) -> tuple[int, ...]:
    return field.shape[1:] if batched else field.shape


def _dims(component: Component, tensor: TensorSpec) -> dict[str, Any]:
    """Return a tensor's dimensions as Triton has them, without the batch, and their reshape."""
    sizes = component.varying(tensor)[1:] if component.batch_axis else component.varying(tensor)
    if not sizes:
        # Triton has no tensor without dimensions: a [batch] tensor travels as [batch, 1].
        return {"dims": [1], "reshape": pb.ModelTensorReshape(shape=[])}
    return {"dims": [-1 if isinstance(size, Size) else size for size in sizes]}


def _warmup(component: Component, batched: bool) -> pb.ModelWarmup:
    point = component.points()["opt"]
    return pb.ModelWarmup(
        name="opt",
        batch_size=point["batch"] if batched else 1,
        inputs={tensor.name: _warmup_input(tensor, point, batched) for tensor in component.inputs},
    )


def _warmup_input(tensor: TensorSpec, point: Point, batched: bool) -> pb.ModelWarmup.Input:
    shape = tensor.at(point)[1:] if batched else tensor.at(point)
    # Whole numbers are ids and masks: zero is a valid id, random 64-bit numbers are not.
    random = tensor.dtype.is_float
    return pb.ModelWarmup.Input(
        data_type=tensor.dtype.triton,
        dims=shape or (1,),
        random_data=random or None,
        zero_data=None if random else True,
    )
