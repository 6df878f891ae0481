#!/usr/bin/env bash
# Installs what the base image lacks. Argument: the version of Transformer Engine, or "base" for the base image's own.
set -euo pipefail
engine="${1:?version of Transformer Engine, or base}"

pip install --no-cache-dir --no-deps --require-hashes --requirement container/requirements.txt

if [ "$engine" != base ]; then
  # The wheel of the PyTorch part may have to be compiled: few jobs at once, or the compiler runs out of memory.
  NVTE_FRAMEWORK=pytorch MAX_JOBS="${MAX_JOBS:-4}" \
    pip install --no-cache-dir --no-build-isolation "transformer_engine[pytorch]==$engine"
fi

# Base images of PyTorch 2.9 ship a flash-attn that is linked against CUDA 12 beside CUDA 13 libraries. The loader is
# told where CUDA 12's runtime is, in its own configuration: an environment variable would get lost in a start script.
if pip show --quiet flash-attn 2>/dev/null && ! message=$(python -c "import flash_attn" 2>&1) &&
  [[ $message == *libcudart.so.12* ]]; then
  pip install --no-cache-dir "nvidia-cuda-runtime-cu12==12.9.79"
  python - >/etc/ld.so.conf.d/cuda12-runtime.conf <<'PYTHON'
from importlib.metadata import files

print(next(f for f in files("nvidia-cuda-runtime-cu12") if f.name == "libcudart.so.12").locate().parent.resolve())
PYTHON
  ldconfig
fi
