"""CloudFormation deletes nothing that something still standing depends on.

Stock ministack (1.5.33) goes on after a resource could not be deleted and takes away what that resource depends on:
after a failed teardown its own function and role would be gone, and no second `cdk destroy` could succeed.
"""

from __future__ import annotations

from typing import Any

from ministack.services import cloudformation
from ministack.services.cloudformation import engine, stacks

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the deletion of one resource."""
    seams.take(stacks, "_delete_stack_async")
    seams.take(engine, "_extract_deps")
    delete = seams.take(stacks, "_delete_resource")

    def delete_resource(
        resource_type: str,
        physical_id: str,
        properties: dict[str, Any],
        stack_name: str | None = None,
        logical_id: str | None = None,
    ) -> None:
        stack = cloudformation._stacks.get(stack_name) or {}
        if stack.get("StackStatus") == "DELETE_IN_PROGRESS" and logical_id is not None:
            _refuse_while_needed(stack, logical_id)
        delete(resource_type, physical_id, properties, stack_name, logical_id)

    stacks._delete_resource = delete_resource


def _refuse_while_needed(stack: dict[str, Any], logical_id: str) -> None:
    """Resources go in reverse order of dependency: one that still stands and needs this one has failed to go."""
    definitions = (stack.get("_template") or {}).get("Resources", {})
    standing = stack.get("_resources", {})
    needed_by = sorted(
        other
        for other, record in standing.items()
        if other != logical_id
        and record.get("ResourceStatus") == "DELETE_FAILED"
        and logical_id in engine._extract_deps(definitions.get(other, {}), set(definitions))
    )
    if needed_by:
        raise ValueError(f"kept, because {', '.join(needed_by)} depends on it and could not be deleted")
