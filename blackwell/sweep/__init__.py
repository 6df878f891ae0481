"""Sweeps: a grid of runs around one job, planned together, compared on identical data, one recommendation."""

from blackwell.sweep.spec import SweepSpec, parse_sweep_spec

__all__ = ["SweepSpec", "parse_sweep_spec"]
