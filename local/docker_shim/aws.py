"""The command line `aws`, as far as a build needs it: any read of one service through the SDK, and the ECR password.

`aws ecr get-login-password` and `aws <service> <operation> [--parameter value]...` with `--query` (JMESPath),
`--output text|json`, `--region`, `--no-cli-pager`. Parameters are taken by their botocore names; exit code 254 for an
error of the service, 252 for bad arguments, as the real one.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jmespath  # type: ignore[import-untyped]
from botocore import xform_name

EXIT_SERVICE_ERROR = 254
EXIT_BAD_ARGUMENTS = 252


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, parameters, position = _split(words)
    if "version" in options:
        print("aws-cli/2 (stand-in)")
        return 0
    if len(position) < 2:
        print("usage: aws <service> <operation> [parameters]", file=sys.stderr)
        return EXIT_BAD_ARGUMENTS
    return _call(position[0], position[1], parameters, options)


_GLOBAL = ("region", "query", "output", "profile", "endpoint-url")


def _split(words: list[str]) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    options: dict[str, str] = {}
    parameters: dict[str, list[str]] = {}
    position: list[str] = []
    current: list[str] | None = None
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            if name in _GLOBAL:
                options[name] = value if has_value else (queue.pop(0) if queue else "")
                current = None
            elif name.startswith("no-") or name == "version":
                options[name] = "1"
            else:
                current = parameters.setdefault(name, [])
                if has_value:
                    current.append(value)
        elif current is not None:
            current.append(word)
        else:
            position.append(word)
    return options, parameters, position


def _call(service: str, command: str, parameters: dict[str, list[str]], options: dict[str, str]) -> int:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    service = "s3" if service == "s3api" else service  # the command's name of S3's plain operations
    client = boto3.client(service, region_name=options.get("region") or None)  # type: ignore[call-overload]
    try:
        if (service, command) == ("ecr", "get-login-password"):
            token = client.get_authorization_token()["authorizationData"][0]["authorizationToken"]
            print(base64.b64decode(token).decode().partition(":")[2])
            return 0
        operation = client.meta.method_to_api_mapping.get(command.replace("-", "_"))
        if operation is None:
            print(f"aws: argument operation: invalid choice: {command}", file=sys.stderr)
            return EXIT_BAD_ARGUMENTS
        shape = client.meta.service_model.operation_model(operation).input_shape
        members = {xform_name(name, "-"): name for name in (shape.members if shape else {})}
        unknown = parameters.keys() - members.keys()
        if unknown:
            print(f"aws: unknown options: {', '.join(sorted('--' + u for u in unknown))}", file=sys.stderr)
            return EXIT_BAD_ARGUMENTS
        arguments = {members[k]: _value(shape.members[members[k]], v) for k, v in parameters.items()}
        answer = getattr(client, command.replace("-", "_"))(**arguments)
    except ClientError as error:
        print(f"\n{error}", file=sys.stderr)
        return EXIT_SERVICE_ERROR
    except BotoCoreError as error:
        print(f"\n{error}", file=sys.stderr)
        return EXIT_BAD_ARGUMENTS
    answer.pop("ResponseMetadata", None)
    result = jmespath.search(options["query"], answer) if "query" in options else answer
    _print(result, options.get("output", "json"))
    return 0


def _value(shape: Any, words: list[str]) -> Any:
    """Shorthand (`a=b,c=d`), JSON, or plain text, by the parameter's shape."""
    if words and words[0][:1] in "[{":
        return json.loads(" ".join(words))
    if shape.type_name == "list":
        return [_value(shape.member, [word]) for word in words]
    if shape.type_name in ("structure", "map"):
        return dict(pair.partition("=")[::2] for pair in ",".join(words).split(","))
    text = " ".join(words)
    if shape.type_name == "blob":  # the command takes a file's name
        return Path(text).read_bytes()
    if shape.type_name in ("integer", "long"):
        return int(text)
    return text.lower() == "true" if shape.type_name == "boolean" else text


def _print(result: Any, output: str) -> None:
    if output == "text":
        rows = result if isinstance(result, list) else [result]
        print("\t".join("None" if row is None else str(row) for row in rows))
    elif result is not None:
        print(json.dumps(result, indent=4, default=str))


if __name__ == "__main__":
    sys.exit(main())
