"""Hypothesis strategies for configurations."""

from __future__ import annotations

from hypothesis import strategies as st

from blackwell.hardware import GPUS
from blackwell.model import ModelShape
from blackwell.planning.configuration import Configuration, Layout
from blackwell.planning.stacks import STACKS
from blackwell.spec import ActivationCheckpointing, Precision


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    head_dim = draw(st.sampled_from([64, 128]))
    kv = draw(st.sampled_from([1, 2, 8]))
    heads = kv * draw(st.integers(1, 8))
    shape = ModelShape(
        hidden_size=heads * head_dim,
        num_hidden_layers=draw(st.integers(1, 48)),
        num_attention_heads=heads,
        num_key_value_heads=kv,
        intermediate_size=draw(st.integers(1, 128)) * 128,
        vocab_size=draw(st.sampled_from([0, 4096, 128_256])),
        head_dim=head_dim,
        tie_word_embeddings=draw(st.booleans()),
    )
    return Configuration(
        shape=shape,
        gpu=GPUS["B200"],
        stack=draw(st.sampled_from(sorted(STACKS))),
        layout=Layout(
            data=draw(st.sampled_from([1, 2, 8, 64])),
            tensor=draw(st.sampled_from([1, 2, 8])),
            pipeline=draw(st.sampled_from([1, 1, 2, 4])),
            context=draw(st.sampled_from([1, 2])),
            zero=draw(st.integers(0, 3)),
        ),
        precision=draw(st.sampled_from([Precision.BF16, Precision.FP8, Precision.MXFP8, Precision.NVFP4])),
        checkpointing=draw(st.sampled_from(list(ActivationCheckpointing))),
        micro_batch=draw(st.integers(1, 16)),
        accumulation=draw(st.sampled_from([1, 4, 32])),
        seq_length=draw(st.sampled_from([128, 2048, 8192, 131_072])),
        loss="none" if shape.vocab_size == 0 else draw(st.sampled_from(["full", "compiled", "chunked"])),
        compiled=draw(st.booleans()),
        reshard=draw(st.booleans()),
    )
