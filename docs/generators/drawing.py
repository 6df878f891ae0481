"""The drawing of the workflow, from the state machine that is deployed: a Mermaid flow chart."""

from __future__ import annotations

import re

_SHAPES = {
    "Task": ("[", "]"),
    "Choice": ("{", "}"),
    "Wait": ("([", "])"),
    "Succeed": ("([", "])"),
    "Fail": ("([", "])"),
}
_CONDITION = re.compile(r"\{%|%\}|\$states\.input\.")


def workflow_drawing() -> str:
    """Mermaid text, fenced: GitHub and most viewers draw it."""
    from stacks.workflow import AWAIT_SECONDS, FUNCTION_STATES, states  # loads the CDK, which takes seconds

    found = states()
    hours = AWAIT_SECONDS // 3600
    lines = ["```mermaid", "flowchart TD"]
    for name, state in found.items():
        left, right = _SHAPES[state["Type"]]
        lines.append(f'    {name}{left}"{_label(name, state["Type"], FUNCTION_STATES.get(name))}"{right}')
    for name, state in found.items():
        if "Next" in state:
            lines.append(f"    {name} --> {state['Next']}")
        for choice in state.get("Choices", ()):
            lines.append(f'    {name} -->|"{_words(choice["Condition"])}"| {choice["Next"]}')
        if "Default" in state:
            lines.append(f"    {name} -->|otherwise| {state['Default']}")
        for catch in state.get("Catch", ()):
            if catch["Next"] != state.get("Next"):
                lines.append(f'    {name} -.->|"{_error(catch["ErrorEquals"], hours)}"| {catch["Next"]}')
    ends = [name for name, state in found.items() if state["Type"] == "Fail"]
    lines += ["    classDef bad stroke:#b3261e", f"    class {','.join(ends)} bad", "```"]
    return "\n".join(lines)


def _label(name: str, kind: str, function: str | None) -> str:
    if function is not None:
        return f"{name}<br/><i>lambdas/{function}</i>"
    return f"{name}<br/><i>wait</i>" if kind == "Wait" else name


def _words(condition: str) -> str:
    return " ".join(_CONDITION.sub("", condition).split()).replace('"', "'").replace(">", "&gt;")


def _error(names: list[str], hours: int) -> str:
    if names == ["States.Timeout"]:
        return f"after {hours} h"
    return "any error" if names == ["States.ALL"] else ", ".join(names)
