"""A stand-in for docker, where there is none: builds record what they would copy, runs run it with this Python.

What it does: reads the Dockerfile, records the copied files, build arguments, ENV, WORKDIR and ENTRYPOINT as an image
with a digest over all of it, keeps registry logins apart as docker does, and pushes a manifest to the emulated ECR.
What it does not do: pull base images or execute RUN lines. The base image's Python and packages are this venv's.
"""
