"""Adapter between Triton's Python backend and a program.

:func:`model_class` makes the class that a ``model.py`` must define. A request's tensors and parameters become
a :class:`~slipway_serving.runtime.program.Call`. What the program yields becomes responses, and an exception
becomes an error with the code of its class, while its traceback goes to the log with the request's id. The
adapter counts requests by outcome and logs the trace id where the server traces. It never imports Triton's
own module: the caller passes it in.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from slipway_serving.protocol.caller_ids import request_id_problem, session_id_problem, shortened_id
from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    NotReady,
    SlipwayError,
    Unrecoverable,
    raise_all,
    without_traceback,
)
from slipway_serving.protocol.events import to_wire_form
from slipway_serving.protocol.snapshots.requests import SNAPSHOT_FIELD
from slipway_serving.protocol.texts import shortened
from slipway_serving.protocol.turns import NO_SESSION, Turn
from slipway_serving.runtime.cancellation.running_requests import RunningRequest, register_request
from slipway_serving.runtime.lost_device import exit_soon, is_device_lost
from slipway_serving.runtime.metrics import (
    HEARTBEATS,
    INSTANCES,
    OK,
    REFUSED,
    REQUESTS,
    SHUTTING_DOWN,
    Recorder,
)
from slipway_serving.runtime.program import (
    BatchProgram,
    Call,
    Last,
    Program,
    ReadinessProgram,
    Responses,
    Settings,
    Tensors,
    load_program,
)
from slipway_serving.runtime.queue_limits import select_refused
from slipway_serving.runtime.request_parameters import read_parameters, reshape_inputs, wants_text
from slipway_serving.runtime.shutdown import AdmissionGate, ShuttingDown
from slipway_serving.runtime.slots.slots import is_spare
from slipway_serving.runtime.triton_metrics import Publisher, RunningRequestsGauge, publish_restarts
from slipway_serving.runtime.triton_models import EndedStreams, TritonModels
from slipway_serving.system.inherited_sockets import close_sockets, restrict_shared_memory
from slipway_serving.system.process_state import NO_PROCESS_STATE, ProcessState

T = TypeVar("T")
_MICROSECONDS = 1e-6
_EVENTS: dict[type[Exception], str] = {
    Cancelled: "cancelled",
    DeadlineExceeded: "expired",
    ShuttingDown: "refused",
}


def model_class(pb_utils: Any) -> type[Adapter]:
    """Return the ``TritonPythonModel`` of a ``model.py``.

    Args:
        pb_utils: Module ``triton_python_backend_utils`` as the Python backend provides it.
    """
    return type("TritonPythonModel", (Adapter,), {"pb": pb_utils})


class Adapter:
    """One instance of a Python model, which runs the program that its config names."""

    pb: ClassVar[Any]
    _program: Program | None = None
    _build_program: Callable[[], Program] | None = None
    _process_state: ProcessState = NO_PROCESS_STATE
    _publisher: Publisher | None = None
    _running_gauge: RunningRequestsGauge | None = None
    _is_device_usable = True

    def initialize(self, args: Mapping[str, str]) -> None:
        """Build the program.

        Raises:
            TritonModelException: The program could not be built; the text says why.
        """
        close_sockets()
        restrict_shared_memory()
        try:
            settings = Settings.from_triton(args)
        except SlipwayError as error:
            raise self.pb.TritonModelException(error.to_wire()) from error
        self._model, self._recorder, self._limits = settings.model, settings.recorder, settings.limits
        self._process_state, self._ended_streams = settings.process_state, EndedStreams()
        transactions = settings.config.get("model_transaction_policy", {})
        self._decoupled = bool(transactions.get("decoupled", False))
        try:
            self._queue_limit = settings.queue_limit(self.pb.Logger.log_warn)
            self._build_program = partial(load_program, settings)
            # Only pipelines, which report their requests, have spare instances.
            is_pipeline = is_spare(settings, args["model_instance_name"])
            if not is_pipeline:
                self._program = self._built_program
                is_pipeline = self._program.reports_requests
        except SlipwayError as error:
            raise self.pb.TritonModelException(error.to_wire()) from error
        self._gate = AdmissionGate(self._model, is_pipeline=is_pipeline)
        self._recorder.declare(REQUESTS, HEARTBEATS)
        self._recorder.register_gauge(SHUTTING_DOWN, lambda: 0 if self._gate.is_open else 1)
        instances = instances_of(settings.config)
        self._recorder.register_gauge(INSTANCES, lambda: instances if self._process_state.is_serving else 0)
        self._publisher = Publisher(self.pb, self._model, self._recorder)
        publish_restarts(self.pb, self._model, self._process_state)
        unfinished = self._process_state.record_serving(is_pipeline=is_pipeline)
        if is_pipeline:
            self._running_gauge = RunningRequestsGauge(self.pb, self._model)
            self._running_gauge.add(-unfinished)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer requests; an error in one of them does not affect the others."""
        with self._process_state.count_requests(len(requests)):
            if self._decoupled:
                for request in requests:
                    self._stream(request)
                return None
            excess = self._excess_indices(requests)
            admitted = [request for index, request in enumerate(requests) if index not in excess]
            answers = iter(self._answers(admitted))
            responses = [
                self._refuse() if index in excess else next(answers) for index in range(len(requests))
            ]
            self._queue_limit.record_batch_end()
            return responses

    def is_ready(self) -> bool:
        """Return whether this instance can answer new requests now.

        Triton calls this from 2.67 (26.03) on when it is asked whether the model is ready, and takes no
        answer within 5 s for no. Triton 2.51 does not call it.
        """
        if self._build_program is None or not self._is_device_usable or not self._gate.is_open:
            return False
        return self._program.is_ready() if isinstance(self._program, ReadinessProgram) else True

    def finalize(self) -> None:
        """Close the program and the metrics publisher."""
        self._process_state.record_ending()
        self._build_program = None
        if self._program is not None:
            self._program.close()
            self._program = None
        if self._publisher is not None:
            self._publisher.close()

    def _excess_indices(self, requests: Sequence[Any]) -> frozenset[int]:
        """Return the indices of the requests that exceed the queue limit."""
        count = self._queue_limit.count_excess()
        if not count:
            return frozenset()
        return select_refused([self._turn_or_no_session(request) for request in requests], count)

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        """Return one response for each request of a model that is not decoupled."""
        if isinstance(self._program, BatchProgram) and requests:
            return self._answer_batch(self._program, requests)
        return [self._answer(request) for request in requests]

    def _refuse(self) -> Any:
        """Refuse a request that exceeds the queue limit; count it, but do not log it."""
        error = self._queue_limit.refuse()
        self._recorder.count(REQUESTS, value=error.code)
        return self.pb.InferenceResponse(error=self._triton_error(error))

    def _answer(self, request: Any) -> Any:
        """Return the single response of a model that is not decoupled."""
        with self._open_log(request) as log:
            try:
                (tensors,) = self._responses(request, log)
                return self._response(tensors)
            except Exception as error:  # noqa: BLE001 - everything becomes the request's error
                return self.pb.InferenceResponse(error=self._error(error, log))

    def _answer_batch(self, program: BatchProgram, requests: Sequence[Any]) -> list[Any]:
        """Return the responses of a program that runs calls as one batch."""
        with contextlib.ExitStack() as stack:
            logs = [stack.enter_context(self._open_log(request)) for request in requests]
            calls = [
                self._result_or_error(partial(self._create_call, request, log))
                for request, log in zip(requests, logs, strict=True)
            ]
            valid_calls = [call for call in calls if isinstance(call, Call)]
            batch = self._result_or_error(lambda: iter(program.run_batch(valid_calls)))
            answers = [
                call
                if isinstance(call, Exception)
                else (batch if isinstance(batch, Exception) else next(batch))
                for call in calls
            ]
            return [self._batch_response(answer, log) for answer, log in zip(answers, logs, strict=True)]

    @staticmethod
    def _result_or_error(compute: Callable[[], T]) -> T | Exception:
        """Return the result of a function, or the exception that it raises."""
        try:
            return compute()
        except Exception as error:  # noqa: BLE001 - everything becomes the request's error
            return error

    def _batch_response(self, answer: Tensors | Exception, log: _RequestLog) -> Any:
        if isinstance(answer, Exception):
            return self.pb.InferenceResponse(error=self._error(answer, log))
        log.record_response(answer)
        return self._response(answer)

    def _stream(self, request: Any) -> None:
        """Send the responses of a decoupled model, and always send the final flag."""
        final = self.pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        sender, as_text = request.get_response_sender(), wants_text(request)
        with self._open_log(request) as log, register_request(log.request_id) as running:
            ended = False
            try:
                for tensors in self._responses(request, log, running):
                    # Keep a reference to the tensors: the call would otherwise free those that the request
                    # did not ask for after it has released Python's global lock.
                    sent = self._tensors(tensors, as_text=as_text)
                    ended = isinstance(tensors, Last)
                    sender.send(self.pb.InferenceResponse(sent), flags=final if ended else 0)
            except Exception as error:  # noqa: BLE001 - everything becomes the request's error
                # Send the flag with the error: in two messages, Triton 2.51 leaves a calling model waiting.
                answer = self.pb.InferenceResponse(error=self._error(error, log))
                if not ended:
                    sender.send(answer, flags=final)
            else:
                if not ended:
                    sender.send(flags=final)

    @property
    def _built_program(self) -> Program:
        """Program of this instance; a spare instance builds it at its first request."""
        if self._program is None:
            if self._build_program is None:
                raise Unrecoverable(
                    f"{self._model}: a request came before the model was loaded; load it first"
                )
            self._program = self._build_program()
        return self._program

    def _open_log(self, request: Any) -> _RequestLog:
        return _RequestLog(self.pb, self._model, request, self._running_gauge, self._recorder)

    def _responses(self, request: Any, log: _RequestLog, running: RunningRequest | None = None) -> Responses:
        with contextlib.closing(
            self._built_program.run(self._create_call(request, log, running))
        ) as responses:
            for tensors in responses:
                log.record_response(tensors)
                yield tensors

    def _create_call(self, request: Any, log: _RequestLog, running: RunningRequest | None = None) -> Call:
        """Create the call to the program from a request.

        Raises:
            NotReady: The server shuts down, or the process cannot use its device any more.
            InvalidRequest: An id, a parameter, a shape or a limit is violated.
        """
        inputs = list(request.inputs())
        if not self._gate.is_open and not self._leaves(request, inputs):
            self._gate.check()
        if not self._is_device_usable:
            raise NotReady(
                f"{self._model}: the model's process can no longer use its GPU after a CUDA error and"
                " restarts; try again in a few seconds"
            )
        problem = request_id_problem(log.request_id)
        raise_all(self._model, [problem] if problem else [])
        parameters = read_parameters(request, self._model)
        timeout_us = request.timeout() or parameters.get("timeout", 0)
        tensors = {tensor.name(): tensor.as_numpy() for tensor in inputs}
        turn = self._read_turn(request, parameters)
        self._limits.check(self._model, tensors, opening=turn.start or not turn.id)
        return Call(
            tensors=reshape_inputs(tensors, parameters, self._model),
            models=TritonModels(self.pb, log.request_id, request, self._ended_streams),
            is_cancelled=lambda: (running is not None and running.is_cancelled()) or request.is_cancelled(),
            is_stop_asked=lambda: running is not None and running.is_stop_asked(),
            limit_s=timeout_us * _MICROSECONDS if timeout_us else None,
            turn=turn,
        )

    def _leaves(self, request: Any, inputs: Sequence[Any]) -> bool:
        """Return True for a turn that reads the state of an open session, or ends the session."""
        turn = self._turn_or_no_session(request)
        is_snapshot = any(tensor.name() == SNAPSHOT_FIELD for tensor in inputs)
        return bool(turn.id) and not turn.start and (turn.end or is_snapshot)

    def _turn_or_no_session(self, request: Any) -> Turn:
        """Return a request's turn, or no session if its parameters are wrong; a later check reports them."""
        try:
            return self._read_turn(request, read_parameters(request, self._model))
        except Exception:  # noqa: BLE001 - the other requests of the batch must be answered
            return NO_SESSION

    def _read_turn(self, request: Any, parameters: Mapping[str, Any]) -> Turn:
        """Read a request's turn in a session; HTTP's generate endpoints pass it as parameters.

        Raises:
            InvalidRequest: The session's id is too long, or is neither a text nor a number.
        """
        flags = request.flags()
        start, end = (
            bool(flags & getattr(self.pb, f"TRITONSERVER_REQUEST_FLAG_{name.upper()}"))
            or bool(parameters.get(name))
            for name in ("sequence_start", "sequence_end")
        )
        session_id = request.correlation_id() or parameters.get("sequence_id") or 0
        problem = session_id_problem(session_id) if session_id else ""
        raise_all(self._model, [problem] if problem else [])
        return Turn(session_id, start=start, end=end)

    def _response(self, tensors: Tensors) -> Any:
        return self.pb.InferenceResponse(self._tensors(tensors))

    def _tensors(self, tensors: Tensors, *, as_text: bool = False) -> list[Any]:
        return [self.pb.Tensor(name, to_wire_form(array, as_text=as_text)) for name, array in tensors.items()]

    def _error(self, error: Exception, log: _RequestLog) -> Any:
        """Record an error and return it in Triton's form; end the process soon if its device is lost."""
        log.record_error(error)
        if self._is_device_usable and is_device_lost(error):
            self._is_device_usable = False
            exit_soon()
        without_traceback(error)
        if not isinstance(error, SlipwayError):
            error = Unrecoverable(
                f"{self._model}: the model failed with {type(error).__name__}; see the traceback in the"
                " server's log under the request's id"
            )
        return self._triton_error(error)

    def _triton_error(self, error: SlipwayError) -> Any:
        return self.pb.TritonError(error.to_wire(), getattr(self.pb.TritonError, error.triton_code))


class _RequestLog:
    """Log of one request: JSON lines for its start and its end, and a count of its outcome.

    Attributes:
        request_id: Id that the caller gave, or a generated one; calls to other models carry it too.
    """

    def __init__(
        self,
        pb_utils: Any,
        model: str,
        request: Any,
        running_gauge: RunningRequestsGauge | None,
        recorder: Recorder,
    ) -> None:
        self._log, self._recorder, self._running_gauge = pb_utils.Logger, recorder, running_gauge
        self.request_id = request.request_id() or secrets.token_hex(8)
        self._facts: dict[str, Any] = {"model": model, "request_id": shortened_id(self.request_id)}
        if trace_id := _trace_id(request):
            self._facts["trace_id"] = trace_id
        self._started_s = time.monotonic()
        self._error: Exception | None = None

    def __enter__(self) -> _RequestLog:
        if self._running_gauge is not None:
            self._running_gauge.add(1)
            self._log.log_info(self._format_line("started"))
        return self

    def __exit__(self, *_: object) -> None:
        """Log how the request ended, and count it."""
        code = OK
        if self._error is not None:
            error = self._error if isinstance(self._error, SlipwayError) else Unrecoverable(repr(self._error))
            code = error.code
            event = _EVENTS.get(type(error), "failed")
            self._log.log_info(self._format_line(event, code=code, error=error.to_wire()))
        elif self._running_gauge is not None:
            self._log.log_info(self._format_line("finished", code=code))
        self._recorder.count(REQUESTS, value=REFUSED if isinstance(self._error, ShuttingDown) else code)
        # The error's traceback refers to the request and its sender, and they refer to this object. A cycle
        # that is left when the interpreter ends is freed after Triton's shared memory and kills the process.
        self._error = None
        if self._running_gauge is not None:
            self._running_gauge.add(-1)

    def record_response(self, tensors: Tensors) -> None:
        """Record a response for the log."""
        self._facts["responses"] = self._facts.get("responses", 0) + 1
        if "step" in tensors:
            self._facts["steps_done"] = int(tensors["step"][0])

    def record_error(self, error: Exception) -> None:
        """Record an error, and log its traceback if the error is internal."""
        self._error = error
        if isinstance(error, Unrecoverable) or not isinstance(error, SlipwayError):
            trace = "".join(traceback.format_exception(error))
            self._log.log_error(self._format_line("traceback", traceback=trace))

    def _format_line(self, event: str, **more: str) -> str:
        """Return a log line, with long texts shortened since callers influence their length."""
        elapsed_s = round(time.monotonic() - self._started_s, 4)
        texts = {name: shortened(text) for name, text in more.items()}
        return json.dumps({"event": event, **self._facts, "elapsed_s": elapsed_s, **texts})


def instances_of(config: Mapping[str, Any]) -> int:
    """Count a model's instances from the configuration that Triton completed."""
    groups = config.get("instance_group", [])
    return sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups)


def _trace_id(request: Any) -> str:
    """Return the OpenTelemetry trace id of a request, or an empty string if the request is not traced."""
    context: dict[str, str] = json.loads(request.trace().get_context() or "{}")
    # The header is version-trace-span-flags: https://www.w3.org/TR/trace-context/#traceparent-header
    return context.get("traceparent", "--").split("-")[1]
