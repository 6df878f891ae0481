"""Step Functions writes its execution history to the log group of the machine's logging configuration.

Stock ministack (1.5.33) never writes it, and stores a template's configuration in CloudFormation's spelling, so that
DescribeStateMachine shows an empty one.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ministack.services import stepfunctions as sfn
from ministack.services.cloudformation import provisioners

from local.overlay.context import OverlayContext
from local.overlay.executions import Execution
from local.overlay.seams import Seams

FATAL = frozenset({"ExecutionFailed", "ExecutionTimedOut", "ExecutionAborted"})
ERROR_ENDINGS = ("Failed", "TimedOut", "Aborted")
EXECUTION_DATA = ("input", "output", "parameters", "cause")
"""Members of an event's details that only `includeExecutionData` shows."""


def install(context: OverlayContext, seams: Seams) -> None:
    """Write history events to the log; `executions` was installed before and owns `_add_event`."""
    create = seams.take(provisioners, "_sfn_state_machine_create")
    update = seams.take(provisioners, "_sfn_state_machine_update")
    handlers = provisioners._RESOURCE_HANDLERS["AWS::StepFunctions::StateMachine"]
    add_event, start = sfn._add_event, sfn._start_execution

    def create_machine(logical_id: str, properties: dict[str, Any], stack_name: str) -> Any:
        return create(logical_id, _with_api_spelling(properties), stack_name)

    def update_machine(physical_id: str, old: dict[str, Any], new: dict[str, Any], *rest: Any) -> Any:
        return update(physical_id, _with_api_spelling(old), _with_api_spelling(new), *rest)

    def add(execution: Execution, event_type: str, details: dict[str, Any] | None = None) -> Any:
        event = add_event(execution, event_type, details)
        if event is not None:
            write(execution, event)
        return event

    def start_execution(data: dict[str, Any]) -> Any:
        before = set(sfn._executions.keys())
        response = start(data)
        if response[0] == 200:
            arn = json.loads(response[2])["executionArn"]
            if arn not in before:
                write(sfn._executions[arn], sfn._executions[arn]["events"][0])
        return response

    def write(execution: Execution, event: dict[str, Any]) -> None:
        machine = sfn._state_machines.get(execution["stateMachineArn"]) or {}
        logging = machine.get("loggingConfiguration") or {}
        if not _is_logged(logging.get("level", "OFF"), event["type"]):
            return
        for destination in logging.get("destinations") or []:
            arn = destination["cloudWatchLogsLogGroup"]["logGroupArn"]
            group = arn.partition(":log-group:")[2].removesuffix(":*")
            stream = f"states/{machine['name']}/{datetime.now(UTC):%Y-%m-%d-%H-%M}/{execution['name']}"
            context.put_log(group, stream, [json.dumps(_log_event(execution, event, logging))])

    handlers.update(create=create_machine, update=update_machine)
    sfn._add_event = add
    sfn._start_execution = start_execution


def _is_logged(level: str, event_type: str) -> bool:
    if level == "ERROR":
        return event_type.endswith(ERROR_ENDINGS)
    return level == "ALL" or (level == "FATAL" and event_type in FATAL)


def _log_event(execution: Execution, event: dict[str, Any], logging: dict[str, Any]) -> dict[str, Any]:
    details: dict[str, Any] = next((value for key, value in event.items() if key.endswith("EventDetails")), {})
    if not logging.get("includeExecutionData"):
        details = {key: value for key, value in details.items() if key not in EXECUTION_DATA}
    return {
        "id": str(event["id"]),
        "type": event["type"],
        "details": details,
        "previous_event_id": str(event["id"] - 1),
        "event_timestamp": str(int(datetime.now(UTC).timestamp() * 1000)),
        "execution_arn": execution["executionArn"],
        "redrive_count": "0",
    }


def _with_api_spelling(properties: dict[str, Any]) -> dict[str, Any]:
    if "LoggingConfiguration" not in properties:
        return properties
    return {**properties, "LoggingConfiguration": _lower(properties["LoggingConfiguration"])}


def _lower(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[0].lower() + key[1:]: _lower(item) for key, item in value.items()}
    return [_lower(item) for item in value] if isinstance(value, list) else value
