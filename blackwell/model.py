"""Shapes of decoder-only transformers: presets, and how many parameters a shape has.

The names are those of a Hugging Face Llama config. The layer is RMSNorm, grouped-query attention with RoPE and a
SwiGLU feed-forward network without biases; workload `layers` uses LayerNorm, GELU and biases instead (see
`ModelShape.layers_workload`), the case of Transformer Engine's own FSDP example.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

DEFAULT_RMS_NORM_EPS = 1e-5
DEFAULT_ROPE_THETA = 500_000.0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A fully known shape. All sizes are element counts; `vocab_size` 0 means no embedding and no head."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    head_dim: int
    tie_word_embeddings: bool = False
    rms_norm_eps: float = DEFAULT_RMS_NORM_EPS
    rope_theta: float = DEFAULT_ROPE_THETA
    gated: bool = True
    """SwiGLU (two up-projections) when true, GELU (one) when false."""
    bias: bool = False

    @property
    def attention_width(self) -> int:
        """Width of all query heads together (num_attention_heads x head_dim)."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Width of all key heads together (num_key_value_heads x head_dim); the values have the same."""
        return self.num_key_value_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer layer, norms included."""
        h, f = self.hidden_size, self.intermediate_size
        qkv = self.attention_width + 2 * self.key_value_width
        up = 2 * f if self.gated else f
        weights = h * qkv + self.attention_width * h + h * up + f * h
        norms = 2 * h * (2 if self.bias else 1)
        biases = qkv + h + up + h if self.bias else 0
        return weights + norms + biases

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding (vocab_size x hidden_size)."""
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head that are its own; 0 when tied to the embedding."""
        return 0 if self.tie_word_embeddings else self.embedding_parameters

    @property
    def num_parameters(self) -> int:
        """All trainable parameters, the final norm included."""
        final_norm = self.hidden_size if self.vocab_size else 0
        return (
            self.num_hidden_layers * self.layer_parameters
            + self.embedding_parameters
            + self.head_parameters
            + final_norm
        )

    def flops_per_token(self, seq_length: int) -> float:
        """Floating-point operations per trained token, forward and backward: 6 N + 6 layers x attention_width x seq.

        N counts the matrices of layers and head, not the embedding; causal attention is counted half (PaLM, appendix
        B, halved), recomputation not at all. MFU divides by this.
        """
        matrices = self.num_hidden_layers * self.layer_parameters + self.embedding_parameters
        return 6.0 * matrices + 6.0 * self.num_hidden_layers * self.attention_width * seq_length

    def layers_workload(self) -> ModelShape:
        """The same width and depth as a bare stack of layers: GELU, biases, no vocabulary."""
        return replace(self, vocab_size=0, gated=False, bias=True, tie_word_embeddings=False)


def _llama(
    hidden: int,
    layers: int,
    heads: int,
    kv: int,
    ffn: int,
    vocab: int,
    *,
    tied: bool = False,
    theta: float = DEFAULT_ROPE_THETA,
) -> ModelShape:
    return ModelShape(
        hidden,
        layers,
        heads,
        kv,
        ffn,
        vocab,
        head_dim=128 if hidden > 2048 else hidden // heads,
        tie_word_embeddings=tied,
        rope_theta=theta,
    )


PRESETS: dict[str, ModelShape] = {
    # Llama 3.2 1B and 3B, Llama 3.1 8B, Qwen 2.5 14B and 32B (without QKV bias): the published config.json of each.
    "1b": _llama(2048, 16, 32, 8, 8192, 128_256, tied=True),
    "3b": _llama(3072, 28, 24, 8, 8192, 128_256, tied=True),
    "8b": _llama(4096, 32, 32, 8, 14_336, 128_256),
    "14b": _llama(5120, 48, 40, 8, 13_824, 152_064, theta=1_000_000.0),
    "32b": _llama(5120, 64, 40, 8, 27_648, 152_064, theta=1_000_000.0),
    # No public model of this size: Llama 3.1 70B's layer, 72 of them instead of 80, gives 63.7 billion parameters.
    "64b": _llama(8192, 72, 64, 8, 28_672, 128_256),
}
