"""The sweep spec: one base job, a grid around it, and what counts as converging alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from blackwell.findings import Finding, FindingsError, from_validation_error
from blackwell.spec import ActivationCheckpointing, Auto, BudgetSpec, JobSpec, PositiveInt, Precision

MAX_POINTS = 200
"""Every point is a run; so many pointers stay far below Step Functions' 256 KiB, and below its history's limit."""
NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,19}$"
"""Short, because a run's name is the sweep's, the point's and six characters, 80 in all."""
AXES = ("precision", "micro_batch_size", "activation_checkpointing", "seq_length")
"""Keys of `training` that a sweep varies, in the order of a point's name."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _distinct(values: Sequence[Any]) -> bool:
    return len(set(map(str, values))) == len(values)


Length = Annotated[int, Field(strict=True, ge=2, le=4_194_304)]


class GridSpec(_Part):
    """Values of each axis; an axis that is left out keeps the base job's value."""

    precision: Annotated[list[Precision], Field(min_length=1)] | None = None
    micro_batch_size: Annotated[list[PositiveInt | Auto], Field(min_length=1)] | None = None
    activation_checkpointing: Annotated[list[ActivationCheckpointing], Field(min_length=1)] | None = None
    seq_length: Annotated[list[Length], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        findings = [
            Finding(id="BTS-008", path=axis, message="names a value twice", given=[str(v) for v in values])
            for axis in AXES
            if (values := getattr(self, axis)) is not None and not _distinct(values)
        ]
        if findings:
            raise FindingsError(findings)
        return self


class BaselineSpec(_Part):
    """The point that all others are compared with; an axis that is left out takes the base job's value if the grid has
    it, else the grid's first."""

    precision: Precision | None = None
    micro_batch_size: PositiveInt | Auto | None = None
    activation_checkpointing: ActivationCheckpointing | None = None
    seq_length: Length | None = None


class ConvergenceSpec(_Part):
    """When two loss curves on identical data count as equivalent. Losses are in nats per token."""

    tolerance_nats: Annotated[float, Field(gt=0, le=1)] = 0.02
    """A precision may end this much above the baseline."""
    final_share: Annotated[float, Field(ge=0.05, le=0.9)] = 0.2
    """Share of the steps at the end over which the gap is averaged."""


class SweepSpec(_Part):
    """A base job and a grid around it. Seed, global batch and data order are the same at every point."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Executions of the same name share their finished points; without it a name made from base, grid and baseline."""
    base: JobSpec
    grid: GridSpec = GridSpec()
    baseline: BaselineSpec = BaselineSpec()
    baseline_repeats: Annotated[int, Field(strict=True, ge=0, le=8)] = 2
    """Runs of the baseline with other seeds: how far apart two runs end that differ in nothing else."""
    max_concurrency: Annotated[int, Field(strict=True, ge=1, le=40)] = 2
    """Runs at the same time."""
    budget: BudgetSpec | None = None
    """US dollars for the whole sweep; each point's run gets its share of it as its own budget."""
    convergence: ConvergenceSpec = ConvergenceSpec()
    full_run_tokens: Annotated[int, Field(strict=True, ge=1, le=100_000_000_000_000)] | None = None
    """Tokens of the run that the sweep decides about, for what the recommendation would save."""
    profile: bool = True
    """Profile three steps of every point, which shows its bottleneck."""
    schema_: Annotated[str | None, Field(alias="$schema")] = None
    """Ignored; editors read it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        findings = []
        for axis in AXES:
            wanted = getattr(self.baseline, axis)
            if wanted is not None and wanted not in self.values(axis):
                findings.append(
                    Finding(
                        id="BTS-007",
                        path=f"baseline.{axis}",
                        message="is not a value of the grid",
                        given=str(wanted),
                        legal=", ".join(str(v) for v in self.values(axis)),
                    )
                )
        if self.size > MAX_POINTS:
            findings.append(
                Finding(
                    id="BTS-503",
                    path="grid",
                    message="the grid and the baseline's repeats are too many points",
                    given=self.size,
                    legal=f"up to {MAX_POINTS}",
                )
            )
        if findings:
            raise FindingsError(findings)
        return self

    @property
    def size(self) -> int:
        """Points of the grid, the repeated baselines included."""
        total = 1
        for axis in AXES:
            total *= len(self.values(axis))
        return total + self.baseline_repeats

    @property
    def title(self) -> str:
        """The sweep's name."""
        if self.name is not None:
            return self.name
        document = self.model_dump(mode="json", by_alias=True, include={"base", "grid", "baseline"})
        return f"sweep-{hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:8]}"

    def values(self, axis: str) -> list[Any]:
        """The axis' values; the base job's where the grid has none."""
        given = getattr(self.grid, axis)
        return list(given) if given is not None else [getattr(self.base.training, axis)]

    def baseline_of(self, axis: str) -> Any:
        """The axis' value at the baseline."""
        wanted = getattr(self.baseline, axis)
        if wanted is not None:
            return wanted
        own, values = getattr(self.base.training, axis), self.values(axis)
        return own if own in values else values[0]

    def combinations(self) -> Iterator[tuple[dict[str, Any], int]]:
        """(values by axis, seed) of every point: the baseline, its repeats, the rest of the grid."""
        seed = self.base.training.seed
        first = {axis: self.baseline_of(axis) for axis in AXES}
        for repeat in range(self.baseline_repeats + 1):
            yield first, seed + repeat
        for values in product(*(self.values(axis) for axis in AXES)):
            combination = dict(zip(AXES, values, strict=True))
            if combination != first:
                yield combination, seed


def parse_sweep_spec(document: object) -> SweepSpec:
    """Checks a decoded JSON document.

    Raises:
        FindingsError: with every finding about the shape of the document; paths of the base job begin with `base`.
    """
    if not isinstance(document, dict):
        finding = Finding(
            id="BTS-001", message="a sweep spec is a JSON object", given=type(document).__name__, legal="an object"
        )
        raise FindingsError([finding])
    try:
        return SweepSpec.model_validate(document)
    except ValidationError as error:
        raise FindingsError(from_validation_error(error)) from None
