"""List mutants of the dialect: of the headers and texts that kernels are compiled with.

Each is one mistake; `mutants.py` makes them, and says what they are for.
"""

from __future__ import annotations

__all__ = ["DIALECT"]

FLOATS = "kernels/test_float16.py::test_"
WARPS = "kernels/test_warps.py::test_"
BARRIERS = "kernels/test_barriers.py::test_"
COMPILING = "kernels/test_compile.py::test_"
TEXTS = "kernels/test_generated.py::test_"
HEADER = "        return file.read()\n"
OWN = '(resources.files("hal_cpu") / name).read_bytes()'


def in_header(old, new):
    """Return the patch that changes a line of the dialect's headers."""
    changed = HEADER.replace("\n", f'.replace("{old}", "{new}")\n')
    return ("hal.dialect", HEADER, changed)


def in_warps(old, new):
    """Return the patch that changes a line of the CPU backend's own headers."""
    return ("hal_cpu._compile", OWN, f'{OWN}.replace(b"{old}", b"{new}")')


def in_regions(old, new, module="_regions"):
    """Return the patch that changes how a kernel with barriers is divided on the CPU."""
    return (f"hal_cpu.{module}", old, new)


DIALECT = (
    # Name, tests, patches
    (
        "only other headers are there",
        [
            f"{TEXTS}a_generated_matmul_of_halves_runs_unchanged_c5",
            f"{TEXTS}generated_kernels_of_bfloat16_run_unchanged_c5",
            f"{TEXTS}a_kernel_of_another_library_runs_unchanged_c5",
        ],
        ("hal.dialect", "sorted(NAMES | _FILES)", "sorted(STANDARD)"),
    ),
    (
        "halves are cut off",
        [f"{FLOATS}16_bit_numbers_narrow_and_widen_exactly_c5"],
        in_header("+ (magnitude >> 13 & 1u)", ""),
    ),
    (
        "a bfloat16 is rounded twice",
        [
            f"{FLOATS}16_bit_arithmetic_and_arguments_are_rounded_once_c5",
            f"{FLOATS}fills_of_16_bit_numbers_are_rounded_once_c1",
        ],
        ("hal.bfloat16", "    if exact != value:\n", "    if False:\n"),
    ),
    (
        "lanes shuffle down by one too few",
        [
            f"{WARPS}shuffles_fetch_from_other_lanes_c5",
            f"{WARPS}warps_and_tiles_add_up_c5",
        ],
        in_warps("? lane + (int)by : lane", "? lane + (int)by - 1 : lane"),
    ),
    (
        "a ballot is of all that come",
        [
            f"{WARPS}votes_count_the_lanes_of_a_mask_c5",
            f"{WARPS}warps_and_tiles_add_up_c5",
        ],
        in_warps("if (lanes >> i & 1 && hal_of<hal_vote>(steps, i))", "if (lanes >> i & 1)"),
    ),
    (
        "a block is as wide as its first row",
        [f"{BARRIERS}threads_in_rows_and_layers_meet_in_nested_loops_c5"],
        in_warps("hal_i0 += hal_size_x", "hal_i0 += 0"),
    ),
    (
        "threads that have returned go on",
        [
            f"{BARRIERS}threads_that_have_returned_are_not_waited_for_c5",
            f"{BARRIERS}loops_without_barriers_end_for_each_thread_alone_c5",
        ],
        in_warps("hal_left[hal_i] = hal_some_left = true", "hal_left[hal_i] = false"),
    ),
    (
        "what changes behind a barrier is forgotten",
        [
            f"{BARRIERS}what_is_a_threads_own_stays_so_c5",
            f"{BARRIERS}threads_in_rows_and_layers_meet_in_nested_loops_c5",
            f"{BARRIERS}loops_without_barriers_end_for_each_thread_alone_c5",
        ],
        in_regions(
            "if own or self._is_changed(name, others):",
            "if own:  # and never written back",
            "_region_text",
        ),
    ),
    (
        "a block has one of each parameter",
        [f"{BARRIERS}what_is_a_threads_own_stays_so_c5"],
        in_regions(
            "        declared = set(self._changed)\n",
            "        declared = set()\n",
            "_region_text",
        ),
    ),
    (
        "threads do not wait for each other",
        [
            f"{BARRIERS}threads_meet_in_the_branch_of_their_block_c5",
            f"{BARRIERS}threads_that_have_returned_are_not_waited_for_c5",
        ],
        in_regions(
            "        if tuple(texts) == BARRIER:\n            self._close(index)\n",
            "        if tuple(texts) == BARRIER:\n            pass\n",
        ),
    ),
    (
        "every thread goes on as long as one does",
        [f"{BARRIERS}conditions_choose_threads_of_each_row_c5"],
        in_regions(
            "{{ {head} if ({is_on}) {{ {counter}", "{{ {head} {{ {counter}", "_region_parts"
        ),
    ),
    (
        "a condition on the index chooses all threads",
        [
            f"{BARRIERS}conditions_choose_threads_of_each_row_c5",
            f"{BARRIERS}loops_without_barriers_end_for_each_thread_alone_c5",
        ],
        in_regions(
            "{self.function}<{self.type}>(hal_size_x, {self.bound})",
            "hal_all(hal_size_x)",
            "_region_parts",
        ),
    ),
    (
        "programs of a list stand in reverse",
        [f"{COMPILING}sources_of_a_list_become_a_program_each_c5"],
        (
            "hal._programs.compile",
            "[results[index] for index in range(len(tasks))]",
            "[results[index] for index in reversed(range(len(tasks)))]",
        ),
    ),
    (
        "a list's first error hides the others",
        [f"{COMPILING}errors_of_a_list_of_sources_are_all_told_c5"],
        ("hal._programs.compile", "for other in failed[1:]:", "for other in failed[:0]:"),
    ),
)
