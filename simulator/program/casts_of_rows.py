"""What is cast around an 8-bit product whose operands have a scale for every row?

The forward product needs maxima over rows of the input, the input gradient over rows of the
output's gradient, and the weight gradient over columns of both, each of a tensor that is read
for its maxima and read again to be cast. Input gradients are scaled by a kernel of their own.
Nothing is cast before it is gathered. Casts and scales of weights and their gradients are left
out.

Source: torchao, ``float8/config.py`` and ``float8_ops.py``: without fast accumulation, as in
backward, the scales are applied to what cuBLAS returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.program.layer import Gemm, Region, Split, Stream


def casts_of_rows(product: Gemm, *, element_bytes: float, operand_bytes: float) -> Iterator[Stream]:
    """Kernels around a product, or around those that it stands for.

    Args:
        product: The product on a single device.
        element_bytes: Bytes of an activation [B].
        operand_bytes: Bytes of what it is cast to [B].
    """
    name, is_row = product.name, product.split is Split.ROW
    inputs, outputs = product.m * product.k, product.m * product.n
    by_rows, by_columns = 2 * element_bytes + operand_bytes, element_bytes + operand_bytes
    scaled = product.products * 2 * element_bytes
    input_region = Region.TENSOR if is_row else Region.WHOLE
    output_region = Region.WHOLE if is_row else Region.TENSOR
    input_bytes = inputs * by_rows, inputs * (by_columns + scaled)
    yield Stream(f"{name}_input_cast", *input_bytes, input_region, kernels=2)
    yield _maxima_of_columns(f"{name}_input_maxima", inputs * element_bytes, input_region)
    output_bytes = 0.0, outputs * (by_rows + by_columns)
    yield Stream(f"{name}_output_cast", *output_bytes, output_region, kernels=2)
    yield _maxima_of_columns(f"{name}_output_maxima", outputs * element_bytes, output_region)


def _maxima_of_columns(name: str, num_bytes: float, region: Region) -> Stream:
    return Stream(name, 0.0, num_bytes, region, reduces_rows=True)
