"""EventBridge rule targets: what cannot be delivered goes to the target's dead-letter queue; functions are retried.

Stock ministack (1.5.33) stores a target's DeadLetterConfig and never uses it, and calls a target function once, where
AWS invokes it asynchronously: two more attempts, then the function's own failure destination.
"""

from __future__ import annotations

import contextvars
import json
import logging
from typing import Any

from ministack.core.arn import parse_arn
from ministack.services import eventbridge, lambda_svc, sns, sqs
from ministack.services import stepfunctions as sfn

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams

log = logging.getLogger("local")

_undelivered: contextvars.ContextVar[list[tuple[str, str]] | None] = contextvars.ContextVar("undelivered", default=None)
"""(error code, message) of the delivery under way; the dispatchers of ministack only log."""


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the deliveries."""
    invoke = seams.take(eventbridge, "_invoke_target")
    to_sqs = seams.take(eventbridge, "_dispatch_to_sqs")
    to_sns = seams.take(eventbridge, "_dispatch_to_sns")
    seams.take(eventbridge, "_dispatch_to_lambda")
    seams.take(eventbridge, "_dispatch_to_stepfunctions")
    seams.take(lambda_svc, "invoke_async_with_retry")

    def to_lambda(arn: str, payload: str) -> None:
        func, config, name = lambda_svc._get_func_record_for_ref(arn)
        if not func or not config:
            _fail("RESOURCE_NOT_FOUND", f"function {name} does not exist")
            return
        lambda_svc.invoke_async_with_retry(lambda_svc._execution_record_for_config(func, config), json.loads(payload))

    def to_states(arn: str, payload: str) -> None:
        if sfn._resolve_state_machine_arn(arn) is None:
            _fail("RESOURCE_NOT_FOUND", f"state machine {arn} does not exist")
            return
        status, _, body = sfn._start_execution({"stateMachineArn": arn, "input": payload})
        if status >= 400:
            _fail("SDK_CLIENT_ERROR", body.decode())

    def to_queue(spec: Any, payload: str, parameters: dict[str, Any] | None = None) -> None:
        if sqs._queue_by_arn(str(spec)) is None:
            _fail("RESOURCE_NOT_FOUND", f"queue {spec.resource} does not exist")
            return
        to_sqs(spec, payload, parameters)

    def to_topic(arn: str, payload: str) -> None:
        if arn not in sns._topics:
            _fail("RESOURCE_NOT_FOUND", f"topic {arn} does not exist")
            return
        to_sns(arn, payload)

    def invoke_target(target: dict[str, Any], event: dict[str, Any], rule: dict[str, Any], view: Any = None) -> None:
        failures: list[tuple[str, str]] = []
        token = _undelivered.set(failures)
        try:
            invoke(target, event, rule, view)
        finally:
            _undelivered.reset(token)
        queue = (target.get("DeadLetterConfig") or {}).get("Arn")
        for code, message in failures:
            log.warning("event not delivered to %s: %s", target.get("Arn"), message)
            if queue:
                whole = (view or eventbridge._pattern_event_view(event)).event_with_detail()
                _to_dead_letters(queue, whole, rule, target, code, message)

    eventbridge._dispatch_to_lambda = to_lambda
    eventbridge._dispatch_to_stepfunctions = to_states
    eventbridge._dispatch_to_sqs = to_queue
    eventbridge._dispatch_to_sns = to_topic
    eventbridge._invoke_target = invoke_target


def _fail(code: str, message: str) -> None:
    failures = _undelivered.get()
    if failures is not None:
        failures.append((code, message))


def _to_dead_letters(
    queue: str, event: dict[str, Any], rule: dict[str, Any], target: dict[str, Any], code: str, message: str
) -> None:
    attributes = {
        "ERROR_CODE": code,
        "ERROR_MESSAGE": message,
        "RULE_ARN": rule.get("Arn", ""),
        "TARGET_ARN": target.get("Arn", ""),
    }
    url = sqs._queue_url(parse_arn(queue).resource)
    sqs._act_send_message(
        {
            "QueueUrl": url,
            "MessageBody": json.dumps(event),
            "MessageAttributes": {
                key: {"DataType": "String", "StringValue": value or "-"} for key, value in attributes.items()
            },
        },
        url,
    )
