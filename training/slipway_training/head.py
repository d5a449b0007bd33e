"""The fitting of a wake word's head to embeddings.

The head's first layer normalizes an embedding and then scales and shifts each of its channels; it starts with
the scales and shifts that standardize the channels over the training embeddings. Where the embeddings of all
sounds are nearly alike, which they are wherever the backbone was trained for something else, the layers after
it would otherwise hardly see a difference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from slipway_export.modeling.wakeword import WAKE_WORD_CLASS, HeadConfig, WakeWordHead

_SMALLEST_SPREAD = 1e-4
# Keeps probabilities off 0 and 1, so that thresholds have something to choose from.
_LABEL_SMOOTHING = 0.05


@dataclass(frozen=True)
class Examples:
    """Labelled embeddings.

    Args:
        embeddings: [windows, embedding_dim], float32.
        labels: [windows], int64, 1 where the window holds the word.
    """

    embeddings: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Schedule:
    """How a head is fitted.

    Args:
        epochs: passes over the training windows at most.
        patience: epochs without a better held-out loss after which fitting ends.
        anneal: let the learning rate fall along a cosine to nothing after all epochs, and keep the last head,
            not that of the best held-out loss. Of hours of recordings it tells the word from others better.
        batch: windows of one step.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        seed: of the weights, the order of windows and the dropout.
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
    """A fitted head.

    Args:
        head: in eval mode, as it was at its best epoch, or at its last one where the rate fell to nothing.
        epoch: that one, from 1.
        loss: cross-entropy of the held-out windows at that epoch, windows weighing as in the fitting.
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
    """Fit a head to the training windows until the held-out ones get no better.

    Args:
        config: sizes and flags of the head.
        training: both classes.
        held_out: both classes, of other recordings.
        schedule: how.
        report: called with one line now and then.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(schedule.seed)
        head = WakeWordHead(config)
        standardize(head, training.embeddings)
        return _descend(head, training, held_out, schedule, report)


def standardize(head: WakeWordHead, embeddings: Tensor) -> None:
    """Start a head's first layer so that its outputs have mean 0 and spread 1 over the embeddings."""
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
            # Each window's loss is weighed as a whole: weights within it, as torch has them, would weigh the
            # smoothing of the many by that of the few, and what holds no word would be a third of one.
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
    """Return the square roots of the weights by which both classes would count the same.

    With those themselves a few windows of a word outweigh hours of other speech, which is then detected.
    """
    counts = torch.bincount(labels, minlength=2).float()
    return (counts.sum() / (2 * counts)).sqrt()


def _loss(head: WakeWordHead, examples: Examples) -> float:
    with torch.inference_mode():
        logits = head(examples.embeddings)
        weights = _class_weights(examples.labels)
        return float(functional.cross_entropy(logits, examples.labels, weight=weights))
