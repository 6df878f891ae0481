"""The Python API, for scripts and notebooks: `from blackwell import JobSpec, plan, submit`.

from blackwell import JobSpec, plan, submit

job = JobSpec.model_validate({"model": "8b", ...})
print(plan(job).cost.expected_usd)
run = submit(job)
for progress in run.follow():
    print(progress.line())
print(run.report()["final_loss"])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackwell.findings import FindingsError
from blackwell.names import DEFAULT_STAGE, stack_name
from blackwell.planning import Facts, Plan, plan_job
from blackwell.spec import JobSpec, parse_job_spec
from blackwell.spec_file import load_job_file

if TYPE_CHECKING:
    from blackwell.client import Client, Progress, RunState

Job = JobSpec | Mapping[str, Any] | Path | str
"""A spec, its JSON document, or a JSON or YAML file."""


def job_spec(job: Job) -> JobSpec:
    """The checked spec.

    Raises:
        FindingsError: with every finding about its shape.
        OSError: the file cannot be read.
    """
    if isinstance(job, JobSpec):
        return job
    return load_job_file(Path(job)) if isinstance(job, str | Path) else parse_job_spec(dict(job))


def plan(job: Job, facts: Facts | None = None) -> Plan:
    """What a job means in memory, speed, time and money; calls nothing. `plan(job).ok` says whether it may start.

    Raises:
        FindingsError: there is no legal spec, or nothing that can be planned.
    """
    return plan_job(job_spec(job), facts)


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was started on a deployed stack."""

    name: str
    client: Client

    def follow(self) -> Iterator[Progress]:
        """What happens in it, as it happens, until it ends."""
        return self.client.follow(self.name)

    def status(self) -> RunState:
        """Where it stands now."""
        return self.client.status(self.name)

    def report(self) -> dict[str, Any]:
        """Its report. Raises RunNotFound before its end."""
        return self.client.report(self.name)

    def page(self) -> bytes:
        """Its report as an HTML page. Raises RunNotFound before its end."""
        return self.client.document(self.name, "report.html")

    def stop(self) -> None:
        """Stops it; its checkpoints stay."""
        self.client.stop(self.name)


def submit(job: Job, run: str | None = None, *, stage: str = DEFAULT_STAGE, session: Any = None) -> Run:
    """Plans a job and starts its run on the stage's stack; `session` is a boto3 session, by default the environment's.

    Raises:
        FindingsError: the plan refuses it, or the run's name is taken; nothing was started.
        StackNotFound: the stage has no deployed stack.
    """
    from blackwell.client import Client

    spec = job_spec(job)
    planned = plan_job(spec)
    if not planned.ok:
        raise FindingsError(planned.findings)
    client = Client.from_stack(stack_name(stage), session)
    return Run(client.submit(spec, run).run, client)
