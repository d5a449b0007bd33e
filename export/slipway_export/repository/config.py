"""Builder of `config.pbtxt` files from component descriptions, with Triton's own protobuf classes.

The same text works for Triton's C++ ONNX Runtime backend and for Slipway's backend of that name, in Python.
An authored model takes its tensors from its request and event classes.
The warm-up request has the opt sizes, so that the configuration alone tells a reader one valid shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.spec import Component, Engine, TensorSpec
from slipway_serving.protocol.axis_expressions import Point, Size
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import Event, output_fields
from slipway_serving.protocol.fields import Array, Field, fields_of
from slipway_serving.protocol.requests import (
    EXAMPLE_PARAMETER,
    NOTE_PARAMETER,
    RANGE_PARAMETER,
    USUAL_PARAMETER,
    WORDS_PARAMETER,
    Request,
    input_fields,
)
from slipway_serving.runtime.backends.onnxruntime.arena import ARENA_SHRINKAGE, SHRUNK_ARENAS
from slipway_serving.runtime.input_sizes import AXES_PARAMETER, ranges_text
from slipway_serving.runtime.queue_limits import QUEUE_LIMIT_PARAMETER, QUEUE_MODELS_PARAMETER

THREADS_PARAMETER = "intra_op_thread_count"
"""Parameter of `config.pbtxt`: number of threads that compute one request, in both backends."""


def model_config(
    component: Component, name: str, engine: Engine, threads: int | None = None
) -> pb.ModelConfig:
    """Return the configuration under which Triton serves a component.

    Args:
        component: Description of the component.
        name: Name of the served model.
        engine: Engine, which determines the backend.
        threads: Number of threads of ONNX Runtime that compute a request; None leaves all cores.
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
        # Results of merged requests round differently, so only components that allow it are batched.
        dynamic_batching=_dynamic_batching(component) if batch else None,
        instance_group=[pb.ModelInstanceGroup(count=1, kind=pb.ModelInstanceGroup.KIND_AUTO)],
        model_warmup=[_warmup(component)],
        response_cache=pb.ModelResponseCache(enable=True) if component.cached else None,
        parameters=_parameters(component, engine, threads),
    )


def _parameters(component: Component, engine: Engine, threads: int | None) -> dict[str, pb.ModelParameter]:
    texts = {AXES_PARAMETER: axes_text([component])}
    if engine.backend == "onnxruntime":
        # Triton's C++ backend needs this entry; Slipway's backend shrinks its arenas without it.
        texts[ARENA_SHRINKAGE] = SHRUNK_ARENAS
        if threads is not None:
            texts[THREADS_PARAMETER] = str(threads)
    if component.queue_limit is not None:
        texts[QUEUE_LIMIT_PARAMETER] = str(component.queue_limit)
        texts[QUEUE_MODELS_PARAMETER] = " ".join(component.queue_limit_with)
    return {name: pb.ModelParameter(string_value=text) for name, text in texts.items() if text}


def axes_text(components: Sequence[Component]) -> str:
    """Return the axis ranges of a model's components in the text form of its configuration.

    Raises:
        InvalidRequest: Two components have different ranges for an axis.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for component in components:
        for axis in component.axes:
            known = ranges.setdefault(axis.name, (axis.min, axis.max))
            if known != (axis.min, axis.max):
                raise InvalidRequest(
                    f"{component.label}: axis {axis.name} must be {known[0]} to {known[1]} as in the other"
                    f" graphs of the model, got {axis.min} to {axis.max}"
                )
    return ranges_text(ranges)


def write_axes(config: Path, components: Sequence[Component]) -> None:
    """Add axis ranges to the configuration of an authored model that runs components itself.

    Args:
        config: The model's `config.pbtxt`.
        components: Components that the model runs.
    """
    parameter = pb.ModelParameter(string_value=axes_text(components))
    added = text_format.MessageToString(pb.ModelConfig(parameters={AXES_PARAMETER: parameter}))
    config.write_text(f"{config.read_text(encoding='utf-8').rstrip()}\n{added}", encoding="utf-8")


def _dynamic_batching(component: Component) -> pb.ModelDynamicBatching | None:
    if component.merge_us is None:
        return None
    # Triton fills a batch only up to the largest preferred size.
    rows = None if component.merge_rows is None else [component.merge_rows]
    return pb.ModelDynamicBatching(max_queue_delay_microseconds=component.merge_us, preferred_batch_size=rows)


def config_text(config: pb.ModelConfig) -> str:
    """Return the configuration in the text form that Triton reads."""
    return str(text_format.MessageToString(config))


def authored_config(
    text: str,
    request: type[Request],
    events: Sequence[type[Event]],
    usual: Mapping[str, int | float] = MappingProxyType({}),
    ranges: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    words: Mapping[str, Sequence[str]] = MappingProxyType({}),
    examples: Mapping[str, str] = MappingProxyType({}),
    note: str = "",
) -> str:
    """Return an authored model's configuration with the tensors of its request and events.

    Args:
        text: Text of the `config.pbtxt`, without inputs and outputs.
        request: Request class of the model.
        events: Event classes of the model's responses.
        usual: Usual values of request fields, written as parameters `usual_FIELD`.
        ranges: Smallest and largest values of request fields, written as parameters `range_FIELD`.
        words: Words that the checkpoint knows in text fields, written as parameters `words_FIELD`.
        examples: Examples of request fields, written as parameters `example_FIELD`.
        note: Note of the checkpoint, written as a parameter unless it is empty.

    Raises:
        InvalidRequest: The text has tensors of its own.
    """
    config = text_format.Parse(text, pb.ModelConfig())
    if config.input or config.output:
        raise InvalidRequest(
            f"{config.name or request.model}: config.pbtxt must leave its tensors to {request.__name__},"
            " got some of its own"
        )
    batched = config.max_batch_size > 0
    # Only dynamic batching merges requests; an ensemble passes each request on by itself.
    merged = config.HasField("dynamic_batching")
    # Triton batches only requests that have an input, so a batched model requires what a turn requires.
    turn = request.turn
    in_turns = {field.name for field in fields_of(turn)} if turn is not None else set()
    # A request that continues a stopped video may leave out every other field.
    continues = issubclass(request, DenoisingRequest)
    inputs = [
        pb.ModelInput(
            name=field.name,
            data_type=_triton(field),
            dims=_field_dims(field, batched),
            optional=field.optional
            or continues
            or (turn is not None and not (batched and field.name in in_turns)),
            allow_ragged_batch=merged and isinstance(field.rule, Array) and field.rule.ragged,
        )
        for field in input_fields(request)
    ]
    outputs = [
        pb.ModelOutput(name=field.name, data_type=_triton(field), dims=_field_dims(field, batched))
        for field in output_fields(events)
    ]
    parameters = {
        f"{USUAL_PARAMETER}{name}": pb.ModelParameter(string_value=str(value))
        for name, value in usual.items()
    }
    parameters |= {
        f"{RANGE_PARAMETER}{name}": pb.ModelParameter(string_value=f"{low}:{high}")
        for name, (low, high) in ranges.items()
    }
    parameters |= {
        f"{WORDS_PARAMETER}{name}": pb.ModelParameter(string_value=" ".join(known))
        for name, known in words.items()
    }
    parameters |= {
        f"{EXAMPLE_PARAMETER}{name}": pb.ModelParameter(string_value=text) for name, text in examples.items()
    }
    if note:
        parameters[NOTE_PARAMETER] = pb.ModelParameter(string_value=note)
    added = pb.ModelConfig(input=inputs, output=outputs, parameters=parameters)
    return f"{text.rstrip()}\n{text_format.MessageToString(added)}"


def _triton(field: Field) -> str:
    return "TYPE_STRING" if field.datatype == "BYTES" else f"TYPE_{field.datatype}"


def _field_dims(field: Field, batched: bool) -> tuple[int, ...]:
    return field.shape[1:] if batched else field.shape


def _dims(component: Component, tensor: TensorSpec) -> dict[str, Any]:
    """Return a tensor's Triton dimensions, without a varying batch dimension, and any reshape."""
    sizes = component.varying(tensor)
    dims = [-1 if isinstance(size, Size) else size for size in sizes]
    if component.batch_axis:
        dims = dims[1:]
    if not dims or (component.rows_axis and len(sizes) == 1):
        # Triton has no tensors without dimensions, so a [batch] tensor is sent as [batch, 1], whether or not
        # the batch varies.
        return {"dims": [*dims, 1], "reshape": pb.ModelTensorReshape(shape=dims)}
    return {"dims": dims}


def _warmup(component: Component) -> pb.ModelWarmup:
    point = component.points()["opt"]
    return pb.ModelWarmup(
        name="opt",
        batch_size=point["batch"] if component.batch_axis else 1,
        inputs={tensor.name: _warmup_input(component, tensor, point) for tensor in component.inputs},
    )


def _warmup_input(component: Component, tensor: TensorSpec, point: Point) -> pb.ModelWarmup.Input:
    shape = tensor.at(point)[1:] if component.batch_axis else tensor.at(point)
    # Integer inputs are ids and masks. Zero is a valid id; random 64-bit numbers are not.
    random = tensor.dtype.is_float
    return pb.ModelWarmup.Input(
        data_type=tensor.dtype.triton,
        dims=(*shape, 1) if "reshape" in _dims(component, tensor) else shape,
        random_data=random or None,
        zero_data=None if random else True,
    )
