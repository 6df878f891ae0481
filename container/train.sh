#!/bin/sh
# The image's entry point: becomes the launcher, so that signals reach it.
cd "$(dirname "$0")/.." && exec python -m trainer.launch "$@"
