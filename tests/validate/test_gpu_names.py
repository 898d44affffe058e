"""Names of GPUs in tables, and the profiles that describe them."""

from __future__ import annotations

import pytest

from simulator.described.load import profile_names
from simulator.tables.spellings import profile_name_of, stated_memory_gb


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_describes_itself_in_capitals_or_not(name):
    assert profile_name_of(name.upper(), profile_names()) == name


@pytest.mark.parametrize(
    ("gpu", "profile"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("a100-80gb", "a100-sxm-80gb"),
        ("A100", "a100-sxm-80gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100 40 GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("8xH100", "h100-sxm-80gb"),
        ("H100SXM5 80G", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("H100-SXM5-80GB", "h100-sxm-80gb"),
        ("H100-PCIe", "h100-pcie-80gb"),
        ("NVIDIA H100 (HBM2e, 500 W)", "h100-hbm2e-96gb-500w"),
        ("DGX H200", "h200-sxm-141gb"),
        ("B200 192GB", "b200-sxm-180gb"),
        ("B200-SXM", "b200-sxm-180gb"),
        ("GB200", "gb200-nvl72"),
        ("GB200 SXM", "gb200-nvl72"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-32gb"),
        ("V100", "v100-sxm2-32gb"),
        ("V100-SXM2", "v100-sxm2-32gb"),
        ("DGX-1 V100", "dgx1-v100-32gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("H20-3e", "h20"),
        ("V100-PCIe-16GB", "v100-pcie-16gb"),
        ("V100-PCIE-32GB", "v100-pcie-32gb"),
        ("H100 NVL 94GB", "h100-nvl-94gb"),
        ("GH200 144GB", "gh200-144gb"),
        ("RTX PRO 6000 Blackwell Server", "rtx-pro-6000-blackwell-96gb"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada-48gb"),
        ("GB10 (DGX Spark class)", "gb10-dgx-spark"),
        ("MI250X (8 GCD/node)", "mi250x"),
        ("NVIDIA L4", "l4-24gb"),
        ("A40", "a40-48gb"),
        ("Tesla T4", "t4-16gb"),
        ("NVIDIA L40", "l40-48gb"),
        ("NVIDIA A10", "a10-24gb"),
        ("GeForce RTX 2080 Ti", "rtx-2080ti-11gb"),
        ("Quadro RTX 8000", "quadro-rtx-8000-48gb"),
        ("NVIDIA TITAN RTX", "titan-rtx-24gb"),
        ("RTX 3090 Ti", "rtx-3090ti-24gb"),
        ("GeForce RTX 3090", "rtx-3090-24gb"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER 16GB", "rtx-4070ti-super-16gb"),
        ("Quadro RTX 6000", "quadro-rtx-6000-24gb"),
        ("RTX 6000 Ada", "rtx-6000-ada-48gb"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000-blackwell-96gb"),
        ("V100S-PCIE-32GB", "v100s-pcie-32gb"),
    ],
)
def test_a_device_is_known_in_every_spelling(gpu, profile):
    assert profile_name_of(gpu, profile_names()) == profile


@pytest.mark.parametrize(
    "gpu",
    ["A100 48GB", "H800 PCIe",
     "L2", "MI50", "TPU v5e", "Intel Gaudi 2", "RTX 2080", "RTX PRO 5000", ""],
)  # fmt: skip
def test_another_device_is_none_of_them(gpu):
    assert profile_name_of(gpu, profile_names()) is None


def test_a_smaller_twin_states_its_own_memory():
    assert stated_memory_gb("V100-SXM2-16GB") == 16
    assert stated_memory_gb("V100-SXM2-32GB") is None
    assert stated_memory_gb("NVIDIA GH200 480GB") is None
