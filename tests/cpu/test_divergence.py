"""A barrier that not all threads of a block come to fails its submission, and no other."""

import re

import numpy as np
import pytest

import hal
from hal.errors import WorkFailedError

LIMIT = 60.0

SOURCE = """
__device__ void meet() { __syncthreads(); }
__global__ void sides(int *p) {
  if (threadIdx.x < 8) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  p[threadIdx.x] += 1;
}
__global__ void past(int *p) {
  if (threadIdx.x < 8) meet();
  p[threadIdx.x] += 1;
  __syncthreads();
  p[threadIdx.x] += 1;
}
__global__ void rounds(int *p) {
  for (int i = 0; i < threadIdx.x; i++) __syncthreads();
  __syncthreads();
}
__global__ void some(int *p) {
  int k = 3;
  while (k > 0) {
    __syncthreads();
    if (threadIdx.x < 8) k--;
    k--;
  }
  __syncthreads();
}
__global__ void returned(int *p, int n) {
  if (threadIdx.x >= n) return;
  p[threadIdx.x] += 1;
  __syncthreads();
  p[threadIdx.x] += 1;
}
__global__ void last(int *p) {
  if (blockIdx.x == 5 && blockIdx.y == 1 && threadIdx.x == 15) __syncthreads();
  __syncthreads();
}
__global__ void votes(int *p, int n) {
  if (threadIdx.x < n) __syncthreads();
  p[threadIdx.x] = __syncthreads_count(threadIdx.x % 2);
}
#define MEET __syncthreads()
#define FEW(n) \\
  ((n) + 0)

__global__ void looped(int *p) { MEET; p[threadIdx.x] += FEW(1); MEET; }
__global__ void hidden(int *p) {
  if (threadIdx.x < FEW(8)) { MEET; }
  p[threadIdx.x] += FEW(
      1);
  MEET;
}
"""


@pytest.fixture(params=["stream", "graph"])
def device(request):
    with hal.create_device(f"cpu?command_buffer={request.param}") as device:
        yield device


@pytest.fixture
def program(device):
    return device.compile(SOURCE, filename="meet.cpp")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("sides", (5, 7)),
        ("past", (2, 14)),
        ("rounds", (18, 19)),
        ("some", (24, 28)),
        ("last", (37, 38)),
        ("hidden", (50, 53)),
    ],
)
def test_the_submission_fails_with_kernel_block_and_lines(device, program, name, lines):
    p = device.upload(np.zeros(16, np.int32))
    submission = device.queue.dispatch(program[name], grid=(6, 2), block=16, args=(p,))
    with pytest.raises(WorkFailedError) as caught:
        submission.wait(LIMIT)
    block = "(5, 1, 0)" if name == "last" else "(0, 0, 0)"
    text = str(caught.value)
    assert f"kernel '{name}', block {block}: meet.cpp:" in text
    assert {int(line) for line in re.findall(r"(?:meet\.cpp:|in line )(\d+)", text)} == {*lines}


def test_only_what_failed_and_what_waits_for_it_fails(device, program):
    """Also where an operation that puts nothing on the stream is asked before it."""
    p, q = (device.upload(np.zeros(16, np.int32)) for _ in range(2))
    first, other = device.queue, device.create_queue()
    good, bad = (
        lambda to=p: first.dispatch(program["returned"], grid=1, block=16, args=(to, 16)),
        lambda: first.dispatch(program["sides"], grid=3, block=16, args=(q,)),
    )
    submissions = [(make(), make is bad) for make in (good, bad, good, bad, bad, good) * 4]
    depending = other.fill(q, 1, wait=submissions[1][0])
    first.barrier().wait(LIMIT)
    for submission, fails in submissions:
        assert isinstance(submission.error, WorkFailedError) == fails
    with pytest.raises(WorkFailedError):
        depending.wait(LIMIT)
    assert p.numpy().tolist() == [24] * 16
    first.fill(p, 7).wait(LIMIT)
    other.fill(q, 7).wait(LIMIT)


def test_votes_of_a_block_that_was_given_up_count_nowhere():
    """Its votes were cast on the thread of the system that runs the next block, too."""
    with hal.create_device("cpu?threads=1") as device:
        kernel, p = device.compile(SOURCE)["votes"], device.upload(np.zeros(16, np.int32))
        for n in (1, 0):
            done = device.queue.dispatch(kernel, grid=1, block=16, args=(p, n))
            if n:
                with pytest.raises(WorkFailedError, match="line 42"):
                    done.wait(LIMIT)
        assert p.numpy(wait=done).tolist() == [8] * 16


def test_a_recording_fails_as_a_whole(device, program):
    p = device.upload(np.zeros(16, np.int32))
    with device.record() as commands:
        for name in ("sides", "past", "returned"):
            arguments = (p, 16) if name == "returned" else (p,)
            commands.dispatch(program[name], grid=2, block=16, args=arguments)
            commands.barrier()
    submissions = [device.queue.execute(commands) for _ in range(3)]
    after = device.queue.fill(p, 3)
    after.wait(LIMIT)
    assert [type(each.error) for each in submissions] == [WorkFailedError] * 3
    assert p.numpy().tolist() == [3] * 16


def test_work_of_many_threads(program, device):
    """Blocks that helpers run fail the launch that they belong to."""
    p = device.upload(np.zeros(16, np.int32))
    submission = device.queue.dispatch(program["sides"], grid=20_000, block=16, args=(p,))
    other = device.queue.dispatch(program["returned"], grid=20_000, block=16, args=(p, 0))
    other.wait(LIMIT)
    assert isinstance(submission.error, WorkFailedError)
