"""Builds a component's `config.pbtxt` from its description, with Triton's own protobuf classes.

The same text serves NGC's C++ ONNX Runtime backend and the embedded server's backend of that name.
The warm-up request holds the opt sizes, so a reader of the configuration alone knows a shape that
works.
"""

from __future__ import annotations

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.spec import Component, DType, Engine, Point, Size, TensorSpec


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
        input=[_input(tensor, batch is not None) for tensor in component.inputs],
        output=[_output(tensor, batch is not None) for tensor in component.outputs],
        # One instance per device. Merged requests round differently: only where the component allows it.
        dynamic_batching=_dynamic_batching(component) if batch else None,
        instance_group=[pb.ModelInstanceGroup(count=1, kind=pb.ModelInstanceGroup.KIND_AUTO)],
        model_warmup=[_warmup(component, batch is not None)],
    )


def _dynamic_batching(component: Component) -> pb.ModelDynamicBatching | None:
    if component.merge_us is None:
        return None
    return pb.ModelDynamicBatching(max_queue_delay_microseconds=component.merge_us)


def config_text(config: pb.ModelConfig) -> str:
    """Return the configuration in the text form that Triton reads."""
    return str(text_format.MessageToString(config))


def _dims(tensor: TensorSpec, batched: bool) -> list[int]:
    sizes = tensor.sizes[1:] if batched else tensor.sizes
    return [-1 if isinstance(size, Size) else size for size in sizes]


def _input(tensor: TensorSpec, batched: bool) -> pb.ModelInput:
    dims = _dims(tensor, batched)
    # Triton has no tensor without dimensions: a [batch] tensor travels as [batch, 1].
    reshape = None if dims else pb.ModelTensorReshape(shape=[])
    return pb.ModelInput(name=tensor.name, data_type=tensor.dtype.triton, dims=dims or [1], reshape=reshape)


def _output(tensor: TensorSpec, batched: bool) -> pb.ModelOutput:
    dims = _dims(tensor, batched)
    reshape = None if dims else pb.ModelTensorReshape(shape=[])
    return pb.ModelOutput(name=tensor.name, data_type=tensor.dtype.triton, dims=dims or [1], reshape=reshape)


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
    random = tensor.dtype is not DType.INT64
    return pb.ModelWarmup.Input(
        data_type=tensor.dtype.triton,
        dims=shape or (1,),
        random_data=random or None,
        zero_data=None if random else True,
    )
