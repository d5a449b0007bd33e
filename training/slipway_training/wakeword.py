"""Training of a wake word: recordings → windows → embeddings → head → threshold → `model.pt`.

The backbone stays frozen, and receives each window through the preprocessing that serving uses. A share of
the recordings, with all their windows and variations, is held out: its loss stops the training, and its rates
choose the threshold. These rates are therefore a little optimistic; judge a word by other recordings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.spec import Family
from slipway_export.trained_models import WEIGHTS, Library, read_metadata, write_metadata
from slipway_serving.families.wakeword.words import check_word
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_training import calibration
from slipway_training.calibration import Calibration, calibrate
from slipway_training.clips import Clip, Samples, noise, read_clips, varied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipway_export.families.wakeword.features import Features
    from slipway_export.families.wakeword.network import Backbone
    from slipway_training.head import Examples, Fitted, Schedule

TABLE, PLOT = "calibration.csv", "calibration.png"
FEWEST_CLIPS = 8
_BATCH = 32
# Larger batches of features exceed the processor's caches: 1.4 ms per window in batches of 32, 0.6 ms in
# batches of 4 (one core).
_FEATURES_AT_ONCE = 4
_NOISE_PEAK = 0.5

Report = Callable[[str], None]


@dataclass(frozen=True)
class TrainOptions:
    """Options of a wake word's training.

    Args:
        name: Id of the word, which is also the name of its folder.
        positive: Folder of recordings of the word.
        negative: Folder of recordings of anything else.
        backbone: Checkpoint of the backbone: a preset, a folder, or a Hugging Face Hub id.
        models: Folder of trained models.
        wake_word: Word as people say it. None means the id with spaces for underscores.
        held_out: Share of the recordings that are held out, above 0 to 0.5. They stop the training and choose
            the threshold.
        variations: Number of augmented copies of each window, with random speed, offset and noise.
        max_false_accepts: Largest share of held-out negative windows that the threshold may accept, 0 to 1.
        hidden_dims: Sizes of the head's hidden layers.
        use_attention: Flag of :class:`~slipway_export.families.wakeword.network.HeadConfig`, as are the next
            two.
        use_se_block: Flag of the same class.
        use_tcn: Flag of the same class.
        epochs: Largest number of passes over the training windows.
        anneal: True to decay the learning rate; see :class:`~slipway_training.head.Schedule`.
        seed: Seed of the split, the variations and the weights.
        force: True to replace a trained model with that id.
    """

    name: str
    positive: Path
    negative: Path
    backbone: str
    models: Path = Path("trained")
    wake_word: str | None = None
    held_out: float = 0.25
    variations: int = 4
    max_false_accepts: float = 0.01
    hidden_dims: tuple[int, ...] = (256, 128)
    use_attention: bool = False
    use_se_block: bool = False
    use_tcn: bool = False
    epochs: int = 150
    anneal: bool = False
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        check_word(self.name, "train")
        problems = []
        if not 0 < self.held_out <= 0.5:
            problems.append(f"held-out must be above 0 to 0.5, got {self.held_out}")
        if not 0 <= self.max_false_accepts <= 1:
            problems.append(f"max-false-accepts must be 0 to 1, got {self.max_false_accepts}")
        for name, low in (("variations", 0), ("epochs", 1), ("seed", 0)):
            if getattr(self, name) < low:
                problems.append(f"{name} must be {low} or more, got {getattr(self, name)}")
        raise_all("train", problems)


@dataclass(frozen=True)
class Trained:
    """Result of a training.

    Args:
        folder: Folder of the model.
        calibration: Rates of the held-out windows at every threshold, and the chosen threshold.
        epoch: Epoch of the head that is kept.
        windows: Number of windows by use and kind, variations included.
        elapsed_s: Duration of the whole training, in seconds.
    """

    folder: Path
    calibration: Calibration
    epoch: int
    windows: Mapping[str, int]
    elapsed_s: float = field(compare=False)


@dataclass(frozen=True)
class _Heard:
    """Windows of one kind, computed lazily because hours of them would not fit into memory.

    Args:
        clips: Recordings. Iteration gives their unchanged windows first, then the variations.
        variations: Number of variations of each window.
        hisses: Number of windows of noise alone, which come last.
        seed: Seed of variations and noise.
    """

    clips: Sequence[Clip]
    variations: int
    hisses: int
    seed: tuple[int, ...]

    def __len__(self) -> int:
        return (1 + self.variations) * sum(len(clip.windows) for clip in self.clips) + self.hisses

    def __iter__(self) -> Iterator[Samples]:
        random = np.random.default_rng(self.seed)
        for clip in self.clips:
            yield from clip.windows
        for clip in self.clips:
            for span in clip.spans:
                for _ in range(self.variations):
                    yield varied(span, random)
        for _ in range(self.hisses):
            yield _hiss(random)


@dataclass(frozen=True)
class _Split:
    """Positive and negative windows of one part of the recordings."""

    positive: _Heard
    negative: _Heard


def train(family: Family, options: TrainOptions, report: Report = lambda _: None) -> Trained:
    """Train the head of a wake word and write it to the models folder.

    Args:
        family: Family of the backbone.
        options: Options of the training.
        report: Callback that receives one line before each long piece of work.

    Raises:
        InvalidRequest: An option, a recording or the backbone is invalid, there are too few recordings, or
            no threshold is good enough. Nothing is written then.
    """
    from transformers import ASTFeatureExtractor

    from slipway_export.families.wakeword.features import Features
    from slipway_export.families.wakeword.network import HeadConfig, load_backbone
    from slipway_training.head import Schedule, fit, probabilities

    started = time.monotonic()
    _check_free(options)
    with open_checkpoint(family, options.backbone) as checkpoint:
        backbone = load_backbone(checkpoint.path, checkpoint.source)
        features = Features(ASTFeatureExtractor.from_pretrained(checkpoint.path)).eval()
        base_model = _base_model(checkpoint)
        report("reading recordings")
        training, held_out = _split(options)
        listen = _Listener(features, backbone)
        report(f"embedding {_count(training) + _count(held_out)} windows")
        known, unseen = listen.examples(training), listen.examples(held_out)
    config = HeadConfig(
        embedding_dim=known.embeddings.shape[1],
        hidden_dims=options.hidden_dims,
        use_attention=options.use_attention,
        use_se_block=options.use_se_block,
        use_tcn=options.use_tcn,
    )
    schedule = Schedule(epochs=options.epochs, anneal=options.anneal, seed=options.seed)
    report(f"fitting the head to {len(known.labels)} windows")
    fitted = fit(config, known, unseen, schedule, report)
    scores = probabilities(fitted.head, unseen.embeddings).numpy()
    labels = unseen.labels.numpy()
    chosen = calibrate(scores[labels == 1], scores[labels == 0], options.max_false_accepts)
    trained = Trained(
        folder=Library(options.models).create(options.name),
        calibration=chosen,
        epoch=fitted.epoch,
        windows={
            "training_positive": len(training.positive),
            "training_negative": len(training.negative),
            "held_out_positive": len(held_out.positive),
            "held_out_negative": len(held_out.negative),
        },
        elapsed_s=time.monotonic() - started,
    )
    _save(trained, fitted, options, schedule, base_model)
    return trained


def _check_free(options: TrainOptions) -> None:
    weights = options.models / "custom" / options.name / WEIGHTS
    if weights.exists() and not options.force:
        raise InvalidRequest(f"train: name must be of no trained model, got {options.name}; try --force")


def _base_model(checkpoint: Checkpoint) -> str:
    """Return the backbone's name for the `.pt` file: its folder if local, else the name the user gave."""
    return str(checkpoint.path) if Path(checkpoint.source).is_dir() else checkpoint.source


def _split(options: TrainOptions) -> tuple[_Split, _Split]:
    """Split the recordings into training and held-out windows, each with variations.

    Raises:
        InvalidRequest: A recording cannot be used, or there are too few recordings.
    """
    clips = {
        kind: read_clips(getattr(options, kind), positive=kind == "positive")
        for kind in ("positive", "negative")
    }
    raise_all(
        "train",
        [
            f"{kind} must hold at least {FEWEST_CLIPS} recordings louder than silence, got {len(found)}"
            for kind, found in clips.items()
            if len(found) < FEWEST_CLIPS
        ],
    )
    random = np.random.default_rng(options.seed)
    parts: list[dict[str, _Heard]] = [{}, {}]
    for kind, found in clips.items():
        order = random.permutation(len(found))
        count = max(2, round(options.held_out * len(found)))
        for place, chosen in enumerate((order[count:], order[:count])):
            heard = _Heard(
                [found[index] for index in chosen],
                options.variations,
                hisses=0,
                seed=(options.seed, place, kind == "positive"),
            )
            if kind == "negative":
                # Most of the time, a microphone records only noise.
                heard = replace(heard, hisses=max(1, len(heard) // 10))
            parts[place][kind] = heard
    training, held_out = (_Split(**part) for part in parts)
    return training, held_out


def _hiss(random: np.random.Generator) -> Samples:
    samples = noise(random)
    samples *= _NOISE_PEAK / np.abs(samples).max()
    return samples


def _count(split: _Split) -> int:
    return len(split.positive) + len(split.negative)


@dataclass(frozen=True)
class _Listener:
    """Embedding of windows, with the features and backbone that serving uses.

    Args:
        features: Feature extractor of the backbone's checkpoint.
        backbone: Backbone in eval mode.
    """

    features: Features
    backbone: Backbone

    def examples(self, split: _Split) -> Examples:
        """Return the labelled embeddings of windows."""
        import torch

        from slipway_training.head import Examples

        labels = [1] * len(split.positive) + [0] * len(split.negative)
        embeddings = list(self._embeddings(chain(split.positive, split.negative)))
        return Examples(torch.cat(embeddings), torch.tensor(labels))

    def _embeddings(self, windows: Iterator[Samples]) -> Iterator[Any]:
        import torch

        while batch := list(islice(windows, _BATCH)):
            for _, alike in groupby(batch, key=len):
                heard = torch.from_numpy(np.stack(list(alike)))
                parts = range(0, len(heard), _FEATURES_AT_ONCE)
                with torch.no_grad():
                    values = [self.features(heard[start : start + _FEATURES_AT_ONCE])[0] for start in parts]
                    yield self.backbone(torch.cat(values))


def _save(
    trained: Trained, fitted: Fitted, options: TrainOptions, schedule: Schedule, base_model: str
) -> None:
    """Write weights, metadata, table and plot: each file atomically, the weights last."""
    from slipway_export.families.wakeword.head_file import SAMPLE_RATE_HZ, write_head

    folder, chosen = trained.folder, trained.calibration.chosen
    wake_word = options.wake_word or options.name.replace("_", " ")
    config = fitted.head.config
    facts: dict[str, Any] = {
        "metrics": {
            "held_out_loss": fitted.loss,
            "held_out_false_accepts": chosen.false_accepts,
            "held_out_false_rejects": chosen.false_rejects,
        },
        "training_config": {**asdict(schedule), "best_epoch": fitted.epoch, "variations": options.variations},
        "data_stats": dict(trained.windows),
    }
    metadata = {
        "wake_word": wake_word,
        "threshold": chosen.threshold,
        "model_type": "ast",
        "embedding_dim": config.embedding_dim,
        "classifier_hidden_dims": list(config.hidden_dims),
        "use_attention": config.use_attention,
        "use_se_block": config.use_se_block,
        "use_tcn": config.use_tcn,
        "sample_rate": SAMPLE_RATE_HZ,
        "base_model": base_model,
        "parameters": sum(parameter.numel() for parameter in fitted.head.parameters()),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
        "training_time_seconds": round(trained.elapsed_s, 1),
    }
    with _part(folder / TABLE) as part:
        part.write_text(calibration.as_csv(trained.calibration.rates), encoding="utf-8")
    with _part(folder / PLOT) as part:
        calibration.plot(trained.calibration, f"{wake_word}: held-out windows", part)
    earlier = {key: value for key, value in read_metadata(folder).items() if key == "onnx"}
    write_metadata(folder, metadata | earlier)
    with _part(folder / WEIGHTS) as part:
        write_head(
            part,
            fitted.head,
            wake_word=wake_word,
            threshold=chosen.threshold,
            base_model=base_model,
            **facts,
        )


@contextmanager
def _part(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside a file, and rename it to the file when the block ends without error."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
