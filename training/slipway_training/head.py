"""Training of a wake word's classifier head on embeddings.

The head's first layer normalizes an embedding and then scales and shifts each of its channels. It starts with
the scales and shifts that standardize the channels over the training embeddings. A backbone that was trained
for another task gives nearly equal embeddings for all sounds; without this start, the later layers would
hardly see a difference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from slipway_export.families.wakeword.network import WAKE_WORD_CLASS, HeadConfig, WakeWordHead

_SMALLEST_SPREAD = 1e-4
# Smoothing keeps probabilities away from 0 and 1, so that different thresholds give different rates.
_LABEL_SMOOTHING = 0.05


@dataclass(frozen=True)
class Examples:
    """Labelled embeddings.

    Args:
        embeddings: Embeddings, [windows, embedding_dim], float32.
        labels: Labels, [windows], int64, 1 if the window contains the word, else 0.
    """

    embeddings: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Schedule:
    """Hyperparameters of a head's training.

    Args:
        epochs: Largest number of passes over the training windows.
        patience: Number of epochs without a better held-out loss after which training stops.
        anneal: True to decay the learning rate along a cosine to 0 over all epochs, and to keep the last head
            instead of the one with the best held-out loss. With hours of recordings, such a head
            distinguishes the word from others better.
        batch: Windows per step.
        learning_rate: Learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        seed: Seed of the weights, the order of windows and the dropout.
    """

    epochs: int = 150
    patience: int = 25
    anneal: bool = False
    batch: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    seed: int = 0


@dataclass(frozen=True)
class Fitted:
    """Trained head with its epoch and held-out loss.

    Args:
        head: Head in eval mode, from its best epoch, or from its last epoch if the schedule anneals.
        epoch: Number of that epoch, from 1.
        loss: Cross-entropy of the held-out windows at that epoch, weighted by class as in training.
    """

    head: WakeWordHead
    epoch: int
    loss: float


def fit(
    config: HeadConfig,
    training: Examples,
    held_out: Examples,
    schedule: Schedule,
    report: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """Train a head until the loss of the held-out windows stops improving.

    Args:
        config: Sizes and flags of the head.
        training: Training examples of both classes.
        held_out: Held-out examples of both classes, from other recordings.
        schedule: Hyperparameters of the training.
        report: Callback that receives lines of progress.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(schedule.seed)
        head = WakeWordHead(config)
        standardize(head, training.embeddings)
        return _descend(head, training, held_out, schedule, report)


def standardize(head: WakeWordHead, embeddings: Tensor) -> None:
    """Initialize a head's first layer so that its outputs have mean 0 and deviation 1 over the embeddings."""
    norm = head.input_norm
    normalized = functional.layer_norm(embeddings, norm.normalized_shape, eps=norm.eps)
    spread = normalized.std(dim=0).clamp_min(_SMALLEST_SPREAD)
    with torch.no_grad():
        norm.weight.copy_(1 / spread)
        norm.bias.copy_(-normalized.mean(dim=0) / spread)


def probabilities(head: WakeWordHead, embeddings: Tensor) -> Tensor:
    """Return the probability of the word, [windows]."""
    with torch.inference_mode():
        logits: Tensor = head(embeddings)
        return logits.softmax(dim=-1)[:, WAKE_WORD_CLASS]


def _descend(
    head: WakeWordHead,
    training: Examples,
    held_out: Examples,
    schedule: Schedule,
    report: Callable[[str], None],
) -> Fitted:
    weights = _class_weights(training.labels)
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay
    )
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.epochs)
    best = Fitted(head, 0, float("inf"))
    for epoch in range(1, schedule.epochs + 1):
        head.train()
        order = torch.randperm(len(training.labels))
        for start in range(0, len(order), schedule.batch):
            rows = order[start : start + schedule.batch]
            labels = training.labels[rows]
            # The class weight multiplies each window's whole loss. torch's `weight` argument would also
            # weight the smoothing term per class, so windows without the word would count as a third of one.
            each = functional.cross_entropy(
                head(training.embeddings[rows]), labels, label_smoothing=_LABEL_SMOOTHING, reduction="none"
            )
            loss = (each * weights[labels]).mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        if schedule.anneal:
            rates.step()
        head.eval()
        now = _loss(head, held_out)
        if now < best.loss or schedule.anneal:
            best = Fitted(copy.deepcopy(head), epoch, now)
        if epoch - best.epoch >= schedule.patience:
            break
        if epoch % 10 == 0:
            report(f"head: epoch {epoch}, held-out loss {now:.4f}")
    return best


def _class_weights(labels: Tensor) -> Tensor:
    """Return the square roots of the weights that balance both classes.

    With the balancing weights themselves, a few windows of a word outweigh hours of other speech, and the
    head then detects the word in other speech.
    """
    counts = torch.bincount(labels, minlength=2).float()
    return (counts.sum() / (2 * counts)).sqrt()


def _loss(head: WakeWordHead, examples: Examples) -> float:
    with torch.inference_mode():
        logits = head(examples.embeddings)
        weights = _class_weights(examples.labels)
        return float(functional.cross_entropy(logits, examples.labels, weight=weights))
