"""Imports NVIDIA's real Transformer Engine Python sources on a machine without GPU and without the compiled extension.

The C++ extension `transformer_engine_torch` becomes a module that makes attributes on demand: nothing can be executed,
but signatures, recipes, class hierarchy, constructors and argument validation in Python are NVIDIA's own. Use it in a
process of its own: it pretends that there is a GPU.
"""

from __future__ import annotations

import ast
import enum
import importlib
import importlib.util
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any


class _AutoMeta(type):
    """A class whose missing attributes are classes like it; counts as a small integer, as C++ enum members do."""

    _numbers: dict[str, int] = {}

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _make(name)
        setattr(cls, name, value)
        return value

    def __iter__(cls) -> Any:
        return iter(())

    def __int__(cls) -> int:
        return _AutoMeta._numbers.setdefault(cls.__name__, len(_AutoMeta._numbers))

    __index__ = __int__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__call__()


def _make(name: str) -> Any:
    body = {"__init__": lambda self: None, "__hash__": object.__hash__, "__module__": "transformer_engine_torch"}
    return _AutoMeta(name, (), body)


class DType(enum.IntEnum):
    """Order as in transformer_engine.h (NVTEDType)."""

    kByte = 0
    kInt16 = 1
    kInt32 = 2
    kInt64 = 3
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat8E8M0 = 9
    kFloat4E2M1 = 10


class _Stub(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _make(name)
        setattr(self, name, value)
        return value


_ABSENT = ("triton", "onnx", "onnxscript")


class _Absent:
    """Makes packages that only kernels and exports need into stub packages whose decorators do nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in _ABSENT:
            return importlib.util.spec_from_loader(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> Any:
        return _Stub(spec.name)

    def exec_module(self, module: Any) -> None:
        if module.__name__ == "triton":

            def decorator(*args: Any, **kwargs: Any) -> Any:
                return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else (lambda f: f)

            module.jit = module.autotune = module.heuristics = decorator
            module.__version__ = "3.0.0"
        if module.__name__ == "onnxscript":
            module.script = lambda *args, **kwargs: lambda function: function


def fake_gpu(major: int = 10, minor: int = 0) -> None:
    """Pretends that a GPU of this compute capability is there, enough for constructors and context managers."""
    import torch

    properties = types.SimpleNamespace(
        major=major, minor=minor, name="fake", total_memory=180 << 30, multi_processor_count=148
    )
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *a, **k: properties  # type: ignore[assignment, return-value]
    torch.cuda.get_device_capability = lambda *a, **k: (major, minor)
    torch.version.cuda = torch.version.cuda or "13.0"


def _mirror_enums(stub: Any) -> None:
    """From 2.12 on, some C++ enums are compared with Python ones at import: the Python members are read from source."""
    root = next(Path(p) for p in sys.path if Path(p, "transformer_engine", "pytorch").is_dir())
    for relative, class_name, name, prefix in (
        ("constants.py", "DType", "DType", ""),
        ("cpp_extensions/fused_attn.py", "FusedAttnBackend", "NVTE_Fused_Attn_Backend", "NVTE_"),
    ):
        source = (root / "transformer_engine" / "pytorch" / relative).read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                members = [prefix + n.targets[0].id for n in node.body if isinstance(n, ast.Assign)]  # type: ignore[attr-defined]
                setattr(stub, name, enum.IntEnum(name, {m: i for i, m in enumerate(members)}))  # type: ignore[misc]


def load(folder: Path | None = None) -> Any:
    """`transformer_engine.pytorch` as a module.

    Args:
        folder: an unpacked wheel; None for the installed package.
    """
    if folder is not None:
        sys.path.insert(0, str(folder))
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # leaves out cuDNN, nvrtc and the core library
    stub = _Stub("transformer_engine_torch")
    stub.DType = DType
    _mirror_enums(stub)
    import torch._dynamo
    import torch._inductor.runtime.hints  # noqa: F401 (both must see that triton is absent)

    sys.meta_path.append(_Absent())  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        import transformer_engine.common as common  # its own first import of .pytorch fails inside and is swallowed
    sys.modules["transformer_engine_torch"] = stub
    common.load_framework_extension = lambda framework: None
    for name in [n for n in sys.modules if n.startswith("transformer_engine.pytorch")]:
        del sys.modules[name]
    stub.get_cudnn_version = lambda: 92400
    stub.get_num_cublas_streams = lambda: 4
    module = importlib.import_module("transformer_engine.pytorch")
    sys.modules["transformer_engine.pytorch.cpp_extensions"].__getattr__ = (  # type: ignore[method-assign]
        lambda name: getattr(stub, name)
    )
    return module
