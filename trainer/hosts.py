"""The hosts of a job: who this one is, how many workers it starts, where they meet, and what all hosts agree on.

Facts come from SageMaker's resourceconfig.json; without it there is one host.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from blackwell.findings import Finding, FindingsError
from blackwell.verdict import FailureRecord, Verdict
from trainer.judge import AGREED, first_line
from trainer.settings import Places

RESOURCE_CONFIG = "resourceconfig.json"

ENV_RENDEZVOUS = "BLACKWELL_RENDEZVOUS"
"""`host:port` where the hosts meet, in place of the first host's name; for hosts that share one machine."""
ENV_STORE_FD = "BLACKWELL_STORE_FD"
"""File descriptor of the listening socket that rank 0 serves the rendezvous on; empty for the other ranks."""
ENV_HOST = "BLACKWELL_HOST"
"""This host's name for its workers: SageMaker's, which tells apart hosts that share one machine, too."""
DEFAULT_PORT = 29_400
AGREE_SECONDS = 300.0
"""How long a host waits for the others' word after its own workers ended."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """All hosts of the job, as this one sees them."""

    names: tuple[str, ...]
    index: int
    interface: str | None
    address: str
    port: int
    """Where rank 0 listens in the first start; the hosts' own store is one below. Single hosts choose a free port."""

    @property
    def count(self) -> int:
        return len(self.names)


def find_hosts(places: Places, environment: Mapping[str, str] = os.environ) -> Hosts:
    """Reads resourceconfig.json.

    Raises:
        FindingsError: BTS-005 for a file that is not SageMaker's, or an environment that is not ours.
    """
    try:
        config = places.read_config(RESOURCE_CONFIG)
        names = tuple(sorted(config.get("hosts") or ["localhost"]))
        index = names.index(config.get("current_host", names[0]))
        address, port = ("127.0.0.1" if len(names) == 1 else names[0]), DEFAULT_PORT
        if environment.get(ENV_RENDEZVOUS):
            address, _, text = environment[ENV_RENDEZVOUS].rpartition(":")
            port = int(text)
    except (ValueError, TypeError) as error:
        raise FindingsError([Finding(
            id="BTS-005", path=RESOURCE_CONFIG, message=str(error),
            legal=f"SageMaker's resourceconfig.json; {ENV_RENDEZVOUS}, where set, as host:port",
        )]) from None  # fmt: skip
    return Hosts(names, index, config.get("network_interface_name"), address, port)


def count_gpus(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> int:
    """GPUs of this host, without importing torch: device files, narrowed by CUDA_VISIBLE_DEVICES."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))


def network_environment(hosts: Hosts, infiniband: Path = Path("/sys/class/infiniband")) -> dict[str, str]:
    """NCCL's and libfabric's settings for several hosts: the interface, and EFA where the host has it."""
    if hosts.count == 1:
        return {}
    variables: dict[str, str] = {}
    if hosts.interface and hosts.interface != "lo":
        variables |= {"NCCL_SOCKET_IFNAME": hosts.interface, "GLOO_SOCKET_IFNAME": hosts.interface}
    if infiniband.is_dir() and any(path.name.startswith(("efa", "rdmap")) for path in infiniband.iterdir()):
        variables |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}
    return variables


def listen(port: int) -> socket.socket:
    """A listening socket that is handed to rank 0, so that no other process can take the port in between.

    Args:
        port: 0 for any free one.
    """
    server = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if server.family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind(("", port))
    server.listen(1024)
    return server


class HostLostError(RuntimeError):
    """Another host does not answer, or cannot be reached."""

    def record(self) -> FailureRecord:
        return FailureRecord(verdict=Verdict.HARDWARE, cause=str(self))


class Council:
    """What the launchers of several hosts agree on after every start; with one host its own word is the agreement.

    A small store on the first host holds each launcher's record. A host that says nothing in time is lost, and so is
    the first one when its store does not answer.

    Raises:
        HostLostError: the first host cannot be reached.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._store: Any = None
        if hosts.count > 1:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            with self._first_host():
                self._store = TCPStore(
                    hosts.address,
                    hosts.port - 1,
                    is_master=hosts.index == 0,
                    timeout=timedelta(seconds=AGREE_SECONDS),
                    wait_for_workers=False,
                )

    @contextmanager
    def _first_host(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # torch's DistNetworkError and DistStoreError, both RuntimeErrors, and OSErrors
            raise HostLostError(f"host {self._hosts.names[0]} is lost: {first_line(error)}") from error

    def tell_end(self, start: int) -> None:
        """Tells the others that the workers of this host have ended in this start."""
        if self._store is not None:
            with contextlib.suppress(HostLostError), self._first_host():  # `agree` will say so
                self._store.set(f"ended/{start}", "1")

    def somewhere_ended(self, start: int) -> bool:
        """True once any host's workers have ended in this start, or the first host is gone."""
        if self._store is None:
            return False
        try:
            with self._first_host():
                return bool(self._store.check([f"ended/{start}"]))
        except HostLostError:
            return True

    def agree(self, start: int, record: FailureRecord) -> FailureRecord:
        """The record that all hosts act on: the first failure that was not the consequence of another."""
        if self._store is None:
            return record
        records, deadline = [], time.monotonic() + AGREE_SECONDS
        try:
            with self._first_host():
                self._store.set(f"record/{start}/{self._hosts.index}", record.model_dump_json())
            for index in range(self._hosts.count):
                records.append(self._record(f"record/{start}/{index}", index, deadline - time.monotonic()))
        except HostLostError as lost:
            # what all ranks had agreed on holds without that host; only a new start would need it
            known = record if record.verdict in AGREED else worst([record, lost.record()])
            return known.model_copy(update={"detail": {**known.detail, "host_lost": True}})
        return worst(records)

    def _record(self, key: str, index: int, seconds: float) -> FailureRecord:
        try:
            self._store.wait([key], timedelta(seconds=max(1.0, seconds)))
            return FailureRecord.model_validate(json.loads(self._store.get(key)))
        except Exception as error:
            raise HostLostError(f"host {self._hosts.names[index]} is lost: {type(error).__name__}") from error

    def leave(self, start: int) -> None:
        """Keeps the store's host alive until the others have read the last records."""
        if self._store is None:
            return
        with contextlib.suppress(HostLostError), self._first_host():  # a host that is gone does not read
            self._store.set(f"left/{start}/{self._hosts.index}", "1")
            if self._hosts.index == 0:
                keys = [f"left/{start}/{index}" for index in range(self._hosts.count)]
                self._store.wait(keys, timedelta(seconds=20))


_ORDER = (
    Verdict.OUT_OF_MEMORY,
    Verdict.DIVERGED,
    Verdict.USER_ERROR,
    Verdict.HUNG,
    Verdict.HARDWARE,
    Verdict.STOPPED,
    Verdict.PLAN_ENDED,
    Verdict.COMPLETED,
)


def worst(records: list[FailureRecord]) -> FailureRecord:
    """The record that explains the others: a lost link is the last thing to believe."""
    return min(records, key=lambda record: _ORDER.index(record.verdict))
