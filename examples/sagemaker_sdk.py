"""Our job spec and our image through the SageMaker Python SDK's ModelTrainer, for teams that stay with it.

    pip install -r examples/requirements-sagemaker.txt
    python examples/sagemaker_sdk.py JOB.json --name my-run --outputs outputs.json --image REPOSITORY@sha256:...

`outputs.json` is what `python -m blackwell outputs --json` prints; the image is what `python -m blackwell show RUN`
names. The spec is planned and checked as always, and the job trains, checkpoints and logs as always. What the workflow
adds is not there: no remedy after a failure, no budget guard, no report.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from blackwell.api import plan
from blackwell.findings import FindingsError
from blackwell.request import LaunchContext, check_request, training_job_request

LEFT_OUT = {
    "TrainingJobName": "the SDK makes the name, from base_job_name and the time",
    "ProfilerConfig": "ModelTrainer has no such argument",
}
"""Parts of our request that ModelTrainer does not take; the image's own entry point is the launcher."""


def request_for(job: Path, name: str, image: str, outputs: dict[str, str]) -> dict[str, Any]:
    """The CreateTrainingJob request that the workflow would send for the first capacity entry.

    Raises:
        FindingsError: the plan or SageMaker would refuse it.
    """
    planned = plan(job)
    if not planned.ok:
        raise FindingsError(planned.findings)
    context = LaunchContext(
        run=name,
        attempt=1,
        stage=outputs["JobPrefix"].rpartition("-")[2],
        job_prefix=outputs["JobPrefix"],
        image=image,
        role_arn=outputs["ExecutionRoleArn"],
        artifacts_bucket=outputs["ArtifactsBucket"],
        checkpoint_bucket=outputs["CheckpointBucket"],
    )
    request = training_job_request(planned.resolved, context)
    if findings := check_request(request):
        raise FindingsError(findings)
    return request


def snake(value: Any) -> Any:
    """Keys as the SDK writes them: `MaxRuntimeInSeconds` becomes `max_runtime_in_seconds`."""
    if isinstance(value, dict):
        return {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower(): snake(inner) for key, inner in value.items()}
    return [snake(inner) for inner in value] if isinstance(value, list) else value


def model_trainer(request: dict[str, Any]) -> Any:
    """A ModelTrainer that sends this request; needs the SDK."""
    from sagemaker.core import shapes
    from sagemaker.core.training.configs import Compute, Networking
    from sagemaker.train.model_trainer import ModelTrainer

    algorithm = request["AlgorithmSpecification"]
    # where our request names no volume the SDK adds 30 GB; instances with disks of their own do without it
    compute = snake(request["ResourceConfig"]) | {"enable_managed_spot_training": request["EnableManagedSpotTraining"]}
    network = snake(request.get("VpcConfig", {}))
    if "EnableNetworkIsolation" in request:
        network["enable_network_isolation"] = request["EnableNetworkIsolation"]
    trainer = ModelTrainer(
        training_image=algorithm["TrainingImage"],
        training_input_mode=algorithm["TrainingInputMode"],
        role=request["RoleArn"],
        base_job_name=request["TrainingJobName"],
        hyperparameters=request["HyperParameters"],
        environment=request["Environment"],
        compute=Compute(**compute),
        networking=Networking(**network) if network else None,
        stopping_condition=shapes.StoppingCondition(**snake(request["StoppingCondition"])),
        output_data_config=shapes.OutputDataConfig(**snake(request["OutputDataConfig"])),
        checkpoint_config=shapes.CheckpointConfig(**snake(request["CheckpointConfig"])),
        input_data_config=[_channel(shapes, channel) for channel in request.get("InputDataConfig", [])],
        tags=[shapes.Tag(**snake(tag)) for tag in request["Tags"]],
    )
    trainer.with_metric_definitions([shapes.MetricDefinition(**snake(d)) for d in algorithm["MetricDefinitions"]])
    trainer.with_retry_strategy(shapes.RetryStrategy(**snake(request["RetryStrategy"])))
    if "InfraCheckConfig" in request:
        trainer.with_infra_check_config(shapes.InfraCheckConfig(**snake(request["InfraCheckConfig"])))
    return trainer


def _channel(shapes: Any, channel: dict[str, Any]) -> Any:
    source = shapes.S3DataSource(**snake(channel["DataSource"]["S3DataSource"]))
    return shapes.Channel(
        channel_name=channel["ChannelName"],
        input_mode=channel["InputMode"],
        data_source=shapes.DataSource(s3_data_source=source),
    )


def main() -> None:
    """Plans, and trains until the job ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--outputs", type=Path, required=True)
    given = parser.parse_args()
    request = request_for(given.job, given.name, given.image, json.loads(given.outputs.read_text()))
    model_trainer(request).train(wait=True, logs=True)


if __name__ == "__main__":
    main()
