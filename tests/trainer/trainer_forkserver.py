"""Starts workers by fork from a process that has imported everything: a worker in milliseconds, real processes still.

Reads one JSON object a line: {"environment": {...}, "output": path}; answers {"pid": n}, and {"pid", "code"} for each
child that has ended after {"wait": [pids]}.
"""

from __future__ import annotations

import json
import os
import sys


def _child(request: dict) -> None:  # type: ignore[type-arg]
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for key, value in request["environment"].items():
        os.environ[key] = value
    code = 1
    try:
        import torch

        from trainer.train import main

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        code = main()
    finally:
        sys.stdout.flush()
        os._exit(code)


def serve() -> None:
    import trainer.train  # noqa: F401 (the point of this process)

    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in request["wait"]]
            answer: object = {"codes": codes}
        else:
            pid = os.fork()
            if pid == 0:
                _child(request)
            answer = {"pid": pid}
        sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    serve()
