"""Networks of wake words: the shared AST backbone and one small head for each word.

A head is trained as :class:`WakeWordHead`, which has the keys of WakeBuilder's classifier, and served as
:class:`ServedHead`. An embedding is a sequence of length 1, so there attention reduces to one matrix and a
convolution to its centre tap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ASTModel

from slipway_serving.protocol.errors import InvalidRequest

WAKE_WORD_CLASS = 1
ATTENTION_HEADS = 4
_BLOCK_DROPOUT = 0.1
_SMALLEST_SQUEEZE = 32
_SQUEEZE = 4
_SHOWN_KEYS = 5


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and flags of a head from its checkpoint.

    Args:
        embedding_dim: Width of the backbone's embedding; a multiple of 4 with attention.
        hidden_dims: Widths of the hidden layers, in order.
        dropout: Dropout rate after each hidden layer in training, 0 to below 1.
        use_attention: True if self-attention refines the embedding.
        use_se_block: True if squeeze and excitation weights the embedding's channels.
        use_tcn: True if convolutions refine the embedding.

    Raises:
        InvalidRequest: A field breaks its rule; the message names all such fields.
    """

    embedding_dim: int = 768
    hidden_dims: tuple[int, ...] = (256, 128)
    dropout: float = 0.3
    use_attention: bool = False
    use_se_block: bool = False
    use_tcn: bool = False

    def __post_init__(self) -> None:
        problems = []
        if not is_size(self.embedding_dim):
            problems.append(f"embedding_dim must be a whole number above 0, got {self.embedding_dim!r}")
        elif self.use_attention and self.embedding_dim % ATTENTION_HEADS:
            problems.append(
                f"embedding_dim must be a multiple of {ATTENTION_HEADS} with use_attention,"
                f" got {self.embedding_dim}"
            )
        if not isinstance(self.hidden_dims, tuple):
            problems.append(f"classifier_hidden_dims must be a list, got {self.hidden_dims!r}")
        elif not all(is_size(size) for size in self.hidden_dims):
            problems.append(
                f"classifier_hidden_dims must be whole numbers above 0, got {list(self.hidden_dims)}"
            )
        if not (is_number(self.dropout) and 0 <= self.dropout < 1):
            problems.append(f"classifier_dropout must be 0 to below 1, got {self.dropout!r}")
        problems += [
            f"{flag} must be true or false, got {getattr(self, flag)!r}"
            for flag in ("use_attention", "use_se_block", "use_tcn")
            if not isinstance(getattr(self, flag), bool)
        ]
        if problems:
            raise InvalidRequest("head: " + " | ".join(problems))


def is_size(value: object) -> bool:
    """Return whether a value is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class SelfAttentionPooling(nn.Module):
    """Self-attention over an embedding as a sequence of length 1, with residual and norm.

    With one key the softmax is always 1, so only the values and their projection remain. In training, dropout
    drops whole heads, as dropout of the attention weights does.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, ATTENTION_HEADS, dropout=_BLOCK_DROPOUT, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, embedding: Tensor) -> Tensor:
        """Refine embeddings [batch, dim]."""
        dim = embedding.shape[1]
        weight, bias = self.attention.in_proj_weight[2 * dim :], self.attention.in_proj_bias[2 * dim :]
        values = functional.linear(embedding, weight, bias).view(-1, ATTENTION_HEADS, dim // ATTENTION_HEADS)
        values = functional.dropout1d(values, _BLOCK_DROPOUT, self.training).flatten(1)
        refined: Tensor = self.norm(embedding + self.attention.out_proj(values))
        return refined

    def served(self) -> nn.Module:
        """Return an equivalent module for inference, with values and projection as one matrix."""
        dim = self.norm.normalized_shape[0]
        weight, bias = self.attention.in_proj_weight[2 * dim :], self.attention.in_proj_bias[2 * dim :]
        projection = self.attention.out_proj
        folded = _linear(
            projection.weight.double() @ weight.double(),
            projection.weight.double() @ bias.double() + projection.bias.double(),
        )
        return _Residual(folded, self.norm)


class SqueezeExcitation(nn.Module):
    """Block that scales each channel of an embedding by a gate between 0 and 1 (Hu et al., 2018)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        squeezed = max(dim // _SQUEEZE, _SMALLEST_SQUEEZE)
        self.fc = nn.Sequential(nn.Linear(dim, squeezed), nn.ReLU(), nn.Linear(squeezed, dim), nn.Sigmoid())

    def forward(self, embedding: Tensor) -> Tensor:
        """Scale embeddings [batch, dim]."""
        gate: Tensor = self.fc(embedding)
        return embedding * gate

    def served(self) -> nn.Module:
        """Return the block itself, which is suitable for inference."""
        return self


class TemporalConvBlock(nn.Module):
    """Two convolutions of width 3 over an embedding as a sequence of length 1, with a residual.

    Both neighbours of the single step are padding, so only the centre tap of a kernel matters.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(dim, dim, 3, padding=1),
            nn.GroupNorm(1, dim),
            nn.GELU(),
            nn.Conv1d(dim, dim, 3, padding=1),
            nn.GroupNorm(1, dim),
        )
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(_BLOCK_DROPOUT)

    def forward(self, embedding: Tensor) -> Tensor:
        """Refine embeddings [batch, dim]."""
        refined = embedding
        for layer in self.conv:
            if isinstance(layer, nn.Conv1d):
                refined = functional.linear(refined, layer.weight[:, :, 1], layer.bias)
            else:
                refined = layer(refined)
        dropped: Tensor = self.dropout(self.activation(refined + embedding))
        return dropped

    def served(self) -> nn.Module:
        """Return an equivalent module for inference: matrices for convolutions, LayerNorm for GroupNorm."""
        layers: list[nn.Module] = []
        for layer in self.conv:
            if isinstance(layer, nn.Conv1d):
                layers.append(_linear(layer.weight[:, :, 1], layer.bias))
            elif isinstance(layer, nn.GroupNorm):
                norm = nn.LayerNorm(layer.num_channels, eps=layer.eps)
                norm.load_state_dict(layer.state_dict())
                layers.append(norm)
            else:
                layers.append(layer)
        return _Residual(nn.Sequential(*layers), self.activation)


class _Residual(nn.Module):
    def __init__(self, branch: nn.Module, finish: nn.Module) -> None:
        super().__init__()
        self.branch, self.finish = branch, finish

    def forward(self, x: Tensor) -> Tensor:
        finished: Tensor = self.finish(x + self.branch(x))
        return finished


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.zeros(weight.shape[0]) if bias is None else bias)
    return layer


class WakeWordHead(nn.Module):
    """Classifier of one wake word, in the layout of WakeBuilder.

    Args:
        config: Sizes and flags of the head.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.embedding_dim
        self.input_norm = nn.LayerNorm(dim)
        self.attention = SelfAttentionPooling(dim) if config.use_attention else None
        self.se_block = SqueezeExcitation(dim) if config.use_se_block else None
        self.tcn_block = TemporalConvBlock(dim) if config.use_tcn else None
        layers: list[nn.Module] = []
        for size in config.hidden_dims:
            layers += [nn.Linear(dim, size), nn.LayerNorm(size), nn.GELU(), nn.Dropout(config.dropout)]
            dim = size
        self.classifier = nn.Sequential(*layers, nn.Linear(dim, 2))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, embedding: Tensor) -> Tensor:
        """Classify embeddings.

        Args:
            embedding: Embeddings from the backbone, [batch, embedding_dim], float32.

        Returns:
            Logits [batch, 2]; class 1 is the wake word.
        """
        x: Tensor = self.input_norm(embedding)
        for block in self.blocks():
            x = block(x)
        logits: Tensor = self.classifier(x)
        return logits

    def blocks(self) -> Iterator[SelfAttentionPooling | SqueezeExcitation | TemporalConvBlock]:
        """Yield the optional blocks of the head, in their order."""
        for block in (self.attention, self.se_block, self.tcn_block):
            if block is not None:
                yield block


class ServedHead(nn.Module):
    """Head for inference, which returns the word's threshold along with the probability.

    Args:
        head: Trained head.
        threshold: Lowest probability at which the word counts as detected.
    """

    constant: Tensor

    def __init__(self, head: WakeWordHead, threshold: float) -> None:
        super().__init__()
        *hidden, self.output = (layer for layer in head.classifier if not isinstance(layer, nn.Dropout))
        self.hidden = nn.Sequential(head.input_norm, *(block.served() for block in head.blocks()), *hidden)
        # The name cannot be "threshold", which is an output of the graph.
        self.register_buffer("constant", torch.tensor([threshold], dtype=torch.float32))
        self.eval().requires_grad_(False)

    def forward(self, embedding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute logits and probability of the wake word.

        Args:
            embedding: Embeddings from the backbone, [batch, embedding_dim], float32.

        Returns:
            Logits [batch, 2], the wake word's probability [batch], and the threshold [batch].
        """
        logits = self.output(self.hidden(embedding))
        probability = logits.softmax(dim=-1)[:, WAKE_WORD_CLASS]
        return logits, probability, self.constant.expand_as(probability)


class Backbone(nn.Module):
    """AST without its classifier, which maps features to one embedding.

    Args:
        model: Network of transformers.
    """

    def __init__(self, model: ASTModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_values: Tensor) -> Tensor:
        """Compute the embeddings of features.

        Args:
            input_values: Normalized log-mel energies, [batch, max_length, num_mel_bins].

        Returns:
            Embeddings [batch, hidden_size], the mean of the two class tokens after the last norm.
        """
        embedding: Tensor = self.model(input_values.to(self.model.dtype)).pooler_output
        return embedding.float()


class Fused(nn.Module):
    """Network of the backbone and one word's head.

    Args:
        backbone: Backbone as it is served.
        head: Head as it is served.
    """

    def __init__(self, backbone: Backbone, head: ServedHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, input_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run on features [batch, max_length, num_mel_bins]; results as in :meth:`ServedHead.forward`."""
        judged: tuple[Tensor, Tensor, Tensor] = self.head(self.backbone(input_values))
        return judged


class FusedLogits(Fused):
    """Backbone and head with upstream's only output, the logits, for portable graphs."""

    def forward(self, input_values: Tensor) -> Tensor:  # type: ignore[override]
        """Return the logits [batch, 2] of features [batch, max_length, num_mel_bins]."""
        logits: Tensor = super().forward(input_values)[0]
        return logits


def load_backbone(folder: Path, source: str) -> Backbone:
    """Load an AST without its classifier, in eval mode and float32.

    Args:
        folder: Folder with config.json and model.safetensors in the layout of transformers.
        source: Name of the checkpoint in error messages.

    Raises:
        InvalidRequest: Weights are missing, unknown or of another shape.
    """
    where = f"checkpoint {source}: model.safetensors"
    try:
        model, info = ASTModel.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, dtype=torch.float32, use_safetensors=True
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise InvalidRequest(f"{where} must load as an ASTModel, got {_first_line(error)}") from None
    # The public checkpoints contain a classifier besides the backbone.
    unknown = sorted(key for key in info["unexpected_keys"] if not key.startswith("classifier."))
    problems = [
        f"{kind} keys {', '.join(sorted(map(str, keys))[:_SHOWN_KEYS])}"
        for kind, keys in (
            ("missing", info["missing_keys"]),
            ("unknown", unknown),
            ("mismatched", info["mismatched_keys"]),
        )
        if keys
    ]
    if problems:
        raise InvalidRequest(f"{where} must have the keys of an ASTModel, got {'; '.join(problems)}")
    return Backbone(model).eval().requires_grad_(False)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
