"""What moves along which line of a grid adds up to the product, block by block in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product as every

import numpy as np
import pytest

from simulator.cost.collectives import CollectiveKind
from simulator.described.plan.plan_blocks import TensorGrid
from simulator.program.layer.pieces import Axis, Gemm, Move, Role, Split
from simulator.program.strategies.grid_products import cube_product, summa_product

Q = 2
M, K, N = 8, 12, 20
RNG = np.random.default_rng(0)
LINES = (Axis.ROW, Axis.COLUMN), (Axis.WEIGHT, Axis.INPUT, Axis.OUTPUT)
"""Which coordinate of a rank counts along each line, that of neighbours first."""

Rank = tuple[int, ...]
Blocks = dict[Rank, np.ndarray]


def block(matrix: np.ndarray, row: int, rows: int, column: int, columns: int) -> np.ndarray:
    m, n = (size // ways for size, ways in zip(matrix.shape, (rows, columns), strict=True))
    return matrix[row * m : (row + 1) * m, column * n : (column + 1) * n]


def on_a_square(matrix: np.ndarray) -> Blocks:
    """Rank (column, row) holds that block; neighbours share a row."""
    return {(j, i): block(matrix, i, Q, j, Q) for i, j in every(range(Q), range(Q))}


def coordinate(axis: Axis) -> int:
    return next(line.index(axis) for line in LINES if axis in line)


def line_through(rank: Rank, axis: Axis) -> list[Rank]:
    at = coordinate(axis)
    return [(*rank[:at], other, *rank[at + 1 :]) for other in range(Q)]


def summa(
    moves: tuple[Move, ...],
    held: Mapping[str, Blocks],
    multiply: Callable[[Mapping[str, np.ndarray]], np.ndarray],
) -> Blocks:
    """Every step: broadcast what is broadcast, multiply, and reduce or add up at home."""
    result: Blocks = {}
    ranks = list(every(range(Q), range(Q)))
    for step in range(Q):
        partial = {}
        for rank in ranks:
            operands = {name: blocks[rank] for name, blocks in held.items()}
            for move in moves:
                if move.kind is CollectiveKind.BROADCAST:
                    source = line_through(rank, move.axis)[step]
                    operands[move.name] = held[move.name][source]
            partial[rank] = multiply(operands)
        reduces = [move for move in moves if move.kind is CollectiveKind.REDUCE]
        for rank in ranks:
            for move in reduces:
                line = line_through(rank, move.axis)
                result[line[step]] = sum(partial[other] for other in line)
            if not reduces:
                result[rank] = result.get(rank, 0) + partial[rank]
    return result


def assert_same(found: Blocks, expected: Blocks) -> None:
    assert found.keys() == expected.keys()
    for rank, values in expected.items():
        np.testing.assert_allclose(found[rank], values, atol=1e-12)


def test_summa_gives_the_product_and_both_gradients_where_they_belong():
    a, b, gradient = RNG.random((M, K)), RNG.random((K, N)), RNG.random((M, N))
    product = summa_product(Gemm("mlp_up", M, N, K), TensorGrid("2d", Q, 1), 2.0)
    held = {
        "input": on_a_square(a), "weights": on_a_square(b), "result_gradient": on_a_square(gradient)
    }  # fmt: skip
    forward = summa(product.forward, held, lambda x: x["input"] @ x["weights"])
    assert_same(forward, on_a_square(a @ b))
    of_input = summa(product.input_gradient, held, lambda x: x["result_gradient"] @ x["weights"].T)
    assert_same(of_input, on_a_square(gradient @ b.T))
    of_weight = summa(product.weight_gradient, held, lambda x: x["input"].T @ x["result_gradient"])
    assert_same(of_weight, on_a_square(a.T @ gradient))


def test_the_head_multiplies_with_the_table_as_the_embedding_keeps_it():
    a, table, gradient = RNG.random((M, K)), RNG.random((N, K)), RNG.random((M, N))
    product = summa_product(Gemm("head", M, N, K, role=Role.LOGITS), TensorGrid("2d", Q, 1), 2.0)
    held = {
        "input": on_a_square(a), "weights": on_a_square(table),
        "result_gradient": on_a_square(gradient),
    }  # fmt: skip
    forward = summa(product.forward, held, lambda x: x["input"] @ x["weights"].T)
    assert_same(forward, on_a_square(a @ table.T))
    of_input = summa(product.input_gradient, held, lambda x: x["result_gradient"] @ x["weights"])
    assert_same(of_input, on_a_square(gradient @ table))
    of_weight = summa(product.weight_gradient, held, lambda x: x["result_gradient"].T @ x["input"])
    assert_same(of_weight, on_a_square(gradient.T @ a))


def on_a_cube(matrix: np.ndarray, rows: tuple[Axis, Axis], columns: Axis) -> Blocks:
    """Rows are cut along one line and then another, columns along the third."""
    outer, inner, across = (coordinate(axis) for axis in (*rows, columns))
    return {
        rank: block(matrix, rank[outer] * Q + rank[inner], Q * Q, rank[across], Q)
        for rank in every(range(Q), repeat=3)
    }


def gathered(blocks: Blocks, move: Move) -> Blocks:
    assert move.kind is CollectiveKind.ALL_GATHER
    return {
        rank: np.concatenate([blocks[other] for other in line_through(rank, move.axis)])
        for rank in blocks
    }


def scattered(partial: Blocks, move: Move) -> Blocks:
    assert move.kind is CollectiveKind.REDUCE_SCATTER
    found = {}
    for rank in partial:
        line = line_through(rank, move.axis)
        total = sum(partial[other] for other in line)
        found[rank] = np.split(total, Q)[rank[coordinate(move.axis)]]
    return found


def cube_forward(product, inputs: Blocks, weights: Blocks) -> Blocks:
    gather_input, gather_weights, scatter = product.forward
    a, b = gathered(inputs, gather_input), gathered(weights, gather_weights)
    return scattered({rank: a[rank] @ b[rank] for rank in a}, scatter)


@pytest.mark.parametrize("width", [N, 4 * K])
def test_two_products_on_a_cube_end_where_the_first_began(width):
    """The result of one has input and output exchanged, which the next one expects."""
    a, up, down = RNG.random((M, K)), RNG.random((K, width)), RNG.random((width, K))
    grid, weight = TensorGrid("3d", Q, Q), Axis.WEIGHT
    first = cube_product(
        Gemm("mlp_up", M, width, K, split=Split.COLUMN), grid, 2.0, keeps_gathered=True
    )
    second = cube_product(
        Gemm("mlp_down", M, K, width, split=Split.ROW), grid, 2.0, keeps_gathered=True
    )
    at_start = on_a_cube(a, (weight, Axis.INPUT), Axis.OUTPUT)
    between = cube_forward(first, at_start, on_a_cube(up, (Axis.OUTPUT, weight), Axis.INPUT))
    assert_same(between, on_a_cube(a @ up, (weight, Axis.OUTPUT), Axis.INPUT))
    at_end = cube_forward(second, between, on_a_cube(down, (Axis.INPUT, weight), Axis.OUTPUT))
    assert_same(at_end, on_a_cube(a @ up @ down, (weight, Axis.INPUT), Axis.OUTPUT))


def test_gradients_on_a_cube_end_where_inputs_and_weights_are():
    a, b, gradient = RNG.random((M, K)), RNG.random((K, N)), RNG.random((M, N))
    grid, weight = TensorGrid("3d", Q, Q), Axis.WEIGHT
    product = cube_product(
        Gemm("mlp_up", M, N, K, split=Split.COLUMN), grid, 2.0, keeps_gathered=True
    )
    gather_input, gather_weights, _ = product.forward
    inputs = gathered(on_a_cube(a, (weight, Axis.INPUT), Axis.OUTPUT), gather_input)
    weights = gathered(on_a_cube(b, (Axis.OUTPUT, weight), Axis.INPUT), gather_weights)
    gather_gradient, scatter_input = product.input_gradient
    (scatter_weight,) = product.weight_gradient
    back = gathered(on_a_cube(gradient, (weight, Axis.OUTPUT), Axis.INPUT), gather_gradient)
    of_input = scattered({r: back[r] @ weights[r].T for r in back}, scatter_input)
    assert_same(of_input, on_a_cube(gradient @ b.T, (weight, Axis.INPUT), Axis.OUTPUT))
    of_weight = scattered({r: inputs[r].T @ back[r] for r in back}, scatter_weight)
    assert_same(of_weight, on_a_cube(a.T @ gradient, (Axis.OUTPUT, weight), Axis.INPUT))
