# %% [markdown]
# # A first look
# From a job spec to a plan, to a choice, to a run. Every cell up to the last runs without an AWS account:
# `python examples/first_look.py`, or open the file as a notebook (`# %%` are its cells).

# %%
from pathlib import Path

from blackwell import FindingsError, JobSpec, plan, submit

ROOT = Path(__file__).resolve().parent

# %% [markdown]
# A job is a JSON document; a preset, a mapping, or a file will do.

# %%
job = JobSpec.model_validate(
    {
        "model": "8b",
        "data": {"train": "datasets/corpus/"},
        "training": {"precision": "bf16", "micro_batch_size": 2, "global_batch_size": 128, "seq_length": 8192,
                     "steps": 1000},
        "capacity": [{"kind": "on-demand", "instance_type": "ml.p6-b200.48xlarge"}],
    }
)  # fmt: skip
print(f"{job.shape().num_parameters / 1e9:.2f} B parameters")

# %% [markdown]
# What it needs, how fast it will be, what it will cost.

# %%
planned = plan(job)
print(f"peak memory {planned.memory.peak_gb:.0f} of {planned.memory.usable_gb:.0f} GB")
if planned.throughput is not None and planned.cost.expected_usd is not None:
    print(f"{planned.throughput.tokens_per_second:,.0f} tokens/s, ${planned.cost.expected_usd:,.0f}")

# %% [markdown]
# The same job in every precision of the hardware.

# %%
speeds = {}
for precision in ("bf16", "fp8", "mxfp8", "nvfp4"):
    other = job.model_copy(update={"training": job.training.model_copy(update={"precision": precision})})
    throughput = plan(other.model_dump(mode="json", by_alias=True)).throughput
    assert throughput is not None
    speeds[precision] = throughput.tokens_per_second
for precision, speed in speeds.items():
    print(f"{precision:<6} {speed:>10,.0f} tokens/s {speed / speeds['bf16']:.2f} x")

# %% [markdown]
# What cannot run is refused with every reason, before anything is started.

# %%
try:
    plan(job.model_dump(mode="json", by_alias=True) | {"budget": {"max_cost_usd": -1}, "modle": "8b"})
except FindingsError as refused:
    for finding in refused.findings:
        print(finding.line())

# %% [markdown]
# Whether the faster ones converge alike, a sweep says: `python -m blackwell sweep examples/sweeps/8b-b200-precisions.json`.
# With a deployed stack, the last cell starts the job and follows it.


# %%
def train() -> None:
    run = submit(ROOT / "jobs" / "tiny-cpu.json")
    for progress in run.follow():
        print(progress.line())
    print(run.report()["headline"])
