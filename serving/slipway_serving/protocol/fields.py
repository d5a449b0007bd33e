"""Declarations of request and answer fields: type, rule and tensor of each field in one place.

A dataclass annotates each field as ``Annotated[type, Rule | Array | Image]``. :func:`fields_of` lists them as
:class:`Field`; from these follow the tensors of ``config.pbtxt``, the checks on both sides, the options of
the command line and the tables in the documents. :meth:`Field.encode` turns a value into a tensor, and
:meth:`Field.decode` reads it back. The module needs numpy only, and Pillow for image fields.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol import images, texts
from slipway_serving.protocol.texts import short

BATCH = "batch"
"""Name of a first axis that Triton batches over; scalars beside such an array get a batch axis of size 1."""

_DATATYPES: dict[type, str] = {str: "BYTES", bytes: "BYTES", int: "INT64", float: "FP32", bool: "BOOL"}
_ARRAY_DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64", "text": "BYTES",
}  # fmt: skip
_DTYPES: dict[str, Any] = {
    "BYTES": np.object_, "INT64": np.int64, "INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_
}  # fmt: skip
_A: dict[type, str] = {
    str: "a text", bytes: "bytes", int: "a whole number", float: "a number", bool: "true or false"
}  # fmt: skip
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Rule:
    """Rule for the values of a scalar field.

    Attributes:
        must: Text of the rule that completes "``<field>`` must be", for example "4k+1 and at least 1".
        accepts: Callback that returns True if a value of the field's type keeps the rule.
        fix: Callback that returns advice for a refused value; the text completes "try".
        help: One line for people that describes the field, with its unit.
        format_value: Callback that formats a refused value; by default its shortened repr.
        default: Description of the default value, where the field's own default does not show it.
        datatype: Triton's name of the element type, if it is not the usual one of the field's type.
        flag: Option name on the command line; "" for the field's name, None for no option.
        may_be_base64: True if the field's bytes are already base64 text when the request asks for text.
    """

    must: str
    accepts: Callable[[Any], bool]
    fix: Callable[[Any], str]
    help: str
    format_value: Callable[[Any], str] | None = None
    default: str = ""
    datatype: str = ""
    flag: str | None = ""
    may_be_base64: bool = False

    def problem(self, name: str, value: Any) -> str:
        """Return an error message if a value breaks the rule, or an empty string."""
        is_int64 = type(value) is not int or _INT64.min <= value <= _INT64.max
        if is_int64 and self.accepts(value):
            return ""
        return f"{name} must be {self.must}, got {(self.format_value or short)(value)}; try {self.fix(value)}"


@dataclass(frozen=True)
class Array:
    """Rule for the values of an array field.

    Attributes:
        dtype: NumPy's name of the element type, or "text" for UTF-8 elements of type str or bytes.
        shape: Sizes as ints, or names of axes; fields of one request agree in the axes that they share.
        help: One line for people that describes the array, with its unit.
        sizes: Smallest and largest size by axis name; (1, None) for other axes. Limits of the served model
            come as `limits` with each check.
        low: Smallest allowed value.
        high: Largest allowed value.
        extra_rule: Additional rule for the whole array.
        fix: Advice for an axis that is too long; completes "try".
        fix_values: Advice for values out of range; completes "try".
        finite: True if floating-point values must be finite. It is False for values from another model,
            since the caller is then not at fault.
        ragged: True if Triton may batch requests whose sizes differ.
        default: Description of the default for an array that is left out.
        columns: Names of the elements of the last axis, in order, by which callers may set single elements;
            empty if they have none.

    Raises:
        TypeError: The columns are not as many as the last axis has elements.
    """

    dtype: str
    shape: tuple[int | str, ...]
    help: str
    sizes: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    extra_rule: Rule | None = None
    fix: str = ""
    fix_values: str = ""
    finite: bool = True
    ragged: bool = False
    default: str = ""
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.columns and self.shape[-1:] != (len(self.columns),):
            raise TypeError(f"columns must name the {self.shape[-1]} elements of the last axis")

    @property
    def numpy(self) -> Any:
        """NumPy's scalar type of the elements."""
        return np.object_ if self.dtype == "text" else np.dtype(self.dtype).type

    @property
    def must(self) -> str:
        """Text of the rule for people."""
        parts = [_sizes(axis, *size) for axis, size in self.sizes.items()]
        if self.low is not None or self.high is not None:
            parts.append(_bounds(self.low, self.high))
        elif self.dtype.startswith("float") and self.finite:
            parts.append("finite")
        if self.extra_rule is not None:
            parts.append(self.extra_rule.must)
        return "; ".join(parts)

    def problem(self, name: str, value: Any, limits: Mapping[str, range]) -> str:
        """Return an error message if an array breaks the rule, or an empty string."""
        if not isinstance(value, np.ndarray) or not self._typed(value) or not self.has_shape(value.shape):
            got = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else short(value)
            want = f"{self.dtype} [{', '.join(map(str, self.shape))}]"
            return f"{name} must be {want}, got {got}; try an array of that type and shape"
        return self._size_problem(name, value, limits) or self._value_problem(name, value)

    def _typed(self, value: NDArray[Any]) -> bool:
        return bool(value.dtype == self.numpy) or (self.dtype == "text" and value.dtype.kind == "U")

    def has_shape(self, shape: Sequence[int]) -> bool:
        """Return True if a shape has the rule's number of axes and its fixed sizes."""
        return len(shape) == len(self.shape) and all(
            isinstance(want, str) or want == size for want, size in zip(self.shape, shape, strict=True)
        )

    def _size_problem(self, name: str, value: NDArray[Any], limits: Mapping[str, range]) -> str:
        """Return an error message if an axis is too short or too long, or an empty string."""
        for axis, size in zip(self.shape, value.shape, strict=True):
            if isinstance(axis, int):
                continue
            low, high = self.sizes.get(axis, (1, None))
            if axis in limits:
                low, high = limits[axis][0], limits[axis][-1]
            if size < low or (high is not None and size > high):
                fix = ("one request for each" if axis == BATCH else self.fix) if size > low else ""
                rule = f"{name} must have {_sizes(axis, low, high)}, got shape {list(value.shape)}"
                return f"{rule}; try {fix}" if fix else rule
        return ""

    def _value_problem(self, name: str, value: NDArray[Any]) -> str:
        """Return an error message if an element breaks the rule, or an empty string."""
        if self.dtype == "text":
            wrong = texts.read_all(name, value)[1]
            return wrong or (self.extra_rule.problem(name, value) if self.extra_rule else "")
        if value.dtype.kind == "f" and self.finite and not np.isfinite(value).all():
            bad = np.argwhere(~np.isfinite(value))[0]
            return f"{name} must be finite, got {value[tuple(bad)]} at {self._place(bad)}"
        if value.size and (far := self._out_of_range(value)) is not None:
            rule = f"{name} must be {_bounds(self.low, self.high)}, got {_number(far)}"
            return f"{rule}; try {self.fix_values}" if self.fix_values else rule
        return self.extra_rule.problem(name, value) if self.extra_rule else ""

    def _out_of_range(self, value: NDArray[Any]) -> float | None:
        """Return the value furthest below the range, or else above it; None if all are within."""
        if self.low is not None and not (smallest := value.min()) >= self.low:
            return float(smallest)
        if self.high is not None and not (largest := value.max()) <= self.high:
            return float(largest)
        return None

    def _place(self, index: NDArray[Any]) -> str:
        named = [
            f"{axis.removesuffix('s')} {place}"
            for axis, place in zip(self.shape, index, strict=True)
            if isinstance(axis, str) and axis != BATCH
        ]
        return ", ".join(named) or f"{index.tolist()}"


@dataclass(frozen=True)
class Image:
    """Rule for a picture: bytes of a PNG, JPEG or WebP file, or uint8 pixels [height, width, 3].

    Attributes:
        help: One line for people that describes the picture.
        smallest_px: Smallest length of a side, in pixels.
        largest_px: Largest length of a side, in pixels; checked before any pixel is decoded.
        largest_bytes: Largest size of the file, in bytes.
    """

    help: str
    smallest_px: int = 16
    largest_px: int = 4096
    largest_bytes: int = 32 << 20

    @property
    def must(self) -> str:
        """Text of the rule for people."""
        return (
            f"a PNG, JPEG or WebP file of {self.smallest_px} to {self.largest_px} px a side and at most"
            f" {self.largest_bytes >> 20} MiB, without transparency"
        )

    def problem(self, name: str, value: Any) -> str:
        """Return an error message if a picture breaks the rule, or an empty string."""
        sides = range(self.smallest_px, self.largest_px + 1)
        if problem := images.problem(value, sides, self.largest_bytes):
            return f"{name} must be {problem}"
        return ""


FieldRule = Rule | Array | Image


@dataclass(frozen=True)
class Field:
    """One field and the Triton tensor that carries it.

    Attributes:
        name: Name of the field and of the tensor.
        datatype: Triton's name of the element type, e.g. BYTES, INT64, FP32.
        shape: Shape of the tensor, batch axis included; -1 for an axis of any size.
        optional: True if the field may be left out.
        nullable: True if the value may be None, which has no tensor.
        kind: Python type of the value; numpy.ndarray for arrays.
        rule: Rule for the value.
        default: Default value of an optional field.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool
    nullable: bool
    kind: type[Any]
    rule: FieldRule
    default: Any = None

    @property
    def flag(self) -> str | None:
        """Option name of the field on the command line; None if it has no option."""
        if isinstance(self.rule, Rule) and self.rule.flag != "":
            return self.rule.flag
        return self.name

    def encode(self, value: Any) -> NDArray[Any]:
        """Return the tensor for a value that is not None."""
        if isinstance(self.rule, Array):
            if self.rule.dtype != "text":
                return np.ascontiguousarray(value)
            flat = [texts.to_bytes(element) for element in value.flat]
            return np.array([*flat, None], np.object_)[:-1].reshape(value.shape)
        if isinstance(self.rule, Image):
            value = images.to_bytes(value)
        element = value.encode() if self.kind is str else value
        return np.array([element], dtype=_DTYPES[self.datatype]).reshape(self.shape)

    def decode(self, tensor: NDArray[Any]) -> tuple[Any, str]:
        """Read a value from a tensor; return (value, "") or (None, error message)."""
        if isinstance(self.rule, Array):
            return texts.read_all(self.name, tensor) if self.rule.dtype == "text" else (tensor, "")
        dtype = _DTYPES[self.datatype]
        if tensor.dtype != dtype or tensor.shape != self.shape:
            got, want = f"{tensor.dtype} {list(tensor.shape)}", f"{self.datatype} {list(self.shape)}"
            return None, f"{self.name} must be a tensor {want}, got {got}; try {want}"
        element = tensor.reshape(-1)[0]
        if self.kind is str:
            return texts.read(self.name, element)
        if self.kind is bytes:
            raw = texts.to_bytes(element)
            return (images.decode_if_base64(raw) if isinstance(self.rule, Image) else raw), ""
        # The text is the shortest decimal of the float32, so a client's 4.1 stays 4.1 and does not become
        # 4.099999904632568.
        return (float(str(element)) if self.kind is float else self.kind(element)), ""

    def problem(self, value: Any, limits: Mapping[str, range] = types.MappingProxyType({})) -> str:
        """Return an error message if a value breaks the field's rule, or an empty string."""
        if value is None and self.nullable:
            return ""
        if isinstance(self.rule, Array):
            return self.rule.problem(self.name, value, limits)
        return self._scalar_problem(value) or self.rule.problem(self.name, value)

    def _scalar_problem(self, value: Any) -> str:
        """Return an error message if a value has the wrong type or invalid text, or an empty string."""
        if isinstance(self.rule, Image):
            return ""
        accepted: tuple[type[Any], ...] = (int, float) if self.kind is float else (self.kind,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.kind is not bool):
            got = short(value)
            return f"{self.name} must be of type {self.kind.__name__}, got {got}; try {_A[self.kind]}"
        return texts.problem(self.name, value) if self.kind is str else ""


def fields_of(described: type[Any]) -> tuple[Field, ...]:
    """List the fields of a dataclass in their order.

    Args:
        described: Dataclass whose fields are all annotated with a :class:`Rule`, :class:`Array` or
            :class:`Image`.

    Raises:
        TypeError: A field's type has no tensor type, or its annotation has no rule.
    """
    return _read_fields(described)  # type: ignore[arg-type]  # mypy has instances in mind: classes hash


def encode(described: Any) -> dict[str, NDArray[Any]]:
    """Return the tensors of a dataclass's values by field name, without values that are None."""
    values = {each.name: (each, getattr(described, each.name)) for each in fields_of(type(described))}
    return {name: each.encode(value) for name, (each, value) in values.items() if value is not None}


def agreement_problems(values: Mapping[str, Any], described: Sequence[Field]) -> list[str]:
    """Return an error message for each pair of arrays whose shared axis differs in size."""
    first: dict[str, tuple[str, NDArray[Any], int]] = {}
    problems = []
    for each in described:
        value = values.get(each.name)
        if value is None or not isinstance(each.rule, Array):
            continue
        for axis, size in zip(each.rule.shape, value.shape, strict=True):
            if isinstance(axis, int):
                continue
            other, array, known = first.setdefault(axis, (each.name, value, size))
            if size != known:
                problems.append(
                    f"{other} and {each.name} must have the same {axis}, got shapes {list(array.shape)}"
                    f" and {list(value.shape)}"
                )
    return problems


@functools.cache
def _read_fields(described: type[Any]) -> tuple[Field, ...]:
    hints = get_type_hints(described, include_extras=True)
    made = tuple(
        _field(f"{described.__name__}.{each.name}", each.name, hints[each.name], each.default)
        # Keyword-only fields come from a shared base class; the class's own come first.
        for each in sorted(dataclass_fields(described), key=lambda each: each.kw_only is True)
    )
    if not any(isinstance(each.rule, Array) and each.rule.shape[:1] == (BATCH,) for each in made):
        return made
    return tuple(each if isinstance(each.rule, Array) else replace(each, shape=(1, 1)) for each in made)


def _field(where: str, name: str, hint: Any, default: Any) -> Field:
    """Describe one annotated field of a dataclass and the tensor that carries it."""
    rule_kinds = (Rule, Array, Image)
    rules = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, rule_kinds)]
    annotated = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    union = get_origin(annotated) in (Union, types.UnionType)
    members = get_args(annotated) if union else (annotated,)
    kinds = [kind for kind in members if kind is not types.NoneType]
    rule = rules[0] if len(rules) == 1 else None
    kind: type[Any]
    if isinstance(rule, Array):
        kind, datatype = np.ndarray, _ARRAY_DATATYPES[rule.dtype]
        shape = tuple(size if isinstance(size, int) else -1 for size in rule.shape)
    elif isinstance(rule, Image):
        kind, datatype, shape = bytes, "BYTES", (1,)
    elif isinstance(rule, Rule) and len(kinds) == 1 and kinds[0] in _DATATYPES:
        kind, datatype, shape = kinds[0], rule.datatype or _DATATYPES[kinds[0]], (1,)
    else:
        allowed = ", ".join(kind.__name__ for kind in _DATATYPES)
        raise TypeError(
            f"{where} must be Annotated[<one of {allowed}, or None>, Rule(...)], or have an Array or Image,"
            f" got {hint}"
        )
    return Field(
        name=name,
        datatype=datatype,
        shape=shape,
        optional=default is not MISSING,
        nullable=types.NoneType in members,
        kind=kind,
        rule=rule,
        default=None if default is MISSING else default,
    )


def _sizes(axis: str, low: int, high: int | None) -> str:
    return f"a batch of {_range(low, high)}" if axis == BATCH else f"{_range(low, high)} {axis}"


def _bounds(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at least {_number(low)}" if low is not None else f"at most {_number(high or 0)}"
    return f"within {_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def _range(low: int, high: int | None) -> str:
    return f"{low} or more" if high is None else f"{low}" if low == high else f"{low} to {high}"
