"""The Python process of one Lambda execution environment, as AWS's runtime behaves. Copied into each environment.

One JSON object per line on standard input (first the environment, then the invocations), one answer per line on
standard output. What a handler prints goes to standard error, which becomes its log. Not imported: ministack runs it
as a script, after its own recursion header (`_ms_install_invoke_depth`).
"""

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

DEPTH_ENV = "__DEPTH_ENV__"
CALLS_ENV = "LOCAL_AWS_CALLS"
"""Names a file: every AWS call of every function is written to it, one `handler service:Operation` a line."""


def failure(error_type: str, message: str, trace: list[str] | None = None) -> dict[str, Any]:
    """A failed invocation. For ministack it is a result: it would end this process, which AWS keeps after an error."""
    document = {"errorMessage": message, "errorType": error_type, "stackTrace": trace or []}
    text = "".join([f"[ERROR] {error_type}: {message}\n", *(trace or [])])
    return {"status": "ok", "result": {"@error-document@": document, "trace": text}}


def error_answer(error: Exception) -> dict[str, Any]:
    """The answer for an exception that came out of the function's code."""
    return failure(type(error).__name__, str(error), traceback.format_tb(error.__traceback__)[1:])


def load(module_name: str, handler_name: str) -> tuple[Callable[..., Any] | None, dict[str, Any] | None]:
    """(handler, None), or (None, error answer) with the error types of AWS's Python runtime."""
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        trace = traceback.format_tb(error.__traceback__)[-2:]
        return None, failure("Runtime.ImportModuleError", f"Unable to import module '{module_name}': {error}", trace)
    except SyntaxError as error:
        return None, failure("Runtime.UserCodeSyntaxError", f"Syntax error in module '{module_name}': {error}")
    except Exception as error:
        return None, error_answer(error)
    if not hasattr(module, handler_name):
        message = f"Handler '{handler_name}' missing on module '{module_name}'"
        return None, failure("Runtime.HandlerNotFound", message)
    return getattr(module, handler_name), None


class Context:
    """The `context` argument of a handler."""

    def __init__(self, init: dict[str, Any], given: dict[str, Any]) -> None:
        self.function_name = init["function_name"]
        self.function_version = os.environ.get("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
        self.memory_limit_in_mb = str(init["memory"])
        self.invoked_function_arn = given.get("invoked_function_arn") or init["arn"]
        self.aws_request_id = given.get("request_id", "")
        self.log_group_name = os.environ.get("AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/" + self.function_name)
        self.log_stream_name = os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME", "")
        self.identity = None
        self.client_context = None
        self._deadline = time.time() + float(os.environ.get("_LAMBDA_TIMEOUT", "3"))

    def get_remaining_time_in_millis(self) -> int:
        """Until the function times out, milliseconds."""
        return max(0, int((self._deadline - time.time()) * 1000))


def call(handler: Callable[..., Any], event: Any, context: Context) -> dict[str, Any]:
    """Run the handler once; the answer holds its result or its error."""
    try:
        result = handler(event, context)
    except Exception as error:
        return error_answer(error)
    try:
        return {"status": "ok", "result": json.loads(json.dumps(result))}
    except (TypeError, ValueError) as error:
        return failure("Runtime.MarshalError", f"Unable to marshal response: {error}")


def record_calls(module_name: str, file: str) -> None:
    """From now on write down every AWS call of this process; what a function may do is checked against that."""
    from botocore import client as botocore_client

    base: Any = botocore_client.BaseClient
    call_api = base._make_api_call

    def recorded(client: Any, operation: str, parameters: Any) -> Any:
        with open(file, "a") as calls:
            calls.write(f"{module_name} {client.meta.service_model.service_name}:{operation}\n")
        return call_api(client, operation, parameters)

    base._make_api_call = recorded


def run() -> None:
    """Serve invocations until standard input ends, which is when the server does."""
    answers, sys.stdout = sys.stdout, sys.stderr
    init = json.loads(sys.stdin.readline())
    os.environ.update(init.get("env", {}))
    sys.path[0] = init["code_dir"]  # in place of this script's folder, which AWS does not have
    globals()["_ms_install_invoke_depth"]()  # ministack's recursion header stands before this file
    if os.environ.get(CALLS_ENV):
        record_calls(init["module"], os.environ[CALLS_ENV])
    handler, refused = load(init["module"], init["handler"])
    if refused is not None:
        refused = {"status": "error", "error": json.dumps(refused["result"])}
    print(json.dumps(refused or {"status": "ready", "cold": True}), file=answers, flush=True)
    while handler is not None and (line := sys.stdin.readline()):
        message = json.loads(line)
        given = message.get("ctx") or {}
        for name, value in ((DEPTH_ENV, given.get("depth")), ("_X_AMZN_TRACE_ID", given.get("trace_id"))):
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = str(value)
        answer = call(handler, message["event"], Context(init, given))
        print(json.dumps(answer), file=answers, flush=True)


run()
