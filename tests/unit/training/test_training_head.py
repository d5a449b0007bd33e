"""The fitting of a head: it learns, it repeats, and it starts with standardized embeddings."""

from __future__ import annotations

import torch

from slipway_export.families.wakeword.network import HeadConfig
from slipway_training.head import Examples, Schedule, WakeWordHead, fit, probabilities, standardize

CONFIG = HeadConfig(embedding_dim=8, hidden_dims=(16,))
SCHEDULE = Schedule(epochs=40, patience=10)


def examples(count: int, seed: int) -> Examples:
    """Return embeddings that are nearly alike: a faint direction tells the classes apart."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    embeddings = torch.linspace(-2, 2, 8) + 0.01 * torch.randn(count, 8, generator=random)
    embeddings[:, 3] += 0.05 * labels
    return Examples(embeddings, labels)


def test_fit_tells_nearly_equal_embeddings_apart() -> None:
    fitted = fit(CONFIG, examples(200, 0), examples(60, 1), SCHEDULE)
    unseen = examples(100, 2)
    right = (probabilities(fitted.head, unseen.embeddings) >= 0.5).long() == unseen.labels
    assert right.float().mean() >= 0.95
    assert not fitted.head.training
    assert 1 <= fitted.epoch <= 40


def test_fit_repeats_with_its_seed_and_leaves_torch_s_random_state() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        fit(CONFIG, examples(80, 0), examples(40, 1), Schedule(epochs=5, seed=seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    weights = [found.head.classifier[0].weight for found in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_fit_ends_early_when_held_out_windows_get_no_better() -> None:
    lines: list[str] = []
    training, held_out = examples(80, 0), examples(40, 1)
    contrary = Examples(held_out.embeddings, 1 - held_out.labels)
    fitted = fit(CONFIG, training, contrary, Schedule(epochs=200, patience=10), lines.append)
    assert fitted.epoch < 10
    assert len(lines) <= 2


def test_last_head_is_kept_when_the_rate_falls_to_nothing() -> None:
    training, held_out = examples(80, 0), examples(40, 1)
    contrary = Examples(held_out.embeddings, 1 - held_out.labels)
    best, last = (fit(CONFIG, training, contrary, Schedule(epochs=6, anneal=each)) for each in (False, True))
    assert best.epoch < 6 == last.epoch
    assert best.loss < last.loss


def test_standardize_gives_each_channel_mean_0_and_spread_1() -> None:
    head = WakeWordHead(CONFIG)
    embeddings = examples(300, 0).embeddings
    standardize(head, embeddings)
    seen = head.input_norm(embeddings).detach()
    assert seen.mean(dim=0).abs().max() < 1e-3
    assert (seen.std(dim=0) - 1).abs().max() < 1e-2
