"""The authored models as they are staged: tensors, programs, names."""

from __future__ import annotations

from typing import Any

import pytest
from staged_models import Staged, stage_all
from tritonclient.grpc import model_config_pb2

import slipway_models
from slipway_serving.runtime.in_process import read_config
from slipway_serving.runtime.program import Settings

REPOSITORY = slipway_models.FOLDER
MODELS = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))
# What callers of each model know, with the batch dimension where there is one: it stays, and more may join.
# The fields and events by which every video is stopped and continued.
STOPPING = (
    "checkpoint_every_steps INT64 [1] optional; stop_after_step INT64 [1] optional;"
    " draft STRING [1] optional; priority STRING [1] optional; continue_from STRING [1] optional;"
    " steps_seen INT64 [1] optional"
)
STOPPED = (
    "phase STRING [1]; draft_step INT32 [1]; state STRING [1]; state_part INT32 [1]; state_parts INT32 [1];"
    " state_step INT32 [1]; stop_reason STRING [1]; stopped_step INT32 [1]; continued_step INT32 [1];"
    " same_engine BOOL [1]; engines STRING [1]; sheet STRING [1]"
)
TENSORS = {
    "wan_t2v": (
        "prompt STRING [1] optional; negative_prompt STRING [1] optional; frames INT64 [1] optional;"
        " height INT64 [1] optional; width INT64 [1] optional; steps INT64 [1] optional;"
        " guidance_scale FP32 [1] optional; guidance_scale_2 FP32 [1] optional;"
        " guidance_start FP32 [1] optional; guidance_stop FP32 [1] optional;"
        " cache_threshold FP32 [1] optional; flow_shift FP32 [1] optional; fps INT64 [1] optional;"
        " seed INT64 [1] optional; output STRING [1] optional; preview BOOL [1] optional;"
        f" timeout_s FP32 [1] optional; {STOPPING}",
        "step INT32 [1]; steps INT32 [1]; elapsed_s FP32 [1]; preview UINT8 [-1, -1, 3]; chunk INT32 [1];"
        " chunks INT32 [1]; frames UINT8 [-1, -1, -1, 3]; video STRING [1]; cache_hit_rate FP32 [1];"
        f" {STOPPED}",
    ),
    "slipway_cancel": ("ended_id STRING [1]; stop BOOL [1] optional", "found BOOL [1]"),
    "wan_t2v_prompt": (
        "prompt STRING [*, 1]",
        "prompt_embeds FP32 [*, -1, -1]; attention_mask INT64 [*, -1]",
    ),
    "wan_t2v_tokenizer": ("prompt STRING [*, 1]", "input_ids INT64 [*, -1]; attention_mask INT64 [*, -1]"),
    "wan_t2v_vae_decoder": ("latents FP32 [1, -1, -1, -1, -1] optional", "frames UINT8 [-1, -1, -1, 3]"),
    "wan_t2v_denoiser_high": (
        "hidden_states FP32 [-1, 16, -1, -1, -1] optional; timestep FP32 [-1, 1] optional;"
        " encoder_hidden_states FP32 [-1, -1, -1] optional; cache_threshold FP32 [1] optional",
        "sample FP32 [-1, 16, -1, -1, -1]; cached BOOL [1]",
    ),
    "matrix_game_universal": (
        "image STRING [1] optional; seed INT64 [1] optional; fps INT64 [1] optional;"
        " output STRING [1] optional;"
        " mouse_cond FP32 [-1, 2] optional; keyboard_cond FP32 [-1, 4] optional; rebase BOOL [1] optional;"
        " snapshot_part INT64 [1] optional; restore STRING [1] optional",
        "frames UINT8 [-1, -1, -1, 3]; first_frame INT32 [1]; elapsed_s FP32 [1]; final BOOL [1];"
        " frames_total INT32 [1]; chunk INT32 [1]; chunks INT32 [1]; cache_hit_rate FP32 [1];"
        " frames_base64 STRING [1]; height INT32 [1]; width INT32 [1]; jpeg STRING [1];"
        " fragment STRING [1]; block INT32 [1]; draft_step INT32 [1];"
        " frames_made INT32 [1]; frames_left INT32 [1]; denoise_s FP32 [1]; decode_s FP32 [1];"
        " commit_s FP32 [1]; picture_s FP32 [1]; snapshot STRING [1]; part INT32 [1]; parts INT32 [1];"
        " parts_taken INT32 [1]",
    ),
    "framepack_i2v": (
        "image STRING [1] optional; prompt STRING [1] optional; seconds FP32 [1] optional;"
        " order STRING [1] optional; height INT64 [1] optional; width INT64 [1] optional;"
        " steps INT64 [1] optional;"
        " guidance_scale FP32 [1] optional; cache_threshold FP32 [1] optional; seed INT64 [1] optional;"
        f" output STRING [1] optional; timeout_s FP32 [1] optional; {STOPPING}",
        "step INT32 [1]; steps INT32 [1]; elapsed_s FP32 [1]; preview UINT8 [-1, -1, 3]; height INT32 [1];"
        " width INT32 [1]; frames UINT8 [-1, -1, -1, 3]; first_frame INT32 [1]; final BOOL [1];"
        " frames_total INT32 [1]; chunk INT32 [1]; chunks INT32 [1]; cache_hit_rate FP32 [1];"
        " frames_base64 STRING [1]; video STRING [1]; part_frames INT32 [1];"
        f" {STOPPED}",
    ),
    "framepack_i2v_tokenizer": ("prompt STRING [1]", "llama_ids INT64 [1, -1]; clip_ids INT64 [1, -1]"),
    "framepack_i2v_transformer": (
        "hidden_states FP32 [-1, -1, -1, -1, -1] optional; timestep FP32 [-1] optional;"
        " encoder_hidden_states FP32 [-1, -1, -1] optional;"
        " encoder_attention_mask INT64 [-1, -1] optional; pooled_projections FP32 [-1, -1] optional;"
        " image_embeds FP32 [-1, -1, -1] optional; indices_latents INT64 [-1] optional;"
        " guidance FP32 [-1] optional; latents_clean FP32 [-1, -1, -1, -1, -1] optional;"
        " indices_latents_clean INT64 [-1] optional;"
        " latents_history_2x FP32 [-1, -1, -1, -1, -1] optional;"
        " indices_latents_history_2x INT64 [-1] optional;"
        " latents_history_4x FP32 [-1, -1, -1, -1, -1] optional;"
        " indices_latents_history_4x INT64 [-1] optional; cache_threshold FP32 [1] optional",
        "sample FP32 [-1, -1, -1, -1, -1]; cached BOOL [1]",
    ),
    "airimu": (
        "acc FP32 [*, -1, 3] ragged; gyro FP32 [*, -1, 3] ragged; initial_rotation FP32 [*, 4] optional",
        "corrected_acc FP32 [*, -1, 3]; corrected_gyro FP32 [*, -1, 3]; correction_acc FP32 [*, -1, 3];"
        " correction_gyro FP32 [*, -1, 3]; acc_cov FP32 [*, -1, 3]; gyro_cov FP32 [*, -1, 3]",
    ),
    "wakeword": (
        "audio FP32 [*, -1]; sample_rate INT64 [*, 1]; words STRING [*, -1] optional",
        "word STRING [*, -1]; probability FP32 [*, -1]; threshold FP32 [*, -1]; detected BOOL [*, -1];"
        " rms FP32 [*, 1]",
    ),
    "wakeword_decide": (
        "audio FP32 [*, -1] ragged; sample_rate INT64 [*, 1]; embedding FP32 [*, -1]; rms FP32 [*, 1];"
        " words STRING [*, -1] optional ragged",
        "word STRING [*, -1]; probability FP32 [*, -1]; threshold FP32 [*, -1]; detected BOOL [*, -1]",
    ),
    "wakeword_stream": (
        "pcm INT16 [*, -1] ragged; words STRING [*, -1] optional ragged; cooldown_ms INT64 [*, 1] optional;"
        " sample_rate INT64 [*, 1] optional",
        "word STRING [*, -1]; end_s FP64 [*, -1]; probability FP32 [*, -1, -1]; threshold FP32 [*, -1, -1];"
        " event_word STRING [*, -1]; event_time_s FP64 [*, -1]; event_probability FP32 [*, -1]",
    ),
}
TENSORS["airimu_stream"] = TENSORS["airimu"]
_TAKEN, _GIVEN = TENSORS["matrix_game_universal"]
TENSORS["matrix_game_gta_drive"] = (_TAKEN.replace("[-1, 4]", "[-1, 2]"), _GIVEN)
TENSORS["matrix_game_templerun"] = (
    _TAKEN.replace(" mouse_cond FP32 [-1, 2] optional;", "").replace("[-1, 4]", "[-1, 7]"),
    _GIVEN,
)


def told(config: Any, tensor: Any) -> str:
    """Return a tensor as the table above has it."""
    dims = ", ".join([*(["*"] if config.max_batch_size else []), *map(str, tensor.dims)])
    kind = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    flags = [
        word
        for word, flag in (("optional", "optional"), ("ragged", "allow_ragged_batch"))
        if getattr(tensor, flag, False)
    ]
    return " ".join([tensor.name, kind, f"[{dims}]", *flags])


@pytest.fixture(scope="module")
def staged() -> Staged:
    return stage_all()


def names(tensors: Any) -> set[str]:
    return {tensor.name for tensor in tensors}


@pytest.mark.parametrize("model", sorted(TENSORS))
def test_model_takes_and_gives_what_its_callers_know(staged: Staged, model: str) -> None:
    config = staged.configs[model]
    for known, tensors in zip(TENSORS[model], (config.input, config.output), strict=True):
        assert set(known.split("; ")) <= {told(config, tensor) for tensor in tensors}


@pytest.mark.parametrize("model", sorted(TENSORS.keys() - {"wan_t2v"}))
def test_model_has_no_other_tensors(staged: Staged, model: str) -> None:
    config = staged.configs[model]
    counts = [len(known.split("; ")) for known in TENSORS[model]]
    assert counts == [len(config.input), len(config.output)]


def test_every_authored_model_is_staged_with_tensors(staged: Staged) -> None:
    # These stand for a component of any family: tests/unit/export/test_placement.py stages `remote`, and in
    # tests/integration, test_torch_engine.py `torch` and test_tensorrt_engines.py `tensorrt_rtx`.
    assert staged.sources | {"remote", "torch", "tensorrt_rtx"} == set(MODELS)
    for name, config in staged.configs.items():
        assert config.input, name
        assert config.output, name
        assert all(tensor.dims for tensor in (*config.input, *config.output)), name


@pytest.mark.parametrize("model", MODELS)
def test_python_model_names_a_program_that_can_be_imported(model: str) -> None:
    config = read_config(REPOSITORY / model)
    if config.get("backend") != "python":
        assert config["platform"] == "ensemble"
        return
    assert (REPOSITORY / model / "1" / "model.py").is_file()
    module, _, name = Settings(model, REPOSITORY, config).parameters["program"].partition(":")
    program = getattr(__import__(module, fromlist=[name]), name)
    assert callable(program.run)
    assert callable(program.close)
    assert isinstance(program.reports_requests, bool)


def test_ensemble_feeds_each_model_what_its_config_takes(staged: Staged) -> None:
    ensemble = staged.configs["wan_t2v_prompt"]
    tokenizer = staged.configs["wan_t2v_tokenizer"]
    first, second = ensemble.ensemble_scheduling.step
    assert set(first.input_map) == names(tokenizer.input)
    assert set(first.output_map) == names(tokenizer.output)
    assert set(second.input_map) == set(first.output_map.values())
    produced = {*first.output_map.values(), *second.output_map.values()}
    assert names(ensemble.output) <= produced


def test_decoder_keeps_all_sessions_in_one_instance(staged: Staged) -> None:
    config = staged.configs["wan_t2v_vae_decoder"]
    assert [group.count for group in config.instance_group] == [1]
    assert config.model_transaction_policy.decoupled
    videos = int(staged.configs["wan_t2v"].parameters["concurrent_requests"].string_value)
    assert int(config.parameters["max_sessions"].string_value) >= videos


@pytest.mark.parametrize("model", ["wan_t2v", "framepack_i2v"])
def test_long_jobs_wait_in_a_limited_queue(staged: Staged, model: str) -> None:
    policy = staged.configs[model].dynamic_batching.default_queue_policy
    assert policy.max_queue_size == 16
    assert policy.default_timeout_microseconds == 600_000_000
    assert policy.timeout_action == model_config_pb2.ModelQueuePolicy.REJECT


def test_short_requests_wait_without_a_queue_policy_which_would_stall_them(staged: Staged) -> None:
    limited = {
        name
        for name, config in staged.configs.items()
        if config.dynamic_batching.HasField("default_queue_policy")
    }
    assert limited == {"wan_t2v", "framepack_i2v"}


@pytest.mark.parametrize(
    ("model", "waiting"), [("airimu", "16"), ("airimu_stream", "16"), ("wakeword_stream", "32")]
)
def test_models_of_short_requests_keep_a_limit_of_their_own(staged: Staged, model: str, waiting: str) -> None:
    assert staged.configs[model].parameters["queue_limit"].string_value == waiting
