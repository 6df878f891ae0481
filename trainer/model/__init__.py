"""The models: a decoder-only language model, and the bare stack of layers that Transformer Engine's example times."""
