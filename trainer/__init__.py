"""The trainer: what runs on the GPUs. `python -m trainer.launch` is the container's process 1 and works on a laptop."""
