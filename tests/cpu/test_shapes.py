"""Kernels of the shapes that programs have, as loops and as threads side by side, against numpy."""

import numpy as np
import pytest
import shapes

from hal_cpu import _compile


@pytest.fixture(params=[True, False], ids=["loops", "side_by_side"])
def run(request, device, monkeypatch):
    """Compile, and dispatch in order; return what the arrays have then."""
    monkeypatch.setattr(_compile, "LOOPS", request.param)

    def run(source, launches, *arrays, constants=(), **defines):
        program = device.compile(source, defines=defines)
        buffers = [device.upload(np.ascontiguousarray(array)) for array in arrays]
        for name, value in dict(constants).items():
            device.queue.write(program.global_variable(name, dtype=value.dtype), value).wait()
        for name, grid, block, picked, *more in launches:
            arguments = [buffers[each] if isinstance(each, int) else each for each in picked]
            shared = more[0] if more else 0
            device.queue.dispatch(
                program[name], grid=grid, block=block, args=tuple(arguments), shared_memory=shared
            )
        return [buffer.numpy(timeout=120) for buffer in buffers]

    return run


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def test_histogram_in_shared_memory(run, rng):
    data = rng.integers(0, 256, 5000, "u1")
    n = np.int32(data.size)
    _, bins = run(shapes.HISTOGRAM, [("histogram", 5, 96, (0, 1, n))], data, np.zeros(64, "u4"))
    assert (bins == np.bincount(data % 64, minlength=64)).all()


def test_prefix_sum_of_several_blocks(run, rng):
    x = rng.integers(-50, 50, 900, "i4")
    n = np.int32(x.size)
    launches = [("scan", 8, 64, (0, 1, 2, n), 4 * 140), ("add", 8, 64, (1, 2, n))]
    _, found, _ = run(shapes.SCAN, launches, x, np.zeros(900, "i4"), np.zeros(8, "i4"))
    assert (found == np.cumsum(x) - x).all()


def test_transposition_by_padded_tiles(run, rng):
    x = rng.random((50, 77), "f4")
    launch = ("transpose", (5, 4), (16, 4), (0, 1, np.int32(77), np.int32(50)))
    found, _ = run(shapes.TRANSPOSE, [launch], np.zeros((77, 50), "f4"), x, TILE=16, ROWS=4)
    assert (found == x.T).all()


def test_bitonic_sort_within_blocks_and_across(run, rng):
    keys = rng.integers(0, 1000, 512, "u4")
    launches = [("sort_blocks", 4, 64, (0,))]
    size = 256
    while size <= keys.size:
        stride = size // 2
        while stride:
            launches.append(("step", 8, 64, (0, np.int32(stride), np.int32(size))))
            stride //= 2
        size *= 2
    (found,) = run(shapes.SORT, launches, keys, SIZE=128)
    assert (found == np.sort(keys)).all()


def test_stencil_with_a_halo(run, rng):
    x = rng.integers(0, 100, (40, 37)).astype("f4")
    sizes = np.int32(37), np.int32(40), np.float32(0.25)
    launches = [("heat", (3, 3), (16, 16), pair + sizes) for pair in ((0, 1), (1, 0))]
    found = run(shapes.STENCIL, launches, x, x)
    for which in (1, 0):
        y = x.copy()
        y[1:-1, 1:-1] += 0.25 * (
            x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]
        )
        assert (found[which] == y).all()
        x = y


def test_sum_by_shuffles_that_the_last_block_ends(run, rng):
    x = rng.integers(-1000, 1000, 3001).astype("f8")
    launch = ("total", 7, 128, (0, 1, 2, np.int32(x.size)))
    _, _, found = run(shapes.REDUCTION, [launch] * 2, x, np.zeros(7), np.zeros(1))
    assert found == [x.sum()]


def test_softmax_in_one_pass(run, rng):
    x = rng.normal(0, 30, (5, 333)).astype("f4")
    launch = ("softmax", 5, 64, (0, 1, np.int32(333)))
    _, found = run(shapes.SOFTMAX, [launch], x, np.zeros_like(x), BLOCK=64)
    powers = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-30)


def test_product_of_matrices_with_vector_loads(run, rng):
    a, b = (rng.integers(-8, 9, (64, 64)).astype("f4") for _ in range(2))
    launch = ("product", (2, 2), (8, 8), (0, 1, 2, np.int32(64)))
    _, _, found = run(shapes.PRODUCT, [launch], a, b, np.zeros((64, 64), "f4"))
    assert (found == a @ b).all()


def test_product_of_a_sparse_matrix(run, rng):
    matrix = rng.integers(-9, 10, (75, 60)) * (rng.random((75, 60)) < 0.15)
    matrix[3] = 0
    rows, at = np.nonzero(matrix)
    starts = np.r_[0, np.cumsum(np.bincount(rows, minlength=75))].astype("i4")
    x = rng.integers(-9, 10, 60).astype("f4")
    arrays = starts, at.astype("i4"), matrix[rows, at].astype("f4"), x
    for name, threads in (("by_threads", 75), ("by_lanes", 75 * 8)):
        launch = (name, -(-threads // 64), 64, (np.int32(75), 0, 1, 2, 3, 4))
        found = run(shapes.SPARSE, [launch], *arrays, np.full(75, 7, "f4"))[4]
        assert (found == matrix @ x).all()


def test_breadth_first_search_by_frontiers(run, rng):
    n, depth = 200, 8
    ends = rng.integers(0, n, (500, 2))
    ends = ends[np.argsort(ends[:, 0], kind="stable")]
    starts = np.r_[0, np.cumsum(np.bincount(ends[:, 0], minlength=n))].astype("i4")
    expected = np.full(n, -1)
    expected[0], border = 0, {0}
    for level in range(1, depth + 1):
        reached = {b for a, b in ends.tolist() if a in border and expected[b] == -1}
        expected[list(reached)] = level
        border = reached
    distance, queues = np.full(n, -1, "i4"), np.zeros((depth + 1, n), "i4")
    distance[0] = 0
    sizes = np.zeros(depth + 1, "i4")
    sizes[0] = 1
    arrays = [starts, ends[:, 1].astype("i4"), distance]
    arrays += [
        each for level in range(depth + 1) for each in (queues[level], sizes[level : level + 1])
    ]
    launches = [
        ("level", 4, 64, (0, 1, 2, *(3 + 2 * level + k for k in range(4)), np.int32(level + 1)))
        for level in range(depth)
    ]
    assert (run(shapes.SEARCH, launches, *arrays, LIMIT=16)[2] == expected).all()


def test_queens_by_stacks_in_shared_memory(run):
    n = 8
    pairs = [(a, b) for a in range(n) for b in range(n) if abs(a - b) > 1]
    columns = np.array([1 << a | 1 << b for a, b in pairs], "u4")
    left = np.array([1 << a + 2 | 1 << b + 1 for a, b in pairs], "u4")
    right = np.array([(1 << a) >> 2 | (1 << b) >> 1 for a, b in pairs], "u4")
    launch = ("queens", 1, 64, (0, 1, 2, 3, np.int32(len(pairs)), np.int32(2)))
    found = run(shapes.QUEENS, [launch], columns, left, right, np.zeros(1, "i4"), N=n)[3]
    assert found == [92]


def test_elimination_step_by_step(run, rng):
    n = 35
    a = rng.random((n, n), "f4") + n * np.eye(n, dtype="f4")
    launches = []
    for k in range(n - 1):
        blocks = -(-(n - 1 - k) // 16)
        launches.append(("scale", blocks, 16, (0, np.int32(n), np.int32(k))))
        launches.append(("update", (blocks, blocks), (16, 16), (0, np.int32(n), np.int32(k))))
    (found,) = run(shapes.ELIMINATION, launches, a)
    lower, upper = np.tril(found, -1) + np.eye(n), np.triu(found)
    np.testing.assert_allclose(lower.astype("f8") @ upper, a, rtol=1e-5, atol=1e-4)


def test_blur_with_weights_in_constant_memory(run, rng):
    x = rng.integers(0, 256, (9, 130)).astype("f4")
    weights = np.array([1, 8, 28, 56, 70, 56, 28, 8, 1], "f4") / 256
    launch = ("rows", (3, 9), 64, (0, 1, np.int32(130), np.int32(130)))
    found, _ = run(shapes.BLUR, [launch], np.zeros_like(x), x, constants={"weights": weights})
    assert (found == [np.convolve(row, weights, "same") for row in x]).all()


def test_alignment_along_diagonals(run, rng):
    size = 24
    a, b = (rng.integers(97, 101, size, "i1") for _ in range(2))
    expected = np.zeros((size + 1, size + 1), int)
    expected[0] = expected[:, 0] = -2 * np.arange(size + 1)
    for y in range(1, size + 1):
        for x in range(1, size + 1):
            same = expected[y - 1, x - 1] + (2 if a[y - 1] == b[x - 1] else -1)
            expected[y, x] = max(same, expected[y, x - 1] - 2, expected[y - 1, x] - 2)
    launch = ("align", 1, size, (0, 1, 2, np.int32(size), np.int32(2)))
    found = run(shapes.WAVEFRONT, [launch], a, b, np.zeros((size + 1) ** 2, "i4"), S=size)[2]
    assert (found.reshape(size + 1, -1)[:, 1:] == expected[:, 1:]).all()


def test_scan_by_warps(run, rng):
    x = rng.integers(-50, 50, 1000, "i4")
    launch = ("scan", 4, 256, (0, 1, np.int32(x.size)))
    _, found = run(shapes.WARP_SCAN, [launch], x, np.zeros_like(x))
    expected = [np.cumsum(x[first : first + 256]) for first in range(0, x.size, 256)]
    assert (found == np.concatenate(expected)).all()


def test_softmax_by_warps(run, rng):
    x = rng.normal(0, 30, (5, 333)).astype("f4")
    launch = ("softmax", 5, 96, (0, 1, np.int32(333)))
    _, found = run(shapes.WARP_SOFTMAX, [launch], x, np.zeros_like(x))
    powers = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-30)


def test_compaction_by_votes(run, rng):
    x = rng.integers(0, 1000, 1000, "i4")
    launch = ("keep", 8, 128, (0, 1, 2, np.int32(x.size)))
    _, kept, count = run(shapes.COMPACTION, [launch], x, np.zeros(1000, "i4"), np.zeros(1, "i4"))
    expected = x[x % 3 == 0]
    assert count == [expected.size]
    assert (np.sort(kept[: expected.size]) == np.sort(expected)).all()


def test_forces_between_bodies_by_tiles(run, rng):
    bodies = rng.random((128, 4), "f4")
    launch = ("forces", 4, 32, (0, 1, np.int32(128)), 32 * 16)
    _, found = run(
        shapes.BODIES, [launch], bodies.view("V16"), np.zeros((128, 4), "f4").view("V16")
    )
    places = bodies[:, :3].astype("f8")
    apart = places[None] - places[:, None]
    factor = bodies[:, 3] / ((apart**2).sum(2) + 1e-2) ** 1.5
    expected = (apart * factor[:, :, None]).sum(1)
    np.testing.assert_allclose(
        found.view("f4").reshape(128, 4)[:, :3], expected, rtol=1e-4, atol=1e-3
    )
