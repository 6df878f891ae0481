"""Map states as AWS runs them: inline ones with their iterations, distributed ones of JSONata machines.

Stock ministack (1.5.33) ignores Items, ItemSelector, Output and Assign of a JSONata distributed Map: it runs one item,
the whole input, and reports success. ItemBatcher and ResultWriter are ignored too; here they are refused. What stock
does with inline Maps: `branches`.
"""

from __future__ import annotations

from typing import Any

from ministack.services import stepfunctions as sfn

from local.overlay import branches
from local.overlay.context import OverlayContext
from local.overlay.executions import Execution, current
from local.overlay.seams import Seams

NUMBERS = ("MaxConcurrency", "ToleratedFailurePercentage", "ToleratedFailureCount")
NOT_RUN_HERE = ("ItemBatcher", "ResultWriter")


def install(context: OverlayContext, seams: Seams) -> None:
    """Resolve what is JSONata, then let ministack run the children; `tasks` was installed before."""
    distributed = seams.take(sfn, "_run_distributed_map")
    seams.take(sfn, "_read_map_items")
    items = seams.take(sfn, "_run_map_items")
    run_sub_machine = sfn._run_sub_machine

    def run_distributed_map(
        state: dict[str, Any], raw_input: Any, effective: Any, iterator: Any, execution: Execution, ctx: dict[str, Any]
    ) -> tuple[Any, str | None]:
        for field in NOT_RUN_HERE:
            if field in state:
                raise sfn._ExecutionError("States.Runtime", f"the embedded AWS does not run {field}")
        if sfn._state_query_language(state, ctx) != "JSONata":
            result: tuple[Any, str | None] = distributed(state, raw_input, effective, iterator, execution, ctx)
            return result
        plain = {key: value for key, value in state.items() if key not in RESOLVED}
        for field in NUMBERS:
            if isinstance(state.get(field), str):
                plain[field] = sfn._jsonata_state_field(state, field, "number", raw_input, ctx)
        found = _items(state, raw_input, ctx)
        results, following = distributed(plain, found, found, iterator, execution, ctx)
        output = sfn._apply_jsonata_output(state, raw_input, ctx, result=results, default=results)
        sfn._apply_state_assign(state, raw_input, ctx, result=results)
        return output, following

    def run_child(states: Any, start_at: Any, data: Any, execution: Execution, ctx: dict[str, Any]) -> Any:
        parent = current.get()
        if "mapRunArn" not in execution or parent is None or parent is execution:
            return run_sub_machine(states, start_at, data, execution, ctx)
        context.waiting.add_child(parent["executionArn"], execution["executionArn"])
        token = current.set(execution)
        try:
            return run_sub_machine(states, start_at, data, execution, ctx)
        finally:
            current.reset(token)

    def run_map_items(state: dict[str, Any], raw_input: Any, execution: Execution, ctx: dict[str, Any]) -> Any:
        processor = state.get("Iterator") or state.get("ItemProcessor", {})
        if (processor.get("ProcessorConfig") or {}).get("Mode") == "DISTRIBUTED":
            return items(state, raw_input, execution, ctx)
        return branches.run_items(items, state, raw_input, execution, ctx)

    sfn._run_map_items = run_map_items
    sfn._run_distributed_map = run_distributed_map
    sfn._run_sub_machine = run_child


RESOLVED = frozenset({"Items", "ItemReader", "ItemSelector", "Output", "Assign"})


def _items(state: dict[str, Any], raw_input: Any, ctx: dict[str, Any]) -> list[Any]:
    """The items after ItemReader or Items, and ItemSelector."""
    if "ItemReader" in state:
        reader = dict(state["ItemReader"])
        reader["Arguments"] = sfn._apply_jsonata_template(reader.get("Arguments") or {}, raw_input, ctx)
        items = sfn._read_map_items(reader, raw_input, ctx)
    elif "Items" in state:
        items = sfn._apply_jsonata_template(state["Items"], raw_input, ctx)
    else:
        items = raw_input
    if not isinstance(items, list):
        raise sfn._ExecutionError("States.QueryEvaluationError", "the items of a Map state must be an array")
    if "ItemSelector" not in state:
        return items
    return [
        sfn._apply_jsonata_template(
            state["ItemSelector"], raw_input, {**ctx, "Map": {"Item": {"Index": index, "Value": value}}}
        )
        for index, value in enumerate(items)
    ]
