"""Execution of requests in a session: batched if the model allows it, with an answer for each request.

:class:`Executor` checks every request against the graph, groups those of equal shapes, concatenates a
group along the batch axis, runs it once and splits the outputs again. If a group fails, its requests run one
by one, so that only the faulty one fails. The code is independent of Triton: requests and answers are dicts
of NumPy arrays, and the answer to a failed request is a
:class:`slipway_serving.protocol.errors.SlipwayError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.caller_ids import request_id_problem
from slipway_serving.protocol.errors import (
    Cancelled,
    InvalidRequest,
    Overloaded,
    SlipwayError,
    Unrecoverable,
    raise_all,
)
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature
from slipway_serving.runtime.input_sizes import InputSizes

Arrays = Mapping[str, NDArray[Any]]
_OUT_OF_MEMORY = ("failed to allocate memory", "bad_alloc", "bad allocation", "out of memory")


@dataclass(frozen=True)
class GraphRequest:
    """Request to a model, independent of Triton.

    Attributes:
        inputs: Arrays by input name, with the batch axis if the model batches.
        outputs: Names of the wanted outputs.
        is_cancelled: Function that returns whether the caller has cancelled.
        id: Id that the caller gave the request, or an empty text.
    """

    inputs: Arrays
    outputs: tuple[str, ...]
    is_cancelled: Callable[[], bool]
    id: str = ""


class Executor:
    """Executor of the requests of one model.

    Args:
        model: Name of the model, for messages.
        signature: Tensors of the graph.
        run: Function that runs the graph, from wanted output names and inputs to outputs in that order.
        output_dims: Dims in the config by output name, for outputs that are scalars in the graph.
        batched: True if the first axis of all tensors is the batch.
        ranges: Smallest and largest size of the graph's axes, see :mod:`slipway_serving.runtime.input_sizes`.
    """

    def __init__(
        self,
        model: str,
        signature: Signature,
        run: Callable[[Sequence[str], Arrays], Sequence[Any]],
        output_dims: Mapping[str, Sequence[int]],
        *,
        batched: bool,
        ranges: Mapping[str, tuple[int, int]],
    ) -> None:
        self._model = model
        self._inputs = signature.inputs | signature.overridable
        self._required = tuple(signature.inputs)
        # A scalar of the graph has no axes to check; Triton sends it as an array of one value.
        shapes = {name: tensor.shape for name, tensor in self._inputs.items() if tensor.shape}
        self._sizes = InputSizes(shapes, ranges)
        self._outputs = signature.outputs
        self._run_graph = run
        self._output_dims = output_dims
        self._batched = batched

    def execute(self, requests: Sequence[GraphRequest]) -> list[dict[str, NDArray[Any]] | SlipwayError]:
        """Return an answer for each request, in order: its outputs, or its error.

        If the graph raised an exception, that is the `__cause__` of the error returned here.
        """
        answers: list[dict[str, NDArray[Any]] | SlipwayError | None] = [None] * len(requests)
        groups: dict[object, list[int]] = {}
        prepared: dict[int, dict[str, NDArray[Any]]] = {}
        for index, request in enumerate(requests):
            try:
                prepared[index] = self._prepare(request)
            except SlipwayError as error:
                answers[index] = error
            else:
                groups.setdefault(self._group_key(index, prepared[index]), []).append(index)
        for members in groups.values():
            results = self._run_group([prepared[i] for i in members], [requests[i] for i in members])
            for index, result in zip(members, results, strict=True):
                answers[index] = result
        return [answer for answer in answers if answer is not None]

    def _prepare(self, request: GraphRequest) -> dict[str, NDArray[Any]]:
        """Check a request against the graph and return its inputs in the form of the graph.

        Raises:
            Cancelled: The caller has cancelled.
            InvalidRequest: The id is too long; or an input is missing, has another shape than the graph, has
                a size outside the range of an axis, differs from another input in an axis, or contains text
                that is not UTF-8.
        """
        if request.is_cancelled():
            raise Cancelled(f"{self._model}: cancelled by the caller before it ran")
        problem = request_id_problem(request.id)
        problems = [problem] if problem else []
        problems += [
            f"{name} must be given, got none" for name in self._required if name not in request.inputs
        ]
        shapes = {name: array.shape for name, array in request.inputs.items()}
        problems += [
            f"{name} must be one value, got shape {list(shape)}"
            for name, shape in shapes.items()
            if not self._inputs[name].shape and math.prod(shape) != 1
        ]
        problems += self._sizes.problems(shapes)
        raise_all(self._model, problems)
        return {name: self._convert_input(name, array) for name, array in request.inputs.items()}

    def _convert_input(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Convert an input to the form of the graph: scalars without axes, text as str."""
        if array.dtype == np.object_:
            try:
                text = [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel()]
            except UnicodeDecodeError as error:
                raise InvalidRequest(
                    f"{self._model}: {name} must be UTF-8 text, got {error.reason}"
                ) from None
            array = np.array(text, dtype=np.object_).reshape(array.shape)
        return array if self._inputs[name].shape else array.reshape(())

    def _group_key(self, index: int, inputs: Arrays) -> object:
        """Return a key that is equal for requests that can run as one batch."""
        if not self._batched:
            return index
        return tuple(sorted((name, array.shape[1:]) for name, array in inputs.items()))

    def _run_group(
        self, inputs: Sequence[Arrays], requests: Sequence[GraphRequest]
    ) -> list[dict[str, NDArray[Any]] | SlipwayError]:
        """Run requests of equal shapes as one batch, or one by one if the batch fails."""
        wanted = tuple(name for name in self._outputs if any(name in request.outputs for request in requests))
        try:
            if len(inputs) == 1:
                together: Arrays = inputs[0]
            else:
                together = {name: np.concatenate([one[name] for one in inputs]) for name in inputs[0]}
            whole = self._run(wanted, together)
            if self._batched:
                return self._split(whole, inputs, requests)
            return [{name: whole[name] for name in requests[0].outputs}]
        except SlipwayError as error:
            if len(inputs) == 1:
                return [error]
        return [
            answer
            for one, request in zip(inputs, requests, strict=True)
            for answer in self._run_group([one], [request])
        ]

    def _split(
        self, whole: Arrays, inputs: Sequence[Arrays], requests: Sequence[GraphRequest]
    ) -> list[dict[str, NDArray[Any]] | SlipwayError]:
        """Split the outputs of a batch into those of its requests."""
        sizes = [next(iter(arrays.values())).shape[0] for arrays in inputs]
        ends = np.cumsum(sizes)
        for name, array in whole.items():
            if array.shape[0] != ends[-1]:
                raise Unrecoverable(
                    f"{self._model}: output {name} must have batch size {ends[-1]}, "
                    f"got shape {list(array.shape)}"
                )
        return [
            {name: whole[name][end - size : end] for name in request.outputs}
            for request, size, end in zip(requests, sizes, ends, strict=True)
        ]

    def _run(self, wanted: Sequence[str], inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Run the graph once.

        Raises:
            InvalidRequest: The graph refuses the inputs.
            Overloaded: The run needs more memory than there is.
            Unrecoverable: The run failed for another reason.
        """
        try:
            outputs = self._run_graph(wanted, inputs)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class.
            raise self._run_error(error) from error
        return {
            name: self._convert_output(self._outputs[name], np.asarray(output))
            for name, output in zip(wanted, outputs, strict=True)
        }

    def _run_error(self, error: Exception) -> SlipwayError:
        """Translate an exception of ONNX Runtime; the caller sees only the first line of its text."""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, MemoryError) or any(text in reason.lower() for text in _OUT_OF_MEMORY):
            return Overloaded(
                f"{self._model}: memory ran out ({reason}); try again in a few seconds, or a smaller request"
            )
        kind = InvalidRequest if type(error).__name__ == "InvalidArgument" else Unrecoverable
        return kind(f"{self._model}: the graph failed: {reason}")

    def _convert_output(self, tensor: GraphTensor, array: NDArray[Any]) -> NDArray[Any]:
        """Convert an output to the form of Triton: scalars with the config's dims, text as bytes."""
        if array.dtype == np.object_ or array.dtype.kind in "US":
            text = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
            array = np.array(text, dtype=np.object_).reshape(array.shape)
        return array if array.shape else array.reshape(tuple(self._output_dims[tensor.name]))
