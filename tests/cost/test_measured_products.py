"""Do products that a system's table knows take the time that was measured?"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

import simulator as sim
from simulator.cost import gemm
from simulator.cost.kernel_time import gemm_s, without_sustained_clock
from simulator.cost.measured_products import measured_over_modelled
from simulator.described.load import load_profile, profile_file
from simulator.errors import InputError
from simulator.program.price.roofline import roofline

TABLE = """dtype,m,n,k,batch,time_us
bf16,4096,4096,4096,,250
bf16,8192,8192,4096,1,900
bf16,2048,2048,2048,1,40
"""


@pytest.fixture
def measured(tmp_path):
    """H100 with a table of its own beside its profile, as cool benchmarks see it."""
    (tmp_path / "products.csv").write_text(TABLE)
    file = tmp_path / "ours.yaml"
    document = yaml.safe_load(profile_file("h100-sxm-80gb").read_text(encoding="utf-8"))
    document["kernels"]["table"] = "products.csv"
    file.write_text(yaml.safe_dump(document))
    return without_sustained_clock(load_profile(file))


def ratio(profile, *shape, batch=1, precision="bf16"):
    return measured_over_modelled(profile, *shape, batch=batch, precision=precision)


def test_a_measured_product_takes_the_time_that_was_measured(measured):
    assert gemm_s(measured, 4096, 4096, 4096) == pytest.approx(250e-6)


def test_a_long_training_slows_it_as_it_slows_the_model(measured):
    kernels = measured.kernels.model_copy(update={"sustained_clock": 0.7})
    hot = measured.model_copy(update={"kernels": kernels})
    slowed = gemm.gemm_s(hot, 4096, 4096, 4096) / gemm.gemm_s(measured, 4096, 4096, 4096)
    assert gemm_s(hot, 4096, 4096, 4096) == pytest.approx(250e-6 * slowed)


def test_between_two_measured_ones_the_nearer_tells_more(measured):
    near, far = ratio(measured, 4096, 4096, 4096), ratio(measured, 8192, 8192, 4096)
    between = ratio(measured, 5120, 5120, 4096)
    # Shepard's weights; the third product is more than a factor of two away.
    one, other = math.sqrt(2) * math.log2(5120 / 4096), math.sqrt(2) * math.log2(8192 / 5120)
    weights = one**-2, other**-2
    logs = weights[0] * math.log(near) + weights[1] * math.log(far)
    assert between == pytest.approx(math.exp(logs / sum(weights)))


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((16384, 8192, 4096), {}),  # larger than all
        ((2048, 8192, 2048), {}),  # between the largest and the smallest, but near to none
        ((4096, 4096, 4096), {"batch": 2}),
        ((4096, 4096, 4096), {"precision": "fp8"}),
    ],
)
def test_what_the_table_does_not_reach_is_the_models(measured, shape, more):
    assert ratio(measured, *shape, **more) is None
    assert gemm_s(measured, *shape, **more) == gemm.gemm_s(measured, *shape, **more)


def test_a_step_says_which_share_is_measured(tmp_path, monkeypatch):
    (tmp_path / "products.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    job = sim.load_job("llama3-8b-8xh100", {"cluster.kernels.table": "products.csv"})
    kinds = [(point.seconds, point.is_measured) for point in roofline(job)]
    share = sim.simulate(job).to_dict()["measured_kernel_share"]
    assert share == pytest.approx(sum(s for s, of in kinds if of) / sum(s for s, _ in kinds))
    assert 0 < share < 1
    assert "measured_kernel_share" not in sim.simulate(sim.load_job("llama3-8b-8xh100")).to_dict()


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ("dtype,m,n,k\nbf16,1,1,1\n", "lacks the columns time_us"),
        ("dtype,m,n,k,time_us\nbf16,1,x,1,2\n", "row 1, n"),
        ("dtype,m,n,k,time_us\nbf16,1,0,1,2\n", "row 1, n"),
        ("dtype,m,n,k,time_us\nbf17,1,1,1,2\n", "unknown dtype in row 1"),
        ("dtype,m,n,k,time_us\nbf16,1,1,1,\n", "no time_us in row 1"),
        ("op,dtype,m,n,k,time_us\nsoftmax,bf16,1,1,,3\n", "holds no matrix product"),
    ],
)
def test_a_wrong_table_is_refused_with_its_row(tmp_path, table, rule):
    (tmp_path / "t.csv").write_text(table)
    change = {"cluster.kernels.table": str(tmp_path / "t.csv")}
    with pytest.raises(InputError) as raised:
        sim.load_job("llama3-8b-8xh100", change)
    (fault,) = raised.value.faults
    assert fault.path == "cluster.kernels.table"
    assert rule in fault.rule


def test_measurements_of_a_calibration_are_a_table():
    file = str(Path(__file__).parents[2] / "reports" / "torch" / "cpu.kernels.csv")
    job = sim.load_job("llama3-8b-8xh100", {"cluster.kernels.table": file})
    products = job.cluster.profile.kernels.table.products
    assert len(products) == 180
    assert min(product.seconds for product in products) > 0


def test_parquet_holds_the_same_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv").write_text(TABLE)
    pandas.read_csv(tmp_path / "t.csv").to_parquet(tmp_path / "t.parquet")
    of_csv, of_parquet = (
        sim.load_job("llama3-8b-8xh100", {"cluster.kernels.table": str(tmp_path / name)})
        for name in ("t.csv", "t.parquet")
    )
    tables = [job.cluster.profile.kernels.table.products for job in (of_csv, of_parquet)]
    assert tables[0] == tables[1]
