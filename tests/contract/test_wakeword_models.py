"""The wake words' staged configs against each other and against what the export describes."""

from __future__ import annotations

from typing import Any

import pytest
from staged_models import Staged, stage_all

from slipway_export.families.wakeword import BATCH


@pytest.fixture(scope="module")
def staged() -> Staged:
    return stage_all()


def names(tensors: Any) -> set[str]:
    return {tensor.name for tensor in tensors}


def test_ensemble_feeds_each_model_what_its_config_takes(staged: Staged) -> None:
    ensemble = staged.configs["wakeword"]
    features, backbone, decide = ensemble.ensemble_scheduling.step
    for step in (features, decide):
        config = staged.configs[step.model_name]
        assert set(step.input_map) == names(config.input)
        assert set(step.output_map) == names(config.output)
    assert backbone.model_name == "wakeword_backbone"
    assert names(ensemble.output) <= {
        *features.output_map.values(),
        *backbone.output_map.values(),
        *decide.output_map.values(),
    }


def test_ensemble_and_its_models_take_equally_large_batches(staged: Staged) -> None:
    sizes = {
        model: staged.configs[model].max_batch_size
        for model in ("wakeword", "wakeword_features", "wakeword_decide")
    }
    assert set(sizes.values()) == {BATCH.max}


def test_clips_and_pieces_of_any_lengths_go_through_together(staged: Staged) -> None:
    for model, tensor in (("wakeword_features", "audio"), ("wakeword_stream", "pcm")):
        config = staged.configs[model]
        assert config.HasField("dynamic_batching")
        assert next(entry for entry in config.input if entry.name == tensor).allow_ragged_batch


def test_all_streams_are_kept_in_one_instance(staged: Staged) -> None:
    config = staged.configs["wakeword_stream"]
    assert [group.count for group in config.instance_group] == [1]
    assert not config.HasField("sequence_batching")
