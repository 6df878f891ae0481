"""The image proves itself before it is pushed: `docker run --entrypoint python IMAGE container/selftest.py`.

Every check says what it found. A check that this machine cannot make (no GPU, a CPU build of PyTorch) is named as not
made. Exit code 1 when any check fails, with the reason of each. Needs nothing but what is in the image.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_BUILD = "BLACKWELL_SELFTEST_CPU"
"""Environment variable: `1` accepts a CPU build of PyTorch, in images that are built for a machine without GPUs."""
ENGINE = "BLACKWELL_TRANSFORMER_ENGINE"
"""Environment variable of the image: the version of Transformer Engine that was asked for, or `base`."""
MINIMUM_PYTHON = (3, 11)
LAUNCH_SECONDS = 120
STOP_SECONDS = 120
"""SageMaker's time between SIGTERM and SIGKILL."""
TINY = {
    "workload": "layers", "num-layers": "1", "model.hidden_size": "64", "model.num_attention_heads": "2",
    "model.num_key_value_heads": "2", "model.intermediate_size": "128", "micro_batch_size": "2", "global_batch_size": "2",
    "seq-length": "32", "activation_checkpointing": "none", "backend": "auto",
}  # fmt: skip
"""Hyperparameters of a job that needs no data; its shapes are legal for every precision."""


class NotMadeError(Exception):
    """The check can't be made here; the text says why."""


def has_cuda_build() -> bool:
    import torch

    return torch.version.cuda is not None


def check_python() -> str:
    if sys.version_info < MINIMUM_PYTHON:
        raise AssertionError(f"Python {sys.version.split()[0]}, needed {MINIMUM_PYTHON}")
    return f"Python {sys.version.split()[0]}"


def check_torch() -> str:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard  # noqa: F401

    if not dist.is_available():
        raise AssertionError("torch.distributed is not in this build")
    if not has_cuda_build() and os.environ.get(CPU_BUILD) != "1":
        raise AssertionError(f"torch {torch.__version__} is a CPU build; {CPU_BUILD}=1 accepts that on purpose")
    if has_cuda_build() and not dist.is_nccl_available():
        raise AssertionError("NCCL is not in this build of torch")
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}"


def check_requirements() -> str:
    """What is installed is what the lock file says."""
    pins = dict(
        re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "container" / "requirements.txt").read_text(), re.MULTILINE)
    )
    wrong = []
    for name, version in pins.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "missing"
        if found != version:
            wrong.append(f"{name} {found}, locked {version}")
    if wrong:
        raise AssertionError("; ".join(wrong))
    return f"{len(pins)} packages as locked"


def check_cuda_runtime() -> str:
    """libcudart of torch's own CUDA version can be loaded, as every extension will need it."""
    import torch

    if not has_cuda_build():
        raise NotMadeError("a CPU build of torch has no CUDA runtime")
    library = f"libcudart.so.{str(torch.version.cuda).split('.')[0]}"
    ctypes.CDLL(library)
    return f"{library} loads"


def check_transformer_engine() -> str:
    if not has_cuda_build():
        raise NotMadeError("Transformer Engine's PyTorch part needs a CUDA build of torch")
    import transformer_engine.pytorch  # noqa: F401

    version = metadata.version("transformer-engine")
    asked = os.environ.get(ENGINE, "base")
    if asked not in ("base", version):
        raise AssertionError(f"Transformer Engine {version}, asked for {asked}")
    parts = {
        dist.metadata["Name"]: dist.version.split("+")[0]
        for dist in metadata.distributions()
        if re.fullmatch(r"transformer[-_]engine([-_](torch|cu1\d))?", dist.metadata["Name"] or "")
    }
    if len(set(parts.values())) > 1:
        raise AssertionError(f"parts of Transformer Engine disagree: {parts}")
    return f"Transformer Engine {version}"


def check_flash_attention() -> str:
    """Optional, but where it is installed it must load: a broken one stops Transformer Engine's import in the job."""
    try:
        version = metadata.version("flash-attn")
    except metadata.PackageNotFoundError:
        raise NotMadeError("flash-attn is not in the image; Transformer Engine uses cuDNN's attention") from None
    importlib.import_module("flash_attn")
    return f"flash-attn {version}"


def check_own_code() -> str:
    """Every module of trainer/ and blackwell/ in the image can be imported."""
    names = [
        module.name
        for package in ("blackwell", "trainer")
        for module in pkgutil.walk_packages([str(ROOT / package)], prefix=f"{package}.")
        if not module.name.endswith("__main__")
    ]
    if "trainer.launch" not in names:
        raise AssertionError("trainer.launch is not in the image")
    without_engine = []
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError) as error:
            if has_cuda_build() or "transformer" not in str(error).lower():
                raise
            without_engine.append(name)  # a CPU build of torch has no Transformer Engine
    skipped = f", not imported for want of Transformer Engine: {', '.join(without_engine)}" if without_engine else ""
    return f"{len(names) - len(without_engine)} modules{skipped}"


def _ml_root(folder: Path, **hyperparameters: str) -> dict[str, str]:
    """A /opt/ml for one tiny job; returns the environment that points to it."""
    config = folder / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text(json.dumps({**TINY, **hyperparameters}))
    (config / "inputdataconfig.json").write_text("{}")
    (config / "resourceconfig.json").write_text(
        json.dumps({"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"})
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "BLACKWELL_ML_ROOT": str(folder), "BLACKWELL_RUN": "selftest"}


def check_stop() -> str:
    """The entry point's launcher answers SIGTERM, as SageMaker sends it to PID 1: a checkpoint, and not exit code 0."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        log = root / "log"
        with log.open("wb") as output:
            job = subprocess.Popen(
                ["/bin/sh", str(ROOT / "container" / "train.sh")],
                cwd=ROOT, env=_ml_root(root / "ml", steps="1000000", precision="bf16"), stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            _wait(lambda: b"[rank 0] loss " in log.read_bytes(), job, LAUNCH_SECONDS, "the first step", log)
            begun = time.monotonic()
            job.send_signal(signal.SIGTERM)
            code = job.wait(STOP_SECONDS)
            seconds = time.monotonic() - begun
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        manifests = list((root / "ml" / "checkpoints").glob("step-*/MANIFEST.json"))
        if code == 0 or not manifests:
            raise AssertionError(f"stopped with exit code {code}, {len(manifests)} checkpoints: {_tail(log)}")
        return f"stopped in {seconds:.1f} s, exit code {code}, checkpoint {manifests[-1].parent.name}"


def _wait(condition: Callable[[], bool], job: subprocess.Popen[bytes], limit: float, what: str, log: Path) -> None:
    end = time.monotonic() + limit
    while not condition():
        if job.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"the launcher did not reach {what} (exit code {job.poll()}): {_tail(log)}")
        time.sleep(0.1)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:]


def check_precisions() -> str:
    """With a GPU: a few real steps in every precision that it has."""
    import torch

    if not torch.cuda.is_available():
        raise NotMadeError("no GPU here")
    capability = torch.cuda.get_device_capability()
    precisions = ["bf16"]
    precisions += ["fp8", "fp8_delayed"] if capability >= (8, 9) else []
    precisions += ["mxfp8", "nvfp4"] if (10, 0) <= capability < (12, 0) else []
    for precision in precisions:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-m", "trainer.launch"],
                cwd=ROOT, env=_ml_root(Path(folder), steps="3", precision=precision, processes_per_instance="1"),
                capture_output=True, text=True, timeout=600,
            )  # fmt: skip
            if done.returncode:
                raise AssertionError(f"{precision}: exit code {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return f"{', '.join(precisions)} on {torch.cuda.get_device_name()}"


CHECKS: tuple[Callable[[], str], ...] = (
    check_python, check_torch, check_requirements, check_cuda_runtime, check_flash_attention, check_transformer_engine,
    check_own_code, check_stop, check_precisions,
)  # fmt: skip


def run(checks: tuple[Callable[[], str], ...] = CHECKS) -> Iterator[tuple[str, str, str]]:
    """(name, `ok` | `not made` | `failed`, what was found) of each check, in order; none stops the others."""
    for check in checks:
        name = check.__name__.removeprefix("check_")
        try:
            yield name, "ok", check()
        except NotMadeError as reason:
            yield name, "not made", str(reason)
        except BaseException as error:  # a broken extension may raise anything
            if isinstance(error, KeyboardInterrupt):
                raise
            traceback.print_exc()
            yield name, "failed", f"{type(error).__name__}: {error}"


def main() -> int:
    sys.path.insert(0, str(ROOT))
    results = []
    for name, state, found in run():
        print(f"selftest: {name}: {state}: {found}", flush=True)
        results.append(state)
    print(f"selftest: {results.count('ok')} ok, {results.count('not made')} not made, {results.count('failed')} failed")
    return 1 if "failed" in results else 0


if __name__ == "__main__":
    sys.exit(main())
