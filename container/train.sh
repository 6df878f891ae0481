#!/bin/sh
# The image's entry point: becomes the launcher, so that signals reach it.
cd /opt/app && exec python -m trainer.launch "$@"
