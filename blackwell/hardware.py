"""GPUs, instances, their prices, and which dimensions each precision can take; every figure with source and date.

The planner's only source of hardware facts. Units: memory in GiB (2^30 bytes), speed in dense TFLOPS, bandwidth per
GPU in GB/s (10^9) and one way, prices in US dollars per instance and hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from blackwell.findings import Finding, FindingsError
from blackwell.spec import Precision

GIB = 2**30
GB = 10**9


def _peaks(
    bf16: float, fp8: float | None = None, fp4: float | None = None, *, tf32: float
) -> Mapping[Precision, float]:
    peaks = {Precision.FP32: tf32, Precision.FP16: bf16, Precision.BF16: bf16}
    if fp8 is not None:
        peaks |= {Precision.FP8: fp8, Precision.FP8_DELAYED: fp8}
    if fp4 is not None and fp8 is not None:
        peaks |= {Precision.MXFP8: fp8, Precision.NVFP4: fp4}
    return MappingProxyType(peaks)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as a training process sees it."""

    name: str
    compute_capability: tuple[int, int]
    """(0, 0) where it is no CUDA device."""
    memory_gib_nominal: float
    """What nvidia-smi reports."""
    memory_gib_usable: float
    """What CUDA reports as total memory, before any context."""
    peak_tflops: Mapping[Precision, float]
    """Dense peak; FP32 stands for TF32. A precision that is missing does not exist on this GPU."""
    hbm_tb_per_second: float
    nvlink_gb_per_second: float
    """One way, to all peers together; PCIe where there is no NVLink."""
    domain: int
    """GPUs that reach each other over NVLink."""
    source: str
    sustained: float = 1.0
    """What large matrix multiplications reach of the peak, relative to its generation's usual share: less under a low
    power limit."""

    def has(self, precision: Precision) -> bool:
        """True where the tensor cores take this format."""
        return precision in self.peak_tflops


_HOPPER = "NVIDIA H100/H200 data sheets (dense); usable memory as torch reports it in out-of-memory messages"
_AMPERE = "NVIDIA A100 data sheet; usable memory as torch reports it in out-of-memory messages"
_B200 = (
    "HGX B200 sheet (dense 2.25/4.5/9 PFLOPS); nvidia-smi 183,359 MiB: Karpenter instance types 2026-07-20; CUDA total "
    "178.35 GiB and measured HBM 7.67 TB/s: pytorch/ao PR 4002"
)
_B300 = (
    "BF16 and FP8 as B200, FP4 13.5 PFLOPS: SemiAnalysis table; nvidia-smi 275,040 MiB: Karpenter instance types "
    "2026-07-20; usable is nominal less the share that B200 loses"
)

GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            Gpu("A100-40GB", (8, 0), 40.0, 39.39, _peaks(312, tf32=156), 1.555, 300, 8, _AMPERE),
            Gpu("A100-80GB", (8, 0), 80.0, 79.15, _peaks(312, tf32=156), 2.039, 300, 8, _AMPERE),
            Gpu("H100-80GB", (9, 0), 79.65, 79.10, _peaks(989, 1979, tf32=494), 3.35, 450, 8, _HOPPER),
            Gpu(
                "H100-96GB",
                (9, 0),
                95.58,
                94.99,
                _peaks(989, 1979, tf32=494),
                2.40,
                450,
                8,
                "torchtitan's test bed: H100 with 95 GiB of HBM2e at 500 W of 700 W (clock as the root); usable memory from its logs",
                sustained=0.845,
            ),
            Gpu("H200-141GB", (9, 0), 140.4, 139.80, _peaks(989, 1979, tf32=494), 4.80, 450, 8, _HOPPER),
            Gpu("B200", (10, 0), 179.06, 178.35, _peaks(2250, 4500, 9000, tf32=1100), 7.67, 900, 8, _B200),
            Gpu(
                "GB200",
                (10, 0),
                185.0,
                184.30,
                _peaks(2450, 4900, 9800, tf32=1200),
                7.67,
                900,
                72,
                "NVIDIA dgxc-benchmarking README (2,450/4,900); usable memory from torchtitan commit bcc09297a",
            ),
            Gpu("B300", (10, 3), 268.59, 267.50, _peaks(2250, 4500, 13500, tf32=1100), 7.67, 900, 8, _B300),
            Gpu(
                "GB300",
                (10, 3),
                277.8,
                276.70,
                _peaks(2450, 4900, 15000, tf32=1200),
                7.67,
                900,
                72,
                "GB300 NVL72 sheet: 1,080 PFLOPS dense FP4 over 72 GPUs; BF16 and FP8 as GB200; usable memory as reported by users",
            ),
            Gpu(
                "MI300X",
                (0, 0),
                192.0,
                191.98,
                _peaks(1307, 2615, tf32=654),
                5.30,
                448,
                8,
                "AMD MI300X data sheet (dense); sustained: SemiAnalysis 2024-12, 620 of 1,307 BF16 TFLOPS where H100 has 720 of 989",
                sustained=0.65,
            ),
            Gpu(
                "RTX-4090-24GB",
                (8, 9),
                23.99,
                23.64,
                _peaks(165, 330, tf32=83),
                1.008,
                32,
                1,
                "NVIDIA Ada GPU architecture paper (dense, FP32 accumulation)",
            ),
            Gpu(
                "RTX-A6000-48GB",
                (8, 6),
                47.99,
                47.54,
                _peaks(155, tf32=77),
                0.768,
                32,
                1,
                "NVIDIA RTX A6000 data sheet (dense)",
            ),
        )
    }
)

GPU_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "A100": "A100-80GB",
        "H100": "H100-80GB",
        "H200": "H200-141GB",
        "MI300": "MI300X",
        "RTX-4090": "RTX-4090-24GB",
        "RTX-A6000": "RTX-A6000-48GB",
        "A100-SXM4-40GB": "A100-40GB",
        "A100-SXM4-80GB": "A100-80GB",
    }
)


def gpu_by_name(name: str) -> Gpu | None:
    """The GPU of a table's name such as `H100-80GB` or `H100-96GB(500W)`; None for a name that is not known."""
    plain = name.split("(")[0].strip()
    return GPUS.get(plain) or GPUS.get(GPU_ALIASES.get(plain, ""))


@dataclass(frozen=True, slots=True)
class Price:
    """What an instance costs, and how well that is known."""

    usd_per_hour: float
    source: str
    region: str
    date: str
    verified: bool
    """False for an EC2 list price that stands in for SageMaker's own."""

    @property
    def label(self) -> str:
        """The words that go with the figure wherever it is shown."""
        return self.source if self.verified else f"unverified: {self.source}"


_KARPENTER = "EC2 list, not SageMaker (Karpenter's generated price table)"


def _ec2(usd: float) -> Price:
    return Price(usd, _KARPENTER, "us-east-1", "2026-07-20", verified=False)


@dataclass(frozen=True, slots=True)
class Instance:
    """One SageMaker training instance type."""

    name: str
    gpu: Gpu | None
    gpus: int
    vcpus: int
    host_memory_gib: float
    network_gbps: float
    efa_devices: int
    nvme_gb: int
    price: Price | None
    """On demand; None where no public price was found."""

    @property
    def default_processes(self) -> int:
        """Ranks per instance: one per GPU, one where there is none."""
        return self.gpus or 1

    @property
    def network_gb_per_second_per_gpu(self) -> float:
        """One way, each rank's share of the instance's network."""
        return self.network_gbps / 8 / self.default_processes

    @property
    def local_storage(self) -> bool:
        """True where SageMaker uses the instance's own NVMe and provisions no EBS volume."""
        return self.nvme_gb > 0


def _cpu(name: str, vcpus: int, memory: float, gbps: float, usd: float) -> Instance:
    return Instance(f"ml.{name}", None, 0, vcpus, memory, gbps, 0, 0, _ec2(usd))


INSTANCES: Mapping[str, Instance] = MappingProxyType(
    {
        item.name: item
        for item in (
            # Sizes: Karpenter's instance-type pages, 2026-07-20; p6e-gb200: AWS's P6e page (4 of the 72 GPUs per instance).
            Instance("ml.p6-b200.48xlarge", GPUS["B200"], 8, 192, 2048, 3200, 8, 30_400, _ec2(113.9328)),
            Instance("ml.p6-b300.48xlarge", GPUS["B300"], 8, 192, 4096, 6400, 16, 30_400, _ec2(142.416)),
            Instance("ml.p6e-gb200.36xlarge", GPUS["GB200"], 4, 144, 960, 1600, 4, 22_500, None),
            Instance("ml.p5.48xlarge", GPUS["H100-80GB"], 8, 192, 2048, 3200, 32, 30_400, _ec2(55.04)),
            Instance("ml.p5.4xlarge", GPUS["H100-80GB"], 1, 16, 256, 100, 1, 3_800, _ec2(6.88)),
            Instance("ml.p5e.48xlarge", GPUS["H200-141GB"], 8, 192, 2048, 3200, 32, 30_400, None),
            Instance("ml.p5en.48xlarge", GPUS["H200-141GB"], 8, 192, 2048, 3200, 16, 30_400, _ec2(63.296)),
            Instance("ml.p4d.24xlarge", GPUS["A100-40GB"], 8, 96, 1152, 400, 4, 8_000, _ec2(21.957642)),
            Instance("ml.p4de.24xlarge", GPUS["A100-80GB"], 8, 96, 1152, 400, 4, 8_000, _ec2(27.44705)),
            _cpu("c7i.xlarge", 4, 8, 1.562, 0.1785),
            _cpu("c7i.2xlarge", 8, 16, 3.125, 0.357),
            _cpu("c7i.4xlarge", 16, 32, 6.25, 0.714),
            _cpu("c7i.8xlarge", 32, 64, 12.5, 1.428),
            _cpu("m7i.2xlarge", 8, 32, 3.125, 0.4032),
            _cpu("m7i.4xlarge", 16, 64, 6.25, 0.8064),
            _cpu("m5.large", 2, 8, 0.75, 0.096),
            _cpu("m5.xlarge", 4, 16, 1.25, 0.192),
            _cpu("m5.2xlarge", 8, 32, 2.5, 0.384),
            _cpu("c5.2xlarge", 8, 16, 2.5, 0.34),
        )
    }
)


def instance(name: str) -> Instance:
    """The instance type of this name.

    Raises:
        FindingsError: BTS-108 for a type that the planner does not know.
    """
    found = INSTANCES.get(name)
    if found is None:
        near = get_close_matches(name, INSTANCES, 1, cutoff=0.4)
        raise FindingsError(
            [
                Finding(
                    id="BTS-108",
                    path="instance_type",
                    message="the planner has no figures for this instance type",
                    given=name,
                    legal=", ".join(INSTANCES),
                    nearest=near[0] if near else None,
                )
            ]
        )
    return found


@dataclass(frozen=True, slots=True)
class Alignment:
    """Multiples that a quantized matrix multiplication asks of its operands."""

    weight: int
    """Of every weight dimension."""
    tokens: int
    """Of micro_batch_size x seq_length."""


ALIGNMENT: Mapping[Precision, Alignment] = MappingProxyType(
    {
        Precision.FP32: Alignment(1, 1),
        Precision.FP16: Alignment(1, 1),
        Precision.BF16: Alignment(1, 1),
        # Transformer Engine: assert_dim_for_fp8_exec (last dimension 16, leading product 8), MXFP8 blocks of 32 both ways,
        # NVFP4 blocks of 16 both ways (is_quantizable).
        Precision.FP8: Alignment(16, 8),
        Precision.FP8_DELAYED: Alignment(16, 8),
        Precision.MXFP8: Alignment(32, 32),
        Precision.NVFP4: Alignment(16, 16),
    }
)
