"""The tutorial's text classifier in PyTorch and its training step: the opponent in timings.

Written from the description in "The Transformers, a complete architectural breakdown" (2026), by
its listings:

    1.27, 1.31  a score of -1e9 hides padding from every query; it is computed all the same
    1.30        layer norm of token + position + segment (always 0), dropout; [PAD]'s row stays 0
    1.31        one linear map to queries, keys and values; product, softmax, dropout, product; a
                linear map, dropout
    1.32        linear to 1024, exact GELU, dropout, linear, dropout
    1.33, 1.34  the norm before each sublayer, none after the last of 4 layers
    1.35, 1.36  dropout and a linear map of the features of [CLS]; 256 features, 50,260 tokens, at
                most 256 a text
    1.37, 1.38  cross-entropy; AdamW of every parameter, rate 3e-4, PyTorch's decay of 0.01; no
                schedule, no clipping

Every dropout rate is 0.1, every linear map has a bias, every norm has an epsilon of 1e-5, and the
initial values are PyTorch's.

Two things differ from the text. There are 8 heads, because the 6 of listing 1.36 do not divide 256,
which 1.31 requires. There are 4 layers, as in the constructor in 1.36; the model that it prints has
6. The same computation can also be "tuned": with PyTorch's own attention, with products in
bfloat16, and with one kernel for all of AdamW.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "the tutorial's classifier needs PyTorch: pip install torch==2.13.0", name="torch"
    ) from None

from transformer_jax.text.batching import Batch

HIDDEN = -1e9  # the score of padding


class SelfAttention(nn.Module):
    """Multi-head self-attention: softmax(q k^T / sqrt(H)) v in every head.

    `attention` is "eager" (written out) or "sdpa" (PyTorch's own function).
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout_rate: float, attention: str):
        super().__init__()
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.num_heads, self.dropout_rate = num_heads, dropout_rate
        self.attend = {"eager": self.eager, "sdpa": self.sdpa}[attention]

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = (
            part.view(B, T, self.num_heads, -1).transpose(1, 2)  # [B, N, T, H]
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = self.attend(q, k, v, is_token[:, None, None, :])
        return self.out(y.transpose(1, 2).reshape(B, T, D))

    def eager(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        weights = F.softmax(scores.masked_fill(~mask, HIDDEN), dim=-1)
        return F.dropout(weights, self.dropout_rate, self.training) @ v

    def sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        rate = self.dropout_rate if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate)


class EncoderLayer(nn.Module):
    """A pre-norm encoder layer: x + sublayer(norm(x)) for attention and feed-forward network."""

    def __init__(
        self, embed_dim: int, num_heads: int, hidden_dim: int, dropout_rate: float, attention: str
    ):
        super().__init__()
        self.attention = SelfAttention(embed_dim, num_heads, dropout_rate, attention)
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.attention_dropout = nn.Dropout(dropout_rate)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_dim, hidden_dim),
            nn.GELU(),
            nn.Dropout(dropout_rate),
            nn.Linear(hidden_dim, embed_dim),
            nn.Dropout(dropout_rate),
        )
        self.feed_forward_norm = nn.LayerNorm(embed_dim)

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        x = x + self.attention_dropout(self.attention(self.attention_norm(x), is_token))
        return x + self.feed_forward(self.feed_forward_norm(x))


class TutorialClassifier(nn.Module):
    """The tutorial's classifier, with its sizes as defaults.

    It maps tokens [B, T] and `is_token` [B, T] (False for padding) to two logits [B, 2].
    """

    def __init__(
        self,
        vocab_size: int = 50_260,
        *,
        pad_id: int = 50_257,
        max_length: int = 256,
        num_layers: int = 4,
        embed_dim: int = 256,
        num_heads: int = 8,
        hidden_dim: int = 1024,
        dropout_rate: float = 0.1,
        attention: Literal["eager", "sdpa"] = "eager",
    ):
        super().__init__()
        self.token = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_id)
        self.position = nn.Embedding(max_length, embed_dim)
        self.segment = nn.Embedding(2, embed_dim)
        self.norm = nn.LayerNorm(embed_dim)
        self.layers = nn.ModuleList(
            EncoderLayer(embed_dim, num_heads, hidden_dim, dropout_rate, attention)
            for _ in range(num_layers)
        )
        self.head = nn.Linear(embed_dim, 2)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, tokens: Tensor, is_token: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        segments = torch.zeros_like(tokens)
        x = self.token(tokens) + self.position(positions) + self.segment(segments)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, is_token)
        return self.head(self.dropout(x[:, 0]))


def our_weights(model: TutorialClassifier) -> dict[str, np.ndarray]:
    """Return the weights by their names in `TextClassifier`, in its layouts.

    Kernels are [in, out], and heads are an axis of them.
    """

    def linear(name: str, module: nn.Linear) -> dict[str, Tensor]:
        return {f"{name}kernel": module.weight.T, f"{name}bias": module.bias}

    def norm(name: str, module: nn.LayerNorm) -> dict[str, Tensor]:
        return {f"{name}.scale": module.weight, f"{name}.bias": module.bias}

    weights = {
        f"embedding.{table}.embedding": getattr(model, table).weight
        for table in ("token", "position", "segment")
    }
    weights |= norm("embedding.norm", model.norm) | linear("head.", model.head)
    for i, layer in enumerate(model.layers):
        name, attention = f"encoder.layers.{i}", layer.attention
        N, D = attention.num_heads, attention.out.in_features
        for part, kernel, bias in zip(
            ("query", "key", "value"),
            attention.qkv.weight.chunk(3),
            attention.qkv.bias.chunk(3),
            strict=True,
        ):
            weights[f"{name}.attention.{part}_kernel"] = kernel.T.reshape(D, N, -1)
            weights[f"{name}.attention.{part}_bias"] = bias.reshape(N, -1)
        weights[f"{name}.attention.out_kernel"] = attention.out.weight.T.reshape(N, -1, D)
        weights[f"{name}.attention.out_bias"] = attention.out.bias
        weights |= linear(f"{name}.feed_forward.in_", layer.feed_forward[0])
        weights |= linear(f"{name}.feed_forward.out_", layer.feed_forward[3])
        weights |= norm(f"{name}.attention_norm", layer.attention_norm)
        weights |= norm(f"{name}.feed_forward_norm", layer.feed_forward_norm)
    return {name: weight.detach().cpu().numpy().copy() for name, weight in weights.items()}


def to_tensors(batch: Batch, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Return (tokens, is_token, labels) of the examples, without the rows that fill the shape."""
    parts = (batch.tokens, batch.is_token, batch.labels)
    tokens, is_token, labels = (torch.from_numpy(x[batch.is_example]).to(device) for x in parts)
    return tokens.long(), is_token, labels.long()


def make_optimizer(model: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
    """Build AdamW over every parameter with PyTorch's default settings.

    Without `fused` PyTorch chooses the kernel itself, as in the tutorial.
    """
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=fused or None)


def make_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, bfloat16: bool = False
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a step for (tokens [B, T], is_token [B, T], labels [B] of int64).

    It updates the model and returns the loss before the update. With `bfloat16` the products use
    PyTorch's autocast; weights, loss and optimizer stay float32.
    """

    def step(tokens: Tensor, is_token: Tensor, labels: Tensor) -> Tensor:
        if not model.training:
            model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(_logits(model, tokens, is_token, bfloat16), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_inference(
    model: nn.Module, *, bfloat16: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function from (tokens, is_token) to logits.

    It runs without dropout and stores nothing for a gradient.
    """

    @torch.inference_mode()
    def infer(tokens: Tensor, is_token: Tensor) -> Tensor:
        if model.training:
            model.eval()
        return _logits(model, tokens, is_token, bfloat16)

    return infer


def _logits(model: nn.Module, tokens: Tensor, is_token: Tensor, bfloat16: bool) -> Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bfloat16):
        logits = model(tokens, is_token)
    return logits.float() if bfloat16 else logits
