"""The run table: every read and conditional write that the workflow makes.

Writes are conditional wherever two callers may meet, so that a repeated, delayed or reordered call changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from blackwell.names import RUN_ITEM_ATTEMPT
from blackwell.runs import (
    BUILD_LOCK_PREFIX,
    AttemptItem,
    AttemptStatus,
    BuildLock,
    RunItem,
    RunStatus,
    decode,
    encode,
    key,
)
from lambdas.common.aws import client, error_code
from lambdas.common.environment import environment

_CONDITION_FAILED = "ConditionalCheckFailedException"


class RunStore:
    """Access to the stack's run table."""

    def __init__(self, table: str | None = None) -> None:
        self._table = table or environment().run_table
        self._db = client("dynamodb")

    # --- the run -------------------------------------------------------------------------------------------------

    def create_run(self, item: RunItem) -> bool:
        """False where another run of this name exists; a repeated call for the same execution is fine."""
        return self._put(
            item.to_attributes(),
            "attribute_not_exists(#run) OR (execution_arn = :arn AND started_at = :start)",
            {"#run": "run"},
            {":arn": item.execution_arn, ":start": item.started_at},
        )

    def run(self, run: str) -> RunItem | None:
        found = self._get(run, RUN_ITEM_ATTEMPT)
        return RunItem.from_attributes(found) if found else None

    def update_run(self, run: str, **values: Any) -> None:
        self._update(run, RUN_ITEM_ATTEMPT, values)

    def end_run(self, run: str, *, only_from: RunStatus | None = RunStatus.RUNNING, **values: Any) -> bool:
        """Sets the run's end; False where it does not stand at `only_from` (any more)."""
        if only_from is None:
            self._update(run, RUN_ITEM_ATTEMPT, values)
            return True
        return self._update(run, RUN_ITEM_ATTEMPT, values, "#s = :from", {"#s": "status"}, {":from": only_from.value})

    # --- attempts ------------------------------------------------------------------------------------------------

    def create_attempt(self, item: AttemptItem) -> bool:
        """False where the attempt is there already."""
        return self._put(item.to_attributes(), "attribute_not_exists(#run)", {"#run": "run"}, {})

    def attempt(self, run: str, attempt: int) -> AttemptItem:
        """The attempt. Raises LookupError where there is none."""
        found = self._get(run, attempt)
        if found is None:
            raise LookupError(f"run {run!r} has no attempt {attempt}")
        return AttemptItem.from_attributes(found)

    def attempts(self, run: str) -> list[AttemptItem]:
        """All attempts in order."""
        pages = self._db.get_paginator("query").paginate(
            TableName=self._table,
            ConsistentRead=True,
            KeyConditionExpression="#run = :run AND #attempt > :zero",
            ExpressionAttributeNames={"#run": "run", "#attempt": "attempt"},
            ExpressionAttributeValues=encode({":run": run, ":zero": RUN_ITEM_ATTEMPT}),
        )
        return [AttemptItem.from_attributes(item) for page in pages for item in page["Items"]]

    def update_attempt(self, run: str, attempt: int, **values: Any) -> None:
        self._update(run, attempt, values)

    def launched(self, run: str, attempt: int, **values: Any) -> None:
        """Records the job; an attempt that has ended with its job keeps its end."""
        self._update(
            run, attempt, values | {"status": AttemptStatus.LAUNCHED.value}, "#s <> :ended OR attribute_not_exists(job_arn)",
            {"#s": "status"},
            {":ended": AttemptStatus.ENDED.value},
        )  # fmt: skip

    def register_token(self, run: str, attempt: int, token: str, entered_at: str) -> bool:
        """Makes `token` the one to answer; False where a later one is registered or the attempt has its verdict."""
        return self._update(
            run,
            attempt,
            {"task_token": token, "token_at": entered_at},
            "attribute_exists(#run) AND #s <> :ended AND (attribute_not_exists(token_at) OR token_at <= :at)",
            {"#run": "run", "#s": "status"},
            {":ended": AttemptStatus.ENDED.value, ":at": entered_at},
        )

    # --- all runs ------------------------------------------------------------------------------------------------

    def unfinished(self) -> Iterator[str]:
        """Names of runs that are running, or have a job that nobody has closed yet."""
        seen: set[str] = set()
        pages = self._db.get_paginator("scan").paginate(
            TableName=self._table,
            ConsistentRead=True,
            FilterExpression="#s IN (:running, :launched)",
            ProjectionExpression="#run",
            ExpressionAttributeNames={"#s": "status", "#run": "run"},
            ExpressionAttributeValues=encode(
                {":running": RunStatus.RUNNING.value, ":launched": AttemptStatus.LAUNCHED.value}
            ),
        )
        for page in pages:
            for item in page["Items"]:
                run = str(decode(item)["run"])
                if run not in seen:
                    seen.add(run)
                    yield run

    # --- the build lock ------------------------------------------------------------------------------------------

    def build_lock(self, tag: str) -> BuildLock | None:
        found = self._get(BUILD_LOCK_PREFIX + tag, RUN_ITEM_ATTEMPT)
        return BuildLock.from_attributes(found) if found else None

    def take_build_lock(self, tag: str, *, generation: int, lease_until: str, seen: BuildLock | None) -> bool:
        """Takes the right to start the build; False where somebody else changed the lock since it was `seen`."""
        lock = BuildLock(run=BUILD_LOCK_PREFIX + tag, generation=generation, lease_until=lease_until)
        if seen is None:
            return self._put(lock.to_attributes(), "attribute_not_exists(#run)", {"#run": "run"}, {})
        return self._put(
            lock.to_attributes(),
            "generation = :generation AND lease_until = :lease",
            {},
            {":generation": seen.generation, ":lease": seen.lease_until},
        )

    def set_build(self, tag: str, generation: int, build_id: str) -> None:
        """Says which build the lock's generation is."""
        self._update(
            BUILD_LOCK_PREFIX + tag, RUN_ITEM_ATTEMPT, {"build_id": build_id}, "generation = :generation", {},
            {":generation": generation},
        )  # fmt: skip

    # --- DynamoDB ------------------------------------------------------------------------------------------------

    def _get(self, run: str, attempt: int) -> Any:
        answer = self._db.get_item(TableName=self._table, Key=key(run, attempt), ConsistentRead=True)
        return answer.get("Item")

    def _put(self, item: Any, condition: str, names: dict[str, str], values: dict[str, Any]) -> bool:
        arguments: dict[str, Any] = {"TableName": self._table, "Item": item, "ConditionExpression": condition}
        if names:
            arguments["ExpressionAttributeNames"] = names
        if values:
            arguments["ExpressionAttributeValues"] = encode(values)
        try:
            self._db.put_item(**arguments)
        except ClientError as error:
            if error_code(error) == _CONDITION_FAILED:
                return False
            raise
        return True

    def _update(
        self,
        run: str,
        attempt: int,
        values: dict[str, Any],
        condition: str = "attribute_exists(#run)",
        names: dict[str, str] | None = None,
        condition_values: dict[str, Any] | None = None,
    ) -> bool:
        sets = {f"#f{i}": name for i, name in enumerate(values)}
        all_names = sets | (names if names is not None else {"#run": "run"})
        all_values = {f":f{i}": value for i, value in enumerate(values.values())} | (condition_values or {})
        try:
            self._db.update_item(
                TableName=self._table,
                Key=key(run, attempt),
                UpdateExpression="SET " + ", ".join(f"{n} = :f{i}" for i, n in enumerate(sets)),
                ConditionExpression=condition,
                ExpressionAttributeNames=all_names,
                ExpressionAttributeValues=encode(all_values),
            )
        except ClientError as error:
            if error_code(error) == _CONDITION_FAILED:
                return False
            raise
        return True
