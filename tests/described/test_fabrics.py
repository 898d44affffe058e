"""The library of fabrics."""

from __future__ import annotations

from typing import get_args

import pytest

from simulator.described.cluster.network import FabricKind, library_fabric
from simulator.errors import InputError


@pytest.mark.parametrize("kind", get_args(FabricKind))
def test_every_kind_of_fabric_is_in_the_library(kind: FabricKind) -> None:
    fabric = library_fabric(kind, nics_per_node=4, nic_bytes_per_s=25e9)
    assert (fabric.kind, fabric.nics_per_node, fabric.nic_bytes_per_s) == (kind, 4, 25e9)
    assert 0.5 < fabric.efficiency <= 1
    assert fabric.bulk_latency_s >= fabric.latency_s


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="use one of ib, roce"):
        library_fabric("token-ring", 1, 1e9)  # type: ignore[arg-type]
