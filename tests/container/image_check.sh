#!/usr/bin/env bash
# Builds container/Dockerfile with a real builder and runs the image's self-test in it: `make image-check`.
# The base image is a stand-in: a minimal Debian with this checkout's CPU build of PyTorch, in two kinds. `plain` has no
# flash-attn; `linked` has one that needs libcudart.so.12, which is missing, as in the base image of PyTorch 2.9. Needs
# root, buildah, debootstrap, the package index, Python 3.11, 4 GB of disk. What it cannot show: anything that needs CUDA.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$(pwd)
work="$root/build/image-check"
python="$root/.venv/bin/python"

for tool in buildah debootstrap; do
  command -v "$tool" >/dev/null || { echo "image-check: $tool is missing (apt-get install buildah debootstrap)" >&2; exit 3; }
done
[ "$(id -u)" = 0 ] || { echo "image-check: needs root" >&2; exit 3; }
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "image-check: the virtual environment must be of Python 3.11, as in the stand-in's Debian 12" >&2
  exit 3
}

images() { buildah --storage-driver vfs --root "$work/store" --runroot "$work/run" "$@"; }

rm -rf "$work"
mkdir -p "$work/base"
trap 'images rm --all >/dev/null 2>&1 || true; rm -rf "$work/base" "$work/store" "$work/run"' EXIT

echo "image-check: base"
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$work/base" >"$work/debootstrap.log"
chroot "$work/base" python3 -m venv /opt/venv
"$python" - "$work/base/opt/venv/lib/python3.11/site-packages" <<'PYTHON'
"""Copies PyTorch and what it depends on from this environment, as their RECORD files list them."""
import re
import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path

target, queue, done = Path(sys.argv[1]), ["torch", "numpy"], set()
while queue:
    name = queue.pop()
    if name.lower() in done:
        continue
    done.add(name.lower())
    found = distribution(name)
    queue += [re.split(r"[\s;<>=!~\[(]", r)[0] for r in found.requires or [] if "extra ==" not in r]
    for file in found.files or []:
        source = Path(found.locate_file(file))
        if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / file)
PYTHON

# What the host's pip knows about its index, so that builds work behind a proxy or a mirror too.
options=(--volume /etc/ssl/certs:/etc/ssl/certs:ro)
"$python" -m pip config list | sed -n "s/^global\.\([a-z-]*\)='\(.*\)'$/\1 = \2/p" >"$work/pip.options"
{ echo "[global]"; cat "$work/pip.options"; } >"$work/pip.conf"
options+=(--volume "$work/pip.conf:/etc/pip.conf:ro")
while read -r path; do
  [ -e "$path" ] && options+=(--volume "$path:$path:ro")
done < <(grep -o '/[^ ]*' "$work/pip.options" | grep -v '^//' | sort -u)

base() { # kind
  local container
  container=$(images from scratch)
  images copy --quiet "$container" "$work/base" / >/dev/null
  images config --env PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  images commit --quiet --rm "$container" "localhost/stand-in/pytorch:$1" >/dev/null
}

check() { # kind: builds on that base and runs the self-test; its output goes to the terminal
  images bud --quiet --isolation chroot --network host --layers=false "${options[@]}" \
    --build-arg BASE_REGISTRY=localhost --build-arg BASE_REPOSITORY=stand-in/pytorch --build-arg BASE_TAG="$1" \
    --build-arg TRANSFORMER_ENGINE=base --file container/Dockerfile --tag "localhost/checked:$1" "$context"
  local container status=0
  container=$(images from --pull-never "localhost/checked:$1")
  images run --isolation chroot --env BLACKWELL_SELFTEST_CPU=1 "$container" -- python container/selftest.py || status=$?
  images rm "$container" >/dev/null
  return "$status"
}

context=$("$python" -c 'from stacks.image_content import stage; print(stage({"BASE_TAG": "stand-in"}).path)')
site="$work/base/opt/venv/lib/python3.11/site-packages"

echo "image-check: plain base"
base plain
check plain

echo "image-check: base with a flash-attn that needs libcudart.so.12"
mkdir -p "$site/flash_attn" "$site/flash_attn-2.8.3.dist-info"
printf 'import ctypes\n\nctypes.CDLL("libcudart.so.12")\n' >"$site/flash_attn/__init__.py"
printf 'Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n' >"$site/flash_attn-2.8.3.dist-info/METADATA"
printf 'flash_attn/__init__.py,,\nflash_attn-2.8.3.dist-info/METADATA,,\nflash_attn-2.8.3.dist-info/RECORD,,\n' \
  >"$site/flash_attn-2.8.3.dist-info/RECORD"
base linked
check linked

echo "image-check: the same without the mend in container/install.sh: the self-test must fail"
broken="$work/context"
cp -r "$context" "$broken"
sed -i 's/^  ldconfig$/  true/' "$broken/container/install.sh"
context="$broken"
if check linked >"$work/broken.log" 2>&1; then
  echo "image-check: a broken image passed its self-test" >&2
  exit 1
fi
grep "selftest: flash_attention: failed" "$work/broken.log"

echo "image-check: ok"
