"""Functions: error types, what comes from the asset and what from the environment, workers; beside stock ministack."""

from __future__ import annotations

import io
import zipfile

import pytest
from overlay_helpers import function, invoke, unique

from local.overlay.functions import without_packages
from local.server import LocalAws, marked

pytestmark = pytest.mark.xdist_group("overlay")


@pytest.mark.parametrize(
    ("source", "error_type"),
    [
        ("class Refused(ValueError):\n    pass\ndef handler(event, context):\n    raise Refused('no')\n", "Refused"),
        ("import not_there\n", "Runtime.ImportModuleError"),
        ("def handler(event, context)\n", "Runtime.UserCodeSyntaxError"),
        ("def other(event, context):\n    pass\n", "Runtime.HandlerNotFound"),
        ("raise KeyError('at import')\n", "KeyError"),
        ("def handler(event, context):\n    return object()\n", "Runtime.MarshalError"),
        ("import os\ndef handler(event, context):\n    os._exit(3)\n", "Runtime.ExitError"),
        ("import time\ndef handler(event, context):\n    time.sleep(30)\n", "Sandbox.Timedout"),
    ],
)
def test_error_types(aws: LocalAws, stock: LocalAws, source: str, error_type: str) -> None:
    answer = invoke(aws, function(aws, source, Timeout=1))
    assert (answer["error"], answer["payload"]["errorType"]) == ("Unhandled", error_type)
    if error_type != "Sandbox.Timedout":
        assert invoke(stock, function(stock, source, Timeout=1))["payload"]["errorType"] != error_type


def test_error_document_has_message_and_stack(aws: LocalAws) -> None:
    payload = invoke(aws, function(aws, "def handler(event, context):\n    raise ValueError('no \"x\"')\n"))["payload"]
    assert payload["errorMessage"] == 'no "x"'
    assert "index.py" in payload["stackTrace"][-1]
    assert payload["requestId"]


def test_exception_leaves_the_environment_warm(aws: LocalAws, stock: LocalAws) -> None:
    source = "import os\ndef handler(event, context):\n    return [os.getpid(), 1 / event['n']]\n"
    for server, same in ((aws, True), (stock, False)):
        name = function(server, source)
        before = invoke(server, name, {"n": 1})["payload"][0]
        assert "division" in invoke(server, name, {"n": 0})["payload"]["errorMessage"]
        assert (invoke(server, name, {"n": 1})["payload"][0] == before) is same


def test_exception_is_in_the_log(aws: LocalAws) -> None:
    name = function(aws, "def handler(event, context):\n    print('seen')\n    raise KeyError('lost')\n")
    invoke(aws, name)
    events = aws.client("logs").filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
    lines = [event["message"] for event in events]
    assert "seen" in lines
    assert "[ERROR] KeyError: 'lost'" in lines


PACKAGED = {
    "pydantic/__init__.py": "raise ImportError('built for another Python')\n",
    "pydantic-2.0.dist-info/RECORD": "pydantic/__init__.py,sha256=x,1\npydantic-2.0.dist-info/RECORD,,\n",
    "pydantic-2.0.dist-info/METADATA": "Name: pydantic\n",
    "blackwell/__init__.py": "",
    "blackwell/verdict.py": "WHERE = 'asset'\n",
}


def test_ours_comes_from_the_asset_and_packages_from_the_environment(aws: LocalAws, stock: LocalAws) -> None:
    source = (
        "import pydantic, blackwell.verdict\n"
        "def handler(event, context):\n"
        "    return [pydantic.__file__, blackwell.verdict.WHERE, context.function_name]\n"
    )
    name = function(aws, source, files=PACKAGED)
    where, verdict, seen_name = invoke(aws, name)["payload"]
    assert "site-packages" in where
    assert (verdict, seen_name) == ("asset", name)
    assert invoke(stock, function(stock, source, files=PACKAGED))["error"] == "Unhandled"


def test_only_packaged_files_are_left_out() -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as bundle:
        for path, text in PACKAGED.items():
            bundle.writestr(path, text)
    own = without_packages(whole.getvalue())
    assert zipfile.ZipFile(io.BytesIO(own)).namelist() == ["blackwell/__init__.py", "blackwell/verdict.py"]
    assert without_packages(own) == own


def test_project_is_not_on_the_path_of_a_function(aws: LocalAws) -> None:
    source = "def handler(event, context):\n    import blackwell.findings\n"
    assert invoke(aws, function(aws, source))["payload"]["errorType"] == "ModuleNotFoundError"


def test_function_reaches_this_aws(aws: LocalAws) -> None:
    bucket = unique("bucket")
    source = (
        "import boto3\n"
        "def handler(event, context):\n"
        "    boto3.client('s3').create_bucket(Bucket=event['bucket'])\n"
        "    print('made', event['bucket'])\n"
    )
    assert invoke(aws, function(aws, source), {"bucket": bucket}) == {"error": None, "payload": None}
    aws.client("s3").head_bucket(Bucket=bucket)


def test_workers_carry_the_servers_marker(aws: LocalAws) -> None:
    name = function(aws, "import os\ndef handler(event, context):\n    return os.getpid()\n")
    pid = invoke(aws, name)["payload"]
    assert pid in {process.pid for process in marked(aws.marker)}
