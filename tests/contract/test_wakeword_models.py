"""The wake words' staged configs against each other and against what the export describes."""

from __future__ import annotations

from typing import Any

import pytest
from staged_models import Staged, stage_all

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.wakeword.family import BATCH, FAMILY
from slipway_export.repository.config import model_config
from slipway_export.spec import Component, Engine
from slipway_serving.runtime.queue_limits import QUEUE_LIMIT_PARAMETER, QUEUE_MODELS_PARAMETER


@pytest.fixture(scope="module")
def staged() -> Staged:
    return stage_all()


def components() -> tuple[Component, ...]:
    """What becomes models of their own."""
    with open_checkpoint(FAMILY, "tiny") as checkpoint:
        made = FAMILY.plan(checkpoint, FAMILY.presets["tiny"].axes).components
    return tuple(component for component in made if component.graph == "model")


def names(tensors: Any) -> set[str]:
    return {tensor.name for tensor in tensors}


def test_ensemble_feeds_each_model_what_its_config_takes(staged: Staged) -> None:
    ensemble = staged.configs["wakeword"]
    features, backbone, decide = ensemble.ensemble_scheduling.step
    config = staged.configs[decide.model_name]
    assert set(decide.input_map) == names(config.input)
    assert set(decide.output_map) == names(config.output)
    for step, component in zip((features, backbone), components(), strict=True):
        assert step.model_name == f"wakeword_{component.name}"
        assert set(step.input_map) == names(component.inputs)
        assert set(step.output_map) == names(component.outputs)
    assert names(ensemble.output) <= {
        *features.output_map.values(),
        *backbone.output_map.values(),
        *decide.output_map.values(),
    }


def test_ensemble_and_its_models_take_equally_large_batches(staged: Staged) -> None:
    sizes = {model: staged.configs[model].max_batch_size for model in ("wakeword", "wakeword_decide")}
    assert set(sizes.values()) == {BATCH.max}
    batches = [component.batch_axis for component in components()]
    assert [axis.max for axis in batches if axis is not None] == [BATCH.max] * 2


def test_clips_and_pieces_of_any_lengths_go_through_together(staged: Staged) -> None:
    for model, tensor in (("wakeword_decide", "audio"), ("wakeword_stream", "pcm")):
        config = staged.configs[model]
        assert config.HasField("dynamic_batching")
        assert next(entry for entry in config.input if entry.name == tensor).allow_ragged_batch


def test_all_streams_are_kept_in_one_instance(staged: Staged) -> None:
    config = staged.configs["wakeword_stream"]
    assert [group.count for group in config.instance_group] == [1]
    assert not config.HasField("sequence_batching")


def test_first_model_of_the_ensemble_keeps_the_limit_of_all_that_wait_in_it(staged: Staged) -> None:
    first, *others = (step.model_name for step in staged.configs["wakeword"].ensemble_scheduling.step)
    features, backbone = (
        model_config(component, f"wakeword_{component.name}", Engine.ONNXRUNTIME)
        for component in components()
    )
    assert features.name == first
    assert int(features.parameters[QUEUE_LIMIT_PARAMETER].string_value) > 0
    assert features.parameters[QUEUE_MODELS_PARAMETER].string_value.split() == others
    # Only there: a clip that is refused later was worked on in vain.
    assert QUEUE_LIMIT_PARAMETER not in backbone.parameters
    assert QUEUE_LIMIT_PARAMETER not in staged.configs[others[-1]].parameters


def test_features_are_merged_in_batches_that_stay_in_the_caches() -> None:
    features, backbone = (model_config(component, "m", Engine.ONNXRUNTIME) for component in components())
    assert features.dynamic_batching.preferred_batch_size == [4]
    assert features.max_batch_size == BATCH.max  # one request may have more
    assert backbone.dynamic_batching.preferred_batch_size == []
