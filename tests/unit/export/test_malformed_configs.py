"""A configuration file with a value of any other JSON type is taken or refused by us, never a defect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzzing import EXAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.run import plan_of
from slipway_export.spec import Engine, Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
# Of each family whose checkpoints have such files; a few examples each, since a plan takes a second.
bounded = settings(
    max_examples=max(4, EXAMPLES // 10), deadline=None, suppress_health_check=list(HealthCheck)
)
FAMILIES = ("wan_t2v", "framepack_i2v", "matrix_game", "wakeword")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny checkpoint of each family; a test puts back what it changes."""
    folders = {name: tmp_path_factory.mktemp(name) for name in FAMILIES}
    for name, folder in folders.items():
        family_named(name).presets["tiny"].write(folder, 0)
    return folders


def described(name: str, folder: Path) -> None:
    """Do what an export does before its first graph, and build each network without its weights."""
    family = family_named(name)
    with open_checkpoint(family, str(folder)) as checkpoint:
        plan = plan_of(family, checkpoint, None, axes_of(family, checkpoint, {}), Engine.ONNXRUNTIME)
        for component in plan.components:
            component.load(Precision.FP32, Loading.META)


def configurations(folder: Path) -> list[Path]:
    """Return the files that say what the networks are; those of tokenizers are transformers' own."""
    found = [path for suffix in ("json", "yaml") for path in folder.rglob(f"*.{suffix}")]
    return sorted(path for path in found if "tokenizer" not in str(path.relative_to(folder)))


def read(path: Path) -> Any:
    text = path.read_text()
    return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)


@contextmanager
def changed(path: Path, content: Any) -> Iterator[None]:
    before = path.read_bytes()
    path.write_text(yaml.safe_dump(content) if path.suffix == ".yaml" else json.dumps(content))
    try:
        yield
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", FAMILIES)
def test_configuration_is_taken_or_refused_by_us_when_a_value_is_another(
    checkpoints: dict[str, Path], name: str
) -> None:
    folder = checkpoints[name]
    files = configurations(folder)

    @bounded
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(files))
        content = read(path)
        inner = [key for key in content if isinstance(content[key], dict) and content[key]]
        target = content[data.draw(st.sampled_from(inner))] if inner and data.draw(st.booleans()) else content
        key = data.draw(st.sampled_from(sorted(target)))
        if data.draw(st.integers(0, 4)):
            target[key] = data.draw(values)
        else:
            del target[key]
        with changed(path, content):
            try:
                described(name, folder)
            except SlipwayError as error:
                assert str(error)

    holds()


@pytest.mark.parametrize(
    ("name", "file", "key", "value"),
    [
        ("wan_t2v", "text_encoder/config.json", "d_model", {}),
        ("wan_t2v", "transformer/config.json", "in_channels", "sixteen"),
        ("wan_t2v", "vae/config.json", "z_dim", [16]),
        ("framepack_i2v", "text_encoder_2/config.json", "max_position_embeddings", "77"),
        ("framepack_i2v", "feature_extractor/preprocessor_config.json", "size", 5),
        ("framepack_i2v", "transformer/config.json", "num_attention_heads", {"a": 1}),
        ("matrix_game", "configs/inference_yaml/inference_universal.yaml", "mode", ["universal"]),
        ("wakeword", "config.json", "max_length", {"a": 1}),
        ("wakeword", "config.json", "hidden_act", {"a": 1}),
        ("wakeword", "preprocessor_config.json", "sampling_rate", "fast"),
    ],
)
def test_configuration_is_refused_with_its_file_when_a_value_has_another_type(
    checkpoints: dict[str, Path], name: str, file: str, key: str, value: Any
) -> None:
    path = checkpoints[name] / file
    with (
        changed(path, {**read(path), key: value}),
        pytest.raises(InvalidRequest, match=Path(file).name.replace(".", r"\.")),
    ):
        described(name, checkpoints[name])


def test_missing_entry_is_refused_by_name(checkpoints: dict[str, Path]) -> None:
    path = checkpoints["wan_t2v"] / "text_encoder/config.json"
    content = {key: value for key, value in read(path).items() if key != "vocab_size"}
    with (
        changed(path, content),
        pytest.raises(InvalidRequest, match=r"text_encoder/config\.json: vocab_size must be given, got none"),
    ):
        described("wan_t2v", checkpoints["wan_t2v"])
