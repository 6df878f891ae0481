"""GPU memory: peaks for the log, the record of an out-of-memory error, and a probe of the real step before step 1."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

GB = 1e9
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "bytes": 1}
_TRIED = re.compile(r"[Tt]ried to allocate ([0-9.]+) (KiB|MiB|GiB|TiB|bytes)")


def peaks(device: torch.device) -> dict[str, float]:
    """`memory_allocated_peak_gb` and `memory_reserved_peak_gb` since the last reset; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "memory_allocated_peak_gb": torch.cuda.max_memory_allocated(device) / GB,
        "memory_reserved_peak_gb": torch.cuda.max_memory_reserved(device) / GB,
    }


def reset_peaks(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def out_of_memory_bytes(error: BaseException) -> int | None:
    """Bytes asked for by the allocation that failed, read from the error's text; None where it does not say."""
    match = _TRIED.search(str(error))
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def is_out_of_memory(error: BaseException) -> bool:
    """True for torch's own error, CUDA's and cuBLAS's allocation failures, and Python's MemoryError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        sign in text for sign in ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")
    )


def probe(
    step: Callable[[], Any], optimizer: torch.optim.Optimizer, device: torch.device, repeats: int = 2
) -> dict[str, Any]:
    """Takes the real step twice, before step 1, without changing the model.

    The learning rate is zero, so the parameters keep their bits, and the optimizer's states are dropped afterwards.
    The first step allocates gradients and states, the second shows the steady peak; running out of memory here costs
    seconds instead of an hour.

    Returns:
        Fields of the `memory_probe` event.
    """
    reset_peaks(device)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    try:
        for _ in range(repeats):
            step()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.state.clear()
    result = {"steps": repeats, **peaks(device)}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        result |= {"free_gb": free / GB, "total_gb": total / GB}
        torch.cuda.empty_cache()
    reset_peaks(device)
    return result
