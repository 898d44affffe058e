"""How fast does one GPU reach its host's memory and drives, and how fast do the CPUs update?

Everything that GPUs of a node share is divided evenly among those that a job uses, as NICs are:
its memory bandwidth, its drives, its cores, and the PCIe link behind a switch. Copies to the
host and from it have a direction of PCIe each; both pass the same memory.

Source: a latency and a rate; the launch of a kernel stands for the latency of a copy
(assumption). ZeRO-Infinity (arXiv 2104.07857, figure 2b) for what a DGX-2 reaches when all GPUs
copy at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.described.job import Cluster

TO_HOST, TO_DEVICE, HOST_MEMORY = "to_host", "to_device", "host_memory"
NVME_READ, NVME_WRITE = "nvme_read", "nvme_write"


def ranks_of_a_host(cluster: Cluster) -> int:
    """GPUs of a job that share the memory, drives and cores of a node."""
    return min(cluster.gpus, cluster.profile.network.gpus_per_node)


def host_ports_bytes_per_s(cluster: Cluster) -> Mapping[str, float]:
    """One GPU's share of every link of its host [B/s], by port name."""
    host = cluster.profile.host
    in_node = ranks_of_a_host(cluster)
    pcie = host.pcie_bytes_per_s / min(in_node, host.gpus_per_pcie_link)
    ports = {TO_HOST: pcie, TO_DEVICE: pcie}
    if host.memory_bandwidth_bytes_per_s:
        ports[HOST_MEMORY] = host.memory_bandwidth_bytes_per_s / in_node
    if host.nvme is not None:
        ports[NVME_READ] = host.nvme.read_bytes_per_s / in_node
        ports[NVME_WRITE] = host.nvme.write_bytes_per_s / in_node
    return ports


def copy_s(cluster: Cluster, link: str, num_bytes: float) -> float:
    """Time of a copy over one of the ports, with host memory at its other end, alone [s]."""
    ports = host_ports_bytes_per_s(cluster)
    rate = min(ports[link], ports.get(HOST_MEMORY, ports[link]))
    return cluster.profile.kernels.launch_s + num_bytes / rate


def host_update_s(cluster: Cluster, num_bytes: float, share: float = 1.0) -> float:
    """Time in which the cores of one GPU pass over so much memory in an optimizer step [s].

    Args:
        cluster: The job's.
        num_bytes: Read and written [B].
        share: What training reaches of the rate of the optimizer alone.
    """
    efficiency = cluster.profile.host.optimizer_efficiency * share
    return num_bytes / (efficiency * host_ports_bytes_per_s(cluster)[HOST_MEMORY])
