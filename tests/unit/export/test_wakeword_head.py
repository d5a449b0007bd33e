"""A word's head: its layout, its forms in training and in serving, and its file."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.wakeword.family import base_folder, word_name
from slipway_export.families.wakeword.head_file import read_head, write_head
from slipway_export.families.wakeword.network import HeadConfig, ServedHead, WakeWordHead
from slipway_serving.protocol.errors import InvalidRequest

SMALL = HeadConfig(embedding_dim=16, hidden_dims=(8, 4))
FLAGS = ("use_attention", "use_se_block", "use_tcn")
FACTS: dict[str, Any] = {"wake_word": "hey jarvis", "threshold": 0.7, "base_model": "backbone"}


def all_flags(dim: int = 768) -> HeadConfig:
    return HeadConfig(embedding_dim=dim, **dict.fromkeys(FLAGS, True))


def trained(config: HeadConfig) -> WakeWordHead:
    """A head whose every weight, norms too, is away from its start."""
    torch.manual_seed(3)
    head = WakeWordHead(config)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter) / max(parameter.shape[-1], 1) ** 0.5)
    return head.eval()


def plainly(head: WakeWordHead, x: torch.Tensor) -> torch.Tensor:
    """The head by the whole operators on a sequence of length 1, nothing left out."""
    state = head.state_dict()
    x = functional.layer_norm(x, x.shape[1:], state["input_norm.weight"], state["input_norm.bias"])
    if head.attention is not None:
        sequence = x[:, None]
        refined, _ = head.attention.attention(sequence, sequence, sequence)
        x = head.attention.norm(sequence + refined)[:, 0]
    if head.se_block is not None:
        gate = functional.linear(x, state["se_block.fc.0.weight"], state["se_block.fc.0.bias"]).relu()
        gate = functional.linear(gate, state["se_block.fc.2.weight"], state["se_block.fc.2.bias"]).sigmoid()
        x = x * gate
    if head.tcn_block is not None:
        step = x[:, :, None]
        x = functional.gelu(head.tcn_block.conv(step) + step)[:, :, 0]
    for layer in head.classifier:
        x = layer(x)
    return x


def test_parameters_are_as_many_as_upstream_has() -> None:
    def count(**flags: bool) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in WakeWordHead(HeadConfig(**flags)).parameters())

    basic = count()
    assert basic == 232_322
    assert count(use_attention=True) - basic == 2_363_904
    assert count(use_se_block=True) - basic == 295_872
    assert count(use_tcn=True) - basic == 3_543_552
    assert count(**dict.fromkeys(FLAGS, True)) == 6_435_650


def test_keys_are_those_of_upstreams_classifier() -> None:
    with torch.device("meta"):
        shapes = {key: tuple(value.shape) for key, value in WakeWordHead(all_flags()).state_dict().items()}
    for key, shape in {
        "input_norm.weight": (768,),
        "attention.attention.in_proj_weight": (2304, 768),
        "attention.attention.in_proj_bias": (2304,),
        "attention.attention.out_proj.weight": (768, 768),
        "attention.norm.bias": (768,),
        "se_block.fc.0.weight": (192, 768),
        "se_block.fc.2.bias": (768,),
        "tcn_block.conv.0.weight": (768, 768, 3),
        "tcn_block.conv.1.weight": (768,),
        "tcn_block.conv.3.bias": (768,),
        "tcn_block.conv.4.bias": (768,),
        "classifier.0.weight": (256, 768),
        "classifier.1.weight": (256,),
        "classifier.4.weight": (128, 256),
        "classifier.5.bias": (128,),
        "classifier.8.weight": (2, 128),
    }.items():
        assert shapes[key] == shape
    assert len(shapes) == 2 + 6 + 4 + 8 + 10


@pytest.mark.parametrize("flags", list(product([False, True], repeat=3)))
@torch.no_grad()
def test_served_head_equals_the_whole_operators_for_all_flags(flags: tuple[bool, ...]) -> None:
    config = HeadConfig(embedding_dim=64, hidden_dims=(32,), **dict(zip(FLAGS, flags, strict=True)))
    head = trained(config)
    embedding = torch.randn(5, 64)
    expected = plainly(head, embedding)
    logits, probability, threshold = ServedHead(head, 0.6)(embedding)
    assert torch.allclose(head(embedding), expected, atol=2e-6)
    assert torch.allclose(logits, expected, atol=2e-6)
    assert torch.allclose(probability, expected.softmax(-1)[:, 1], atol=1e-6)
    assert threshold.tolist() == [pytest.approx(0.6)] * 5


@torch.no_grad()
def test_every_block_counts() -> None:
    """The comparison above could not pass with a block left out."""
    head = trained(all_flags(64))
    embedding = torch.randn(5, 64)
    whole = head(embedding)
    for block in ("attention", "se_block", "tcn_block"):
        kept = getattr(head, block)
        setattr(head, block, None)
        assert (head(embedding) - whole).abs().max() > 0.01
        setattr(head, block, kept)


def test_attention_drops_whole_heads_while_training() -> None:
    attention = trained(all_flags(64)).attention
    assert attention is not None
    attention.train()
    torch.manual_seed(0)
    attention.norm = nn.Identity()  # type: ignore[assignment]
    x = torch.randn(400, 64)
    values = functional.linear(
        x, attention.attention.in_proj_weight[128:], attention.attention.in_proj_bias[128:]
    )
    projection = attention.attention.out_proj
    given = torch.linalg.solve(projection.weight, (attention(x) - x - projection.bias).T).T
    kept = (given / values).unflatten(1, (4, 16))
    whole = torch.isclose(kept, kept[:, :, :1].expand_as(kept), atol=0.05).float().mean()
    assert whole > 0.99
    assert 0.05 < (kept[:, :, 0].abs() < 0.1).float().mean() < 0.15


def test_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    head = trained(HeadConfig(embedding_dim=64, hidden_dims=(8,), use_se_block=True))
    write_head(tmp_path / "model.pt", head, **FACTS, metrics={"val_f1": 0.9})
    saved = read_head(tmp_path / "model.pt", "head")
    assert saved.config == head.config
    assert (saved.wake_word, saved.threshold, saved.base_model) == ("hey jarvis", 0.7, "backbone")
    assert saved.more["metrics"] == {"val_f1": 0.9}
    embedding = torch.randn(3, 64)
    assert torch.equal(saved.network()(embedding), head(embedding))


def written(folder: Path, **changes: Any) -> Path:
    """Write a head's file with entries changed, or left out where None."""
    write_head(folder / "model.pt", trained(SMALL), **FACTS)
    content = torch.load(folder / "model.pt", weights_only=True) | changes
    torch.save({name: value for name, value in content.items() if value is not None}, folder / "model.pt")
    return folder / "model.pt"


def test_numpy_numbers_of_upstreams_calibration_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, threshold=np.float64(0.61), metrics={"far": np.float32(0.5), "n": np.int64(3)})
    saved = read_head(path, "head")
    assert saved.threshold == 0.61
    assert saved.more["metrics"]["n"] == 3


def test_flags_and_sizes_default_as_upstream_when_the_file_has_none(tmp_path: Path) -> None:
    write_head(tmp_path / "model.pt", trained(HeadConfig(embedding_dim=16)), **FACTS)
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    for name in (*FLAGS, "classifier_hidden_dims", "classifier_dropout"):
        del content[name]
    torch.save(content, tmp_path / "model.pt")
    assert read_head(tmp_path / "model.pt", "head").config == HeadConfig(embedding_dim=16)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"threshold": None}, "threshold must be in a wake-word head"),
        ({"threshold": 1.5}, "threshold must be 0 to 1, got 1.5"),
        ({"threshold": float("nan")}, "threshold must be 0 to 1, got nan"),
        ({"sample_rate": 8000}, "sample_rate must be 16000, got 8000"),
        ({"embedding_dim": "16"}, "embedding_dim must be a whole number above 0, got '16'"),
        ({"embedding_dim": 18, "use_attention": True}, "must be a multiple of 4 with use_attention"),
        ({"classifier_hidden_dims": [8, 0]}, "classifier_hidden_dims must be whole numbers above 0"),
        ({"classifier_hidden_dims": 8}, "classifier_hidden_dims must be a list"),
        ({"classifier_dropout": 1.0}, "classifier_dropout must be 0 to below 1, got 1.0"),
        ({"use_tcn": "yes"}, "use_tcn must be true or false, got 'yes'"),
        ({"use_tcn": True}, "missing keys tcn_block.conv.0.bias"),
        ({"embedding_dim": 32}, r"classifier.0.weight of shape \[8, 16\], not \[8, 32\]"),
        ({"classifier_state_dict": {"x": torch.zeros(1)}}, "missing keys .*unknown keys x"),
        ({"classifier_state_dict": [1]}, "must hold tensors by name"),
        ({"wake_word": ""}, "wake_word must be a text, got ''"),
        ({"base_model": 3}, "base_model must be a text, got 3"),
    ],
)
def test_file_is_refused_when_an_entry_does_not_fit(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read_head(written(tmp_path, **changes), "head")


def test_file_is_refused_when_a_weight_is_not_finite(tmp_path: Path) -> None:
    state = trained(SMALL).state_dict()
    state["classifier.0.bias"][0] = float("nan")
    with pytest.raises(InvalidRequest, match=r"NaN or infinity in classifier.0.bias"):
        read_head(written(tmp_path, classifier_state_dict=state), "head")


class Payload:
    """What an attacker puts into a pickle: a call that runs while the file is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_pickle_payload_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "was_run"
    path = written(tmp_path, metrics=Payload(f"touch {mark}"))
    with pytest.raises(
        InvalidRequest, match=r"tensors and plain values only, got a pickle that calls posix.system"
    ):
        read_head(path, "head")
    assert not mark.exists()
    torch.load(path, weights_only=False)  # the payload is a real one
    assert mark.exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "must exist, got no such file"),
        (b"", "must be a file of torch.save"),
        (b"not a pickle", "must be a file of torch.save"),
    ],
)
def test_file_is_refused_when_it_is_no_checkpoint(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=f"^head {text}"):
        read_head(path, "head")


@pytest.mark.parametrize("part", [0.3, 0.9, 0.999])
def test_file_is_refused_when_it_is_cut_off(tmp_path: Path, part: float) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(InvalidRequest, match="must be a file of torch.save"):
        read_head(path, "head")


def test_file_is_refused_when_it_holds_no_dictionary(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "model.pt")
    with pytest.raises(InvalidRequest, match="must hold a dictionary, got list"):
        read_head(tmp_path / "model.pt", "head")


@pytest.mark.parametrize(
    ("source", "word"),
    [("tiny", "tiny"), ("models/custom/jarvis/", "jarvis"), ("someone/hey_jarvis", "hey_jarvis")],
)
def test_word_is_the_name_of_the_checkpoints_folder(tmp_path: Path, source: str, word: str) -> None:
    assert word_name(Checkpoint(tmp_path, source)) == word


def test_word_is_refused_when_its_folder_breaks_the_rule(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="word must be 1 to 64 characters a-z"):
        word_name(Checkpoint(tmp_path, "models/Hey Jarvis"))


def test_backbone_is_found_beside_the_head_or_by_its_path_and_never_downloaded(tmp_path: Path) -> None:
    (tmp_path / "jarvis" / "MIT" / "ast").mkdir(parents=True)
    assert base_folder(tmp_path / "jarvis", "MIT/ast") == tmp_path / "jarvis" / "MIT" / "ast"
    assert base_folder(tmp_path, str(tmp_path / "jarvis")) == tmp_path / "jarvis"
    with pytest.raises(InvalidRequest, match="base_model must be a folder of this machine, got 'MIT/other'"):
        base_folder(tmp_path / "jarvis", "MIT/other")
