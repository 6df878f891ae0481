"""A host's own disk: the /opt/ml folder of the container contract, laid out before the container starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from local.sagemaker.jobs import Job

ML_ROOT = "/opt/ml"
LOOPBACK_INTERFACE = "lo"


def host_names(count: int) -> list[str]:
    """Names of a job's hosts, as SageMaker has them."""
    return [f"algo-{n}" for n in range(1, count + 1)]


class Disk:
    """/opt/ml of one host of one start of a job; `root` is where it really lies."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, absolute: str) -> Path:
        """Where a path below /opt/ml lies."""
        return self.root / Path(absolute).relative_to(ML_ROOT)

    @property
    def failure(self) -> Path:
        return self.root / "output" / "failure"

    def prepare(self, job: Job, index: int) -> None:
        """Empty folders and the configuration files of host `index` (from 0)."""
        shutil.rmtree(self.root, ignore_errors=True)
        for folder in ("input/config", "input/data", "model", "output/data", "checkpoints"):
            (self.root / folder).mkdir(parents=True)
        record = job.record
        hosts = host_names(job.instance_count)
        group = {"instance_group_name": "homogeneousCluster", "instance_type": job.instance_type, "hosts": hosts}
        self._config(
            "resourceconfig",
            {
                "current_host": hosts[index],
                "current_instance_type": job.instance_type,
                "current_group_name": "homogeneousCluster",
                "hosts": hosts,
                "instance_groups": [group],
                "network_interface_name": LOOPBACK_INTERFACE if len(hosts) > 1 else "eth0",
            },
        )
        self._config("hyperparameters", record.get("HyperParameters", {}))
        mode = record["AlgorithmSpecification"]["TrainingInputMode"]
        self._config(
            "inputdataconfig",
            {
                channel["ChannelName"]: {
                    "TrainingInputMode": channel.get("InputMode", mode),
                    "S3DistributionType": _distribution(channel),
                    "RecordWrapperType": channel.get("RecordWrapperType", "None"),
                }
                for channel in record.get("InputDataConfig", [])
            },
        )
        if "CheckpointConfig" in record:
            self._config("checkpointconfig", record["CheckpointConfig"])

    def _config(self, name: str, content: dict[str, Any]) -> None:
        (self.root / "input" / "config" / f"{name}.json").write_text(json.dumps(content))

    def discard(self) -> None:
        """The disk is gone with its instance; configuration and output stay for whoever looks for a cause."""
        for folder in ("input/data", "model", "checkpoints"):
            shutil.rmtree(self.root / folder, ignore_errors=True)


def _distribution(channel: dict[str, Any]) -> str:
    source = channel["DataSource"]["S3DataSource"]
    return str(source.get("S3DataDistributionType", "FullyReplicated"))


def shares(channel: dict[str, Any], index: int, count: int) -> tuple[int, int]:
    """(share, shares) of a channel's objects that host `index` gets."""
    return (index, count) if _distribution(channel) == "ShardedByS3Key" else (0, 1)
