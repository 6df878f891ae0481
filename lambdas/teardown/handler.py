"""Custom resource that takes away what CloudFormation cannot: running work, jobs' records, bucket contents, log streams.

It depends on every other resource of the stack, so CloudFormation deletes it first and waits for its answer. Longer
work than one invocation may last goes on in the next one; the answer comes in any case before CloudFormation gives up:
nothing but the standard library is imported before there is someone to answer.
"""

from __future__ import annotations

import json
import time
from typing import Any

from lambdas.teardown import cfn

ANSWER_MARGIN_SECONDS = 120
"""Kept free before CloudFormation's own limit (ServiceTimeout), for the answer."""
INVOCATION_MARGIN_SECONDS = 60
"""Kept free before the function's own limit, to start the next invocation."""
CURSOR = "TeardownCursor"
"""Key in our own event: {step, begun, busy_at}; CloudFormation's events do not have it."""


def handler(event: dict[str, Any], context: Any) -> None:
    """CloudFormation's Create, Update and Delete, and our own continuation of a Delete."""
    physical_id = event.get("PhysicalResourceId") or f"teardown-{event['ResourceProperties'].get('Stage', '')}"
    if event["RequestType"] != "Delete":
        cfn.answer(event, ok=True, physical_id=physical_id)
        return
    try:
        answered = _delete(event, context)
    except Exception as error:
        cfn.answer(event, ok=False, physical_id=physical_id, reason=f"{type(error).__name__}: {error}")
        raise
    if answered is not None:
        cfn.answer(event, ok=not answered, physical_id=physical_id, reason=answered)


def _delete(event: dict[str, Any], context: Any) -> str | None:
    """Empty text when all is gone, what is left when time is up, None when another invocation goes on."""
    from functools import partial

    import boto3
    from aws_lambda_powertools import Logger
    from botocore.config import Config

    from lambdas.teardown.steps import STEPS, Teardown
    from lambdas.teardown.targets import Targets

    logger = Logger(service="teardown")
    targets = Targets.model_validate(event["ResourceProperties"])
    cursor = event.get(CURSOR) or {"step": 0, "begun": time.time()}
    answer_by = cursor["begun"] + targets.service_timeout_seconds - ANSWER_MARGIN_SECONDS
    pause_by = time.time() + context.get_remaining_time_in_millis() / 1000 - INVOCATION_MARGIN_SECONDS
    # a job's tags are one call each: with thousands of past jobs SageMaker throttles
    client = partial(boto3.client, config=Config(retries={"mode": "adaptive", "max_attempts": 10}))
    teardown = Teardown(targets=targets, client=client, begun=cursor["begun"], busy_at=cursor.get("busy_at"))

    for index in range(cursor["step"], len(STEPS)):
        name = STEPS[index].__name__
        while left := STEPS[index](teardown, min(answer_by, pause_by)):
            logger.info("left to do", extra={"step": name, "left": left[:10], "count": len(left)})
            if time.time() >= answer_by:
                what = ", ".join(left[:10])
                return f"{name}: after {targets.service_timeout_seconds} s there still is: {what}. Destroy once more."
            if time.time() >= pause_by:
                cursor = {"step": index, "begun": teardown.begun, "busy_at": teardown.busy_at}
                boto3.client("lambda").invoke(
                    FunctionName=context.invoked_function_arn,
                    InvocationType="Event",
                    Payload=json.dumps({**event, CURSOR: cursor}).encode(),
                )
                return None
            teardown.sleep(teardown.poll_seconds)
        logger.info("done", extra={"step": name})
    return ""
