"""gpusim's HIP face, through hip-python: HIP's own rules, codes and strictness."""

import gpusim
import pytest
from child_processes import run_alone

PRELUDE = """
import ctypes, os
from rocm.bindings import hip
library = ctypes.CDLL(os.environ["ROCM_PATH"] + "/lib/libamdhip64.so")

def code(result):
    return int(result[0])

def ok(result):
    assert code(result) == 0, result
    return result[1] if len(result) == 2 else result[1:]

KIND = hip.hipMemcpyKind
"""


def run(folder, program, **settings):
    return run_alone(
        folder,
        PRELUDE + program,
        ROCM_PATH=str(gpusim.rocm_folder()),
        **gpusim.variables(**settings),
    )


def check(folder, program, **settings):
    done = run(folder, program + "\nprint('done')\n", **settings)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stderr


def test_a_context_is_made_by_itself(tmp_path):
    check(
        tmp_path,
        """
memory = ok(hip.hipMalloc(4096))          # the first call of all
found = ok(hip.hipPointerGetAttributes(memory))
assert (found.type, found.device) == (hip.hipMemoryType.hipMemoryTypeDevice, 0)
import threading
seen = []
def work():
    seen.append(ok(hip.hipGetDevice()))   # a new thread has the first device
    ok(hip.hipSetDevice(1))
    seen.append(ok(hip.hipPointerGetAttributes(ok(hip.hipMalloc(64)))).device)
thread = threading.Thread(target=work); thread.start(); thread.join()
assert seen == [0, 1] and ok(hip.hipGetDevice()) == 0
""",
    )


def test_codes_are_hips_own(tmp_path):
    check(
        tmp_path,
        """
assert int(ok(hip.hipMalloc(0)) or 0) == 0
ok(hip.hipFree(None))
memory = ok(hip.hipMalloc(4096))
stream = ok(hip.hipStreamCreateWithFlags(1))
assert code(hip.hipMemcpyAsync(memory, memory, 8, KIND.hipMemcpyDeviceToDeviceNoCU, stream)) == 21
assert code(hip.hipSetDevice(9)) == 101
assert code(hip.hipModuleLoadData(bytes(4096))) in (200, 209)
assert code(hip.hipModuleGetFunction(None, b"x")) == 400
assert code(hip.hipDeviceEnablePeerAccess(0, 0)) == 101
assert code(hip.hipHostUnregister(4096)) == 713
# The last error stays until it is asked for; what is not ready is none.
assert code(hip.hipGetLastError()) == 713
assert code(hip.hipGetLastError()) == 0
assert code(hip.hipPeekAtLastError()) == 0
name = hip.hipGetErrorName(hip.hipError_t.hipErrorNoBinaryForGpu)[1]
assert bytes(name) == b"hipErrorNoBinaryForGpu"
""",
        strict=0,
    )


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("ok(hip.hipStreamWaitEvent(stream, event, 0))", "I1"),
        (
            "ok(hip.hipEventDestroy(event)); hip.hipEventRecord(event, stream)",
            "after its destruction",
        ),
    ],
    ids=["unrecorded", "destroyed"],
)
def test_a_broken_rule_ends_the_process(tmp_path, program, says):
    made = """
stream = ok(hip.hipStreamCreateWithFlags(1))
event = ok(hip.hipEventCreateWithFlags(2))
"""
    done = run(tmp_path, made + program)
    assert done.returncode < 0
    assert says in done.stderr
