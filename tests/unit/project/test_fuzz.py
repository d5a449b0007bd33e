"""Whatever comes, a parser makes what keeps every rule or raises our error that says which is broken.

A few examples each by default; `make fuzz` tries SLIPWAY_FUZZ_EXAMPLES of them.
"""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import schemathesis
from fastapi.testclient import TestClient
from fuzzing import EXAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from PIL import Image as Picture
from schemathesis.specs.openapi.checks import positive_data_acceptance
from server_fixtures import affine, lookup, masked

from slipway_export.families import BUILT_IN, family_named
from slipway_export.trained_models import Library
from slipway_gateway.trained_models.app import create_app
from slipway_gateway.trained_models.management import Management
from slipway_serving.protocol import images
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError, from_wire
from slipway_serving.protocol.requests import Request, decode, decode_turn, encode, input_fields
from slipway_serving.protocol.snapshots.parts import Header, make, parse, read_parts
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.backends.onnxruntime.execution import Executor, GraphRequest
from slipway_serving.runtime.backends.onnxruntime.signature import graph_signature

TOKEN = "0123456789abcdef"
bounded = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
REQUESTS = sorted({request for family in BUILT_IN for request in family.requests}, key=lambda r: r.model)
DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")

texts = st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode))
object_arrays = st.lists(texts, min_size=0, max_size=3).map(
    lambda found: np.array([*found, None], object)[:-1]
)
arrays = st.one_of(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: nps.arrays(dtype, nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    ),
    object_arrays,
)


def likely(request: type[Request]) -> st.SearchStrategy[dict[str, Any]]:
    """Tensors by the names of a request's fields, of their own type more often than not."""
    offered: dict[str, st.SearchStrategy[Any]] = {}
    for field in input_fields(request):
        own = arrays
        if field.datatype == "BYTES":
            own = texts.map(lambda text: np.array([text], object))
        elif field.datatype in ("INT64", "FP32", "BOOL") and -1 not in field.shape:
            dtype = {"INT64": "int64", "FP32": "float32", "BOOL": "bool"}[field.datatype]
            own = nps.arrays(dtype, field.shape)
        offered[field.name] = st.one_of(own, own, arrays)
    some = st.fixed_dictionaries({}, optional=offered)
    return st.one_of(some, some, st.dictionaries(st.text(max_size=8), arrays, max_size=3))


@pytest.mark.parametrize("request_class", REQUESTS, ids=lambda found: found.__name__)
def test_any_tensors_make_a_request_that_keeps_its_rules_or_are_refused(request_class: type[Request]) -> None:
    @bounded
    @given(likely(request_class), st.booleans())
    def holds(tensors: dict[str, Any], start: bool) -> None:
        try:
            if request_class.turn is None:
                made: Any = decode(request_class, tensors, "fuzz")
            else:
                turn = Turn(1, start=start)
                made = decode_turn(request_class, tensors, "fuzz", turn)[1]
        except InvalidRequest as error:
            assert str(error).startswith("fuzz: ") or "must" in str(error)
        else:
            assert made.problems() == []
            again = decode(type(made), encode(made), "fuzz")
            assert encode(again).keys() == encode(made).keys()

    holds()


def picture(form: str) -> bytes:
    file, exif = io.BytesIO(), Picture.Exif()
    exif[0x0112], exif[0x011A], exif[0x010F] = 6, (72, 1), "maker"
    pixels = Picture.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3))
    several = {"save_all": True, "append_images": [pixels]} if form == "MPO" else {}
    pixels.save(file, form, exif=exif, **several)
    return file.getvalue()


def with_right_sums(file: bytes) -> bytes:
    """Return a PNG whose chunks have the right checksums, so that a reader looks at their content."""
    at, summed = 8, bytearray(file)
    while file.startswith(b"\x89PNG") and at + 12 <= len(file):
        end = at + 8 + int.from_bytes(file[at : at + 4], "big")
        if end + 4 > len(file):
            break
        summed[end : end + 4] = zlib.crc32(file[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(summed)


@pytest.mark.parametrize("form", [*images.FORMATS, "MPO"])
def test_damaged_picture_is_refused_or_has_pixels(form: str) -> None:
    whole = picture(form)

    @bounded
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        damaged = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 8))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
        cut = with_right_sums(bytes(damaged[:cut]))
        if not images.problem(cut, range(16, 64), 1 << 20):
            shape = images.pixels(cut).shape
            assert shape[2] == 3
            assert max(shape) <= 64

    holds()


@bounded
@given(st.binary(max_size=200))
def test_bytes_that_are_no_picture_are_refused(content: bytes) -> None:
    assert images.problem(content, range(16, 64), 1 << 20)


PART = make(Header("sums", "abc", "one", 0, 1, 9, {"blocks": 3}), b"123456789")


@bounded
@given(st.data())
def test_changed_part_of_a_snapshot_is_refused(data: st.DataObject) -> None:
    changed = bytearray(PART)
    place, byte = data.draw(st.integers(0, len(changed) - 1)), data.draw(st.integers(0, 255))
    changed[place] = byte
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    if cut == PART:
        assert bytes(parse(cut, "fuzz")[1]) == b"123456789"
        return
    with pytest.raises(InvalidRequest):
        parse(cut, "fuzz")
    try:
        for part in read_parts(io.BytesIO(cut), "fuzz"):
            parse(part, "fuzz")
    except InvalidRequest:
        pass
    else:
        assert cut == b""


headers = st.dictionaries(
    st.sampled_from(["model", "files", "snapshot", "part", "parts", "size", "told", "more"]),
    st.one_of(
        st.none(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
    ),
)


@bounded
@given(st.one_of(headers.map(json.dumps), st.text(max_size=60)), st.binary(max_size=20))
def test_part_with_any_header_is_refused(text: str, rest: bytes) -> None:
    import struct

    head = PART[: PART.index(b"{")]
    size = struct.pack("<I", len(text.encode()))
    for start in (head, head[:-4] + size, head[:-4] + size[::-1]):
        with pytest.raises(InvalidRequest):
            parse(start + text.encode() + rest, "fuzz")


@bounded
@given(st.text(max_size=100), st.one_of(st.none(), st.integers(), st.text(max_size=10)))
def test_any_text_of_an_error_becomes_an_error_of_ours(text: str, status: Any) -> None:
    assert isinstance(from_wire(text, status), SlipwayError)


@pytest.mark.parametrize(
    ("graph", "batched"), [(affine(), True), (affine(), False), (masked(), True), (lookup(), True)]
)
def test_any_tensors_are_answered_by_a_graph_or_refused_each_for_itself(graph: Any, batched: bool) -> None:
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    signature = graph_signature(session)
    executor = Executor(
        "fuzz",
        signature,
        lambda wanted, inputs: session.run(list(wanted), dict(inputs)),
        {name: tensor.dims for name, tensor in signature.outputs.items()},
        batched=batched,
        ranges={"batch": (1, 8), "tokens": (1, 4)},
    )
    good = {"x": np.ones((1, 4), np.float32)}
    # Triton itself refuses names that the model has not.
    names = st.sampled_from([*signature.inputs])
    asked = st.dictionaries(names, arrays.filter(lambda array: array.ndim > 0), max_size=3)

    @bounded
    @given(st.lists(asked, max_size=4))
    def holds(requests: list[dict[str, Any]]) -> None:
        if "x" in signature.inputs:
            requests = [*requests, good]
        wanted = tuple(signature.outputs)
        answers = executor.execute([GraphRequest(inputs, wanted, lambda: False) for inputs in requests])
        assert len(answers) == len(requests)
        for answer in answers:
            assert isinstance(answer, SlipwayError) or answer.keys() == set(wanted)
        if "x" in signature.inputs:
            assert not isinstance(answers[-1], SlipwayError)
            np.testing.assert_array_equal(answers[-1]["y"], [[3.0] * 4])

    holds()


def test_management_api_answers_whatever_is_asked_as_it_is_described(tmp_path: Path) -> None:
    management = Management(
        family_named("wakeword_head"), Library(tmp_path / "trained"), tmp_path / "repository"
    )
    app = create_app(management, TOKEN)
    known = {"Authorization": f"Bearer {TOKEN}"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    tried = set()
    with TestClient(app):
        for operation in schema.get_all_operations():

            @settings(bounded, max_examples=max(EXAMPLES // 4, 5))
            @given(operation.ok().as_strategy())
            def holds(case: Any) -> None:
                response = case.call(headers=known)
                tried.add((case.method, case.path))
                # Ids have a rule that the schema does not say.
                case.validate_response(response, excluded_checks=[positive_data_acceptance])

            holds()
    assert len(tried) == 5
    assert not (tmp_path / "repository").exists() or not list((tmp_path / "repository").iterdir())
