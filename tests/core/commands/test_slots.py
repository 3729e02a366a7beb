"""Slots and binding tables: C3, in both ways of running a recording."""

import ctypes

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal._programs.parameters import Parameter
from hal.errors import ArgumentTypeError, InvalidArgumentError

SOURCE = """
__global__ void add(const int *x, int *y, int amount) {
  y[threadIdx.x] = x[threadIdx.x] + amount;
}
struct alignas(16) Four { float a, b, c, d; };
__global__ void take(char tag, Four four, float *out, const float *in) {
  out[0] = in[0] + tag + four.a + four.d;
}
"""


@pytest.fixture(scope="module")
def compiled():
    """A device and a program on it, for tests that leave both as they are."""
    with hal.create_device("cpu") as device:
        yield device, device.compile(SOURCE, filename="slots.cpp")


def upload(device, *values):
    return [device.upload(np.full(16, value, np.uint8)) for value in values]


# Use


def test_aligned_arguments_survive_every_copy_of_the_block_c3(compiled, mode):
    """Records of 16 bytes' alignment beside a slot, in replicas of their own."""
    device, program = compiled
    source = device.upload(np.array([0.5], np.float32))
    four = np.array([1, 2, 3, 4], np.float32)
    queues = [device.create_queue() for _ in range(6)]
    gate = hal.create_semaphore()
    with device.record(slots=1, command_buffer=mode) as commands:
        for _ in range(3):
            commands.dispatch(
                program["take"],
                grid=1,
                block=1,
                args=(7, four.tobytes(), commands.slots[0], source),
            )
    targets = [device.allocate(4, dtype=np.float32) for _ in queues]
    done = [
        queue.execute(commands, bindings=[target], wait=gate.at(1))
        for queue, target in zip(queues, targets, strict=True)
    ]
    gate.signal(1)
    hal.wait_all(done, LIMIT)
    assert [target.numpy().tolist() for target in targets] == [[12.5]] * 6
    for queue in queues:
        queue.close()


@pytest.mark.parametrize("alignment", [1, 8, 16, 64])
def test_a_copied_block_is_one_of_its_own_c3(alignment):
    """The same values, aligned as they must be, with pointers to themselves."""
    signature = hal.Signature(
        [
            Parameter("tag", "int", 1, 1),
            Parameter("record", "record", 64, alignment),
            Parameter("x", "ptr", 8, 8),
        ]
    )
    given = (5, bytes(range(64)), "a buffer")
    block = signature.pack("kernel", given, lambda *_: 0x123456789)
    copies = [block.copy() for _ in range(50)]
    copies += [each.copy() for each in copies]
    block.set_address(2, 0)
    ranges = set()
    for each in copies:
        pointers = (ctypes.c_uint64 * 3).from_address(each.address)
        values = [ctypes.string_at(pointers[index], (1, 64, 8)[index]) for index in range(3)]
        assert values == [b"\x05", bytes(range(64)), (0x123456789).to_bytes(8, "little")]
        assert pointers[1] % alignment == 0
        assert each.address < pointers[0] < each.address + len(each._storage)
        ranges.add(each.address)
    assert len(ranges) == len(copies)


# Buffers without an address yet


def test_overlaps_of_late_buffers_are_seen_at_issue_m3(device, mode):
    """C2, M3: two parts of one alloca, one of them written: refused at issue."""
    gate = hal.create_semaphore()
    with device.record(slots=2, hazards="auto", command_buffer=mode) as commands:
        commands.copy(commands.slots[0], commands.slots[1], size=8)
    transient = device.queue.alloca(64, wait=gate.at(1))
    apart = [transient.subspan(0, 8), transient.subspan(8, 8)]
    meeting = [transient.subspan(0, 8), transient.subspan(7, 8)]
    submissions = [
        device.queue.execute(commands, bindings=table, wait=transient.allocation)
        for table in (apart, meeting)
    ]
    gate.signal(1)
    submissions[0].wait(LIMIT)
    with pytest.raises(InvalidArgumentError, match="overlap"):
        submissions[1].wait(LIMIT)


# Derived order: slots are memories of their own


def test_a_kernel_touches_all_that_is_bound_c2(compiled, mode):
    """C2: an unsized slot ends where its binding does."""
    device, program = compiled
    whole = device.upload(np.zeros(32, np.int32))
    with device.record(slots=2, hazards="auto", command_buffer=mode) as commands:
        commands.dispatch(program["add"], grid=1, block=1, args=(*commands.slots, 1))
    done = device.queue.execute(commands, bindings=[whole.subspan(0, 64), whole.subspan(64, 64)])
    done.wait(LIMIT)
    with pytest.raises(InvalidArgumentError, match="shares bytes"):
        device.queue.execute(commands, bindings=[whole.subspan(0, 68), whole.subspan(64, 64)])


def test_a_kind_that_is_none_is_refused_with_those_that_are_c3(compiled):
    device, _ = compiled
    with pytest.raises(ArgumentTypeError, match=r"slot 1: 'scaler' is no numpy dtype.*'scalar'"):
        device.record(slots=[np.float32, "scaler"])


@pytest.mark.parametrize("place", [None, "upload"])
@pytest.mark.parametrize("hazards", ["auto", "manual"])
def test_bindings_are_refused_at_once_beside_temporaries_c3(compiled, hazards, place):
    """C3, M3: what has no address yet shares bytes with nothing that has one."""
    device, _ = compiled
    with device.record(slots=[(np.uint8, 64)] * 2, hazards=hazards) as commands:
        temporary = commands.alloca(64)
        commands.copy(commands.slots[0], temporary)
        if place is not None:
            with commands.on(place):
                commands.copy(temporary, commands.slots[1])
        commands.copy(commands.slots[0], commands.slots[1], size=32)
    whole = device.allocate(128)
    late = device.queue.alloca(64)
    overlapping, match = (whole, whole), "shares bytes with"
    if hazards == "manual":
        overlapping = whole.subspan(0, 64), whole.subspan(8, 64)
        match = "would copy 32 bytes onto memory"
    with pytest.raises(InvalidArgumentError, match=match):
        device.queue.execute(commands, bindings=overlapping)
    device.queue.execute(commands, bindings=(whole, late)).wait(LIMIT)
    device.queue.dealloca(late)


def test_memory_that_begins_anywhere_is_refused_where_it_is_used_in_larger_elements_c3(compiled):
    """C3, C5: imported memory, in a slot or as a grid: a GPU would be lost by such an access."""
    device, program = compiled
    whole = np.zeros(256, np.uint8)
    odd = device.import_array(whole[-whole.ctypes.data % 16 + 1 :][:64]).view(np.int32)
    own = device.allocate(64, dtype=np.int32)
    add = program["add"]
    with device.record(slots=[(np.int32, 64)] * 2) as kernels:
        kernels.dispatch(add, grid=1, block=1, args=(own, kernels.slots[0], 1))
        kernels.dispatch(add, grid=kernels.slots[1], block=1, args=(own, own, 1))
    with device.record(slots=[(np.int32, 64)]) as fill:
        fill.fill(fill.slots[0], 5)
    for commands, bindings in ((kernels, [odd, own]), (kernels, [own, odd]), (fill, [odd])):
        for _ in range(3):  # the C extension, too, once it knows the recording
            device.queue.execute(commands, bindings=[own] * len(bindings))
            with pytest.raises(InvalidArgumentError, match=r"needs a buffer .* multiple of 4"):
                device.queue.execute(commands, bindings=bindings)
    for where in (device.queue, device.record()):
        with pytest.raises(InvalidArgumentError, match=r"12 bytes at a multiple of 4"):
            where.dispatch(add, grid=odd, block=1, args=(own, own, 1))


def test_a_binding_of_another_device_is_told_whose_memory_the_slot_takes_c3(compiled):
    """C3: which need not be the recording's device."""
    device, _ = compiled
    with hal.create_device("cpu", name="other") as other:
        source = device.upload(np.zeros(64, np.uint8))
        with device.record(slots=[(np.uint8, 64, other)]) as commands:
            commands.copy(source, commands.slots[0])
        with pytest.raises(InvalidArgumentError, match=r"slot 0: .* this slot to cpu:0/other"):
            device.queue.execute(commands, bindings=[source])
