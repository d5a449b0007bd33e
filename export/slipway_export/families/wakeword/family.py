"""Wake words: one AST backbone that all words share, and a small head for each word.

There are two families because there are two kinds of checkpoint. `wakeword` is an AST in the layout of
transformers with the models around it; its config gives the number of frames (128 for speech-commands, 1024
for AudioSet). `wakeword_head` is one word's `.pt` file from WakeBuilder, in a folder named as the word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.demo import demo_preset
from slipway_export.spec import (
    AuthoredModel,
    Axis,
    Component,
    DType,
    Family,
    Loading,
    Plan,
    Precision,
    Preset,
    TensorSpec,
    Tolerance,
    Variant,
)
from slipway_serving.families.wakeword.audio_limits import longest_s
from slipway_serving.families.wakeword.request import (
    SAMPLE_RATE_HZ,
    SAMPLE_RATES_HZ,
    ClipsRequest,
    DecideRequest,
    ListenRequest,
)
from slipway_serving.families.wakeword.words import FUSED_SUFFIX, check_word
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from slipway_export.families.wakeword.features import Features
    from slipway_export.families.wakeword.head_file import SavedHead
    from slipway_export.families.wakeword.network import Backbone

NAME = "wakeword"
HEAD_NAME = "wakeword_head"
MODEL_FILE = "model.pt"
CONFIG_FILE, PREPROCESSOR_FILE = "config.json", "preprocessor_config.json"
# Triton merges waiting requests of equal length but delays none: a delay slowed down both clips and streams.
MERGE_US = 0

# A larger batch exceeds the processor's caches: a clip took 0.9 ms in a batch of 4, 2.1 ms in a batch of 16.
FEATURES_MERGE_ROWS = 4
# Most requests that may wait in the ensemble; its first model refuses further ones. The limit is two batches,
# so that clips wait no longer at three times the sustainable load than at the highest sustainable load.
QUEUE_LIMIT = 32

FEATURES_TOLERANCE = {Precision.FP32: Tolerance(max_abs=1e-4, relative_l2=1e-5, cosine=0.999999)}
BACKBONE_TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999),
    Precision.FP16: Tolerance(max_abs=5e-2, relative_l2=1e-2, cosine=0.9999),
    Precision.BF16: Tolerance(max_abs=0.2, relative_l2=5e-2, cosine=0.998),
    Precision.INT8: Tolerance(max_abs=1.0, relative_l2=0.1, cosine=0.995),
    Precision.FP8: Tolerance(max_abs=1.0, relative_l2=0.1, cosine=0.995),
}
# These bounds hold for logits and for the probability, which changes by at most a quarter of the change of
# its logits. A small probability has a larger relative error, hence the wide relative bound.
HEAD_TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-4, relative_l2=1e-5, cosine=0.999999),
    Precision.INT8: Tolerance(max_abs=0.1, relative_l2=0.1, cosine=0.995),
    Precision.FP8: Tolerance(max_abs=0.1, relative_l2=0.1, cosine=0.995),
}
FUSED_TOLERANCE = {
    Precision.FP32: BACKBONE_TOLERANCE[Precision.FP32],
    Precision.INT8: Tolerance(max_abs=0.3, relative_l2=0.3, cosine=0.97),
    Precision.FP8: Tolerance(max_abs=0.3, relative_l2=0.3, cosine=0.97),
}
# The output layer of a head is small, and the decision depends on it directly.
KEEP_FLOAT = ("*output",)
# All models have the same batch axis, since a batch of the ensemble is one batch of each of its models.
BATCH = Axis("batch", 1, 4, 16)
ROWS = (BATCH.min, BATCH.max)


def plan(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    """Describe the models of an AST checkpoint: features, backbone and the authored models around them.

    Args:
        checkpoint: Checkpoint; only its configurations are read.
        axes: Ranges of the family's axes.

    Raises:
        InvalidRequest: The checkpoint is no AST, or its two configurations contradict each other.
    """
    config = backbone_config(checkpoint)
    features = Component(
        name="features",
        inputs=(TensorSpec("audio", DType.FLOAT32, ("batch", "samples"), example=_noise),),
        outputs=(_features(config), TensorSpec("rms", DType.FLOAT32, ("batch", 1))),
        axes=(*axes, _samples(config)),
        load=lambda *_: _load_features(checkpoint),
        tolerance=FEATURES_TOLERANCE,
        merge_us=MERGE_US,
        merge_rows=FEATURES_MERGE_ROWS,
        queue_limit=QUEUE_LIMIT,
        queue_limit_with=("wakeword_backbone", "wakeword_decide"),
        rows=ROWS,
    )
    # This copy for streams needs no merging and no queue limit: requests wait at the model of streams.
    streamed = replace(
        features,
        name="stream",
        graph="features",
        merge_us=None,
        merge_rows=None,
        queue_limit=None,
        queue_limit_with=(),
    )
    backbone = Component(
        name="backbone",
        inputs=(_features(config),),
        outputs=(TensorSpec("embedding", DType.FLOAT32, ("batch", config["hidden_size"])),),
        axes=tuple(axes),
        load=lambda precision, _: _load_backbone(checkpoint, precision),
        tolerance=BACKBONE_TOLERANCE,
        merge_us=MERGE_US,
        rows=ROWS,
    )
    preprocessor = checkpoint.path / PREPROCESSOR_FILE
    authored = (
        AuthoredModel("wakeword_decide", {f"1/{PREPROCESSOR_FILE}": preprocessor}, request=DecideRequest),
        AuthoredModel("wakeword", request=ClipsRequest),
        AuthoredModel("wakeword_stream", request=ListenRequest),
    )
    return Plan((features, streamed, backbone), authored)


def backbone_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read an AST's configuration and check it against its feature extractor's.

    Raises:
        InvalidRequest: The checkpoint is no AST, or its two configurations contradict each other.
    """
    config = checkpoint.config(CONFIG_FILE)
    where = f"checkpoint {checkpoint.source}: {CONFIG_FILE}"
    if config.get("model_type") != "audio-spectrogram-transformer":
        raise InvalidRequest(
            f"{where}: model_type must be audio-spectrogram-transformer, got {config.get('model_type')!r}"
        )
    preprocessor = checkpoint.config(PREPROCESSOR_FILE)
    problems = [
        f"{name} must be a whole number above 0, got {config.get(name)!r}"
        for name in ("max_length", "num_mel_bins", "hidden_size")
        if not isinstance(config.get(name), int) or config[name] < 1
    ] or [
        f"{name} must be {preprocessor[name]} as in {PREPROCESSOR_FILE}, got {config[name]}"
        for name in ("max_length", "num_mel_bins")
        if preprocessor.get(name) != config[name]
    ]
    if preprocessor.get("sampling_rate", SAMPLE_RATE_HZ) != SAMPLE_RATE_HZ:
        problems.append(
            f"sampling_rate of {PREPROCESSOR_FILE} must be {SAMPLE_RATE_HZ}, the rate to which the server"
            f" resamples clips, got {preprocessor['sampling_rate']!r}"
        )
    if problems:
        raise InvalidRequest(f"{where}: " + " | ".join(problems))
    return config


def _features(config: dict[str, Any]) -> TensorSpec:
    shape = ("batch", config["max_length"], config["num_mel_bins"])
    return TensorSpec("input_values", DType.FLOAT32, shape)


def _samples(config: dict[str, Any]) -> Axis:
    """Return the axis of a clip's samples, up to the backbone's longest clip at the highest sample rate."""
    return Axis("samples", 1, SAMPLE_RATE_HZ, int(longest_s(config["max_length"]) * SAMPLE_RATES_HZ[1]))


def _noise(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return noise within -1 to 1 as clips, the first of them almost silent."""
    import numpy as np

    noise = np.random.default_rng(0).uniform(-1, 1, shape)
    noise[0] *= 0.001
    return noise


def _load_features(checkpoint: Checkpoint) -> Features:
    from transformers import ASTFeatureExtractor

    from slipway_export.families.wakeword.features import Features

    with checkpoint.describing("wakeword"):
        extractor = ASTFeatureExtractor.from_dict(checkpoint.config(PREPROCESSOR_FILE))
        return Features(extractor).eval()


def _load_backbone(checkpoint: Checkpoint, precision: Precision) -> Backbone:
    """Load the AST backbone of a checkpoint."""
    import torch
    from transformers import ASTConfig, ASTModel

    from slipway_export.families.wakeword.network import load_backbone

    def build() -> ASTModel:
        return ASTModel(ASTConfig.from_dict(checkpoint.config(CONFIG_FILE)))

    # `readable` names a truncated file before the library's loader fails on it.
    with checkpoint.describing("wakeword"), checkpoint.readable(".", build) as folder:
        backbone = load_backbone(folder, checkpoint.source)
    half = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}
    return backbone.to(half[precision]) if precision in half else backbone


def plan_head(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    """Describe the one small graph that a word's `.pt` file becomes.

    Args:
        checkpoint: Folder with `model.pt`, named as the word.
        axes: Ranges of the family's axes.

    Raises:
        InvalidRequest: The folder's name is no valid word, or the file is no head.
    """
    saved = _saved(checkpoint)
    embedding = TensorSpec("embedding", DType.FLOAT32, ("batch", saved.config.embedding_dim))

    def load(_: Precision, _loading: Loading) -> nn.Module:
        from slipway_export.families.wakeword.network import ServedHead

        return ServedHead(saved.network(), saved.threshold)

    head = Component(
        name=word_name(checkpoint),
        inputs=(embedding,),
        outputs=_judged(),
        axes=tuple(axes),
        load=load,
        tolerance=HEAD_TOLERANCE,
        keep_float=KEEP_FLOAT,
        merge_us=MERGE_US,
        rows=ROWS,
    )
    return Plan((head,), ())


def plan_fused(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    """Describe a word's head and its backbone as one graph that maps features to logits.

    Args:
        checkpoint: Folder with `model.pt`, named as the word. The file names the backbone.
        axes: Ranges of the family's axes.

    Raises:
        InvalidRequest: The head is refused as in :func:`plan_head`, or the backbone is no local folder or
            does not fit.
    """
    saved = _saved(checkpoint)
    base = checkpoint.beside(base_folder(checkpoint.path, saved.base_model), saved.base_model)
    config = backbone_config(base)
    if config["hidden_size"] != saved.config.embedding_dim:
        raise InvalidRequest(
            f"checkpoint {checkpoint.source}: {MODEL_FILE}: embedding_dim must be {config['hidden_size']} as"
            f" the backbone {saved.base_model} has it, got {saved.config.embedding_dim}"
        )

    def load(_: Precision, _loading: Loading, network: str = "Fused") -> nn.Module:
        from slipway_export.families.wakeword import network as networks

        head = networks.ServedHead(saved.network(), saved.threshold)
        module: nn.Module = getattr(networks, network)(_load_backbone(base, Precision.FP32), head)
        return module.eval()

    fused = Component(
        name=word_name(checkpoint) + FUSED_SUFFIX,
        inputs=(_features(config),),
        outputs=_judged(),
        axes=tuple(axes),
        load=load,
        tolerance=FUSED_TOLERANCE,
        keep_float=KEEP_FLOAT,
        merge_us=MERGE_US,
    )
    upstreams = replace(fused, outputs=(LOGITS,), load=partial(load, network="FusedLogits"))
    return Plan((replace(fused, portable=upstreams),), ())


LOGITS = TensorSpec("logits", DType.FLOAT32, ("batch", 2))


def _judged() -> tuple[TensorSpec, ...]:
    return (
        LOGITS,
        TensorSpec("probability", DType.FLOAT32, ("batch",)),
        TensorSpec("threshold", DType.FLOAT32, ("batch",)),
    )


def word_name(checkpoint: Checkpoint) -> str:
    """Return the word of a head's checkpoint: the name of its folder, or of its preset.

    Raises:
        InvalidRequest: The name breaks the rules for words.
    """
    return check_word(Path(checkpoint.source).resolve().name, f"checkpoint {checkpoint.source}")


def base_folder(head: Path, base_model: str) -> Path:
    """Find the backbone that a head names: a folder beside its file, or a path.

    Args:
        head: Folder of the head.
        base_model: Name of the backbone in the head's file.

    Raises:
        InvalidRequest: There is no such folder; nothing is downloaded.
    """
    for folder in (head / base_model, Path(base_model)):
        if folder.is_dir():
            return folder.resolve()
    raise InvalidRequest(
        f"checkpoint {head}: base_model must be a folder of this machine, got {base_model!r};"
        f" try a copy of it, or a link to it, at {head / base_model}"
    )


def _saved(checkpoint: Checkpoint) -> SavedHead:
    from slipway_export.families.wakeword.head_file import read_head

    return read_head(checkpoint.path / MODEL_FILE, f"checkpoint {checkpoint.source}: {MODEL_FILE}")


TINY_CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_length": 128,
    "num_mel_bins": 128,
}
# Mean and std are those of speech-commands-v2.
TINY_PREPROCESSOR = {"max_length": 128, "num_mel_bins": 128, "mean": -6.845978, "std": 5.5654526}


def _write_tiny(folder: Path, seed: int) -> None:
    from slipway_export.families.wakeword.presets import write_backbone

    write_backbone(folder, TINY_CONFIG, TINY_PREPROCESSOR, seed)


def _write_tiny_head(folder: Path, seed: int) -> None:
    from slipway_export.families.wakeword.network import HeadConfig
    from slipway_export.families.wakeword.presets import all_flags, write_word

    write_word(folder, all_flags(HeadConfig(embedding_dim=TINY_CONFIG["hidden_size"])), seed)
    (folder / "backbone").mkdir()
    _write_tiny(folder / "backbone", 0)


FAMILY = Family(
    name=NAME,
    upstream="MIT/ast-finetuned-speech-commands-v2",
    summary="wake words in audio, one backbone for all of them; in clips and in streams",
    served=(NAME, "wakeword_stream"),
    layout=(CONFIG_FILE, PREPROCESSOR_FILE),
    axes=(BATCH,),
    presets={
        "tiny": Preset(
            "random weights, 2 layers of 64, 128 frames; for the demo and the tests",
            {CONFIG_FILE: TINY_CONFIG, PREPROCESSOR_FILE: TINY_PREPROCESSOR},
            (BATCH,),
            _write_tiny,
        ),
        "demo": demo_preset(NAME, "trained on synthetic speech, 788 words, 4 layers of 128", (BATCH,)),
    },
    plan=plan,
    requests=(ClipsRequest,),
    trained=HEAD_NAME,
)

HEAD = Family(
    name=HEAD_NAME,
    upstream="a word of WakeBuilder (models/custom/<word>/model.pt)",
    summary="one wake word's head, which the folder of its file names",
    served=(f"{HEAD_NAME}_<word>",),
    layout=(MODEL_FILE,),
    axes=(BATCH,),
    presets={
        "tiny": Preset(
            "random weights, all three blocks, for the tiny backbone; for the demo and the tests",
            {},
            (BATCH,),
            _write_tiny_head,
        ),
        # The preset has the name of its word, as a folder would.
        "slipway": demo_preset(
            HEAD_NAME, "a trained word for the demo backbone: slipway", (BATCH,), beside={"backbone": NAME}
        ),
    },
    plan=plan_head,
    variants={
        "fused": Variant("backbone and head as one graph, input_values to logits", plan_fused),
    },
    trained=HEAD_NAME,
)
