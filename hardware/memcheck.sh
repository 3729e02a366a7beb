#!/bin/sh
# Run the conformance suite on a CUDA device under compute-sanitizer's memcheck, its areas side by
# side: all tests but the destructive ones, which fault on purpose. Errors that calls return are what
# many tests ask for, so they are not told; an access outside of its memory is, and fails the area.
#
#     hardware/memcheck.sh FOLDER [AREA ...]
#
# Writes what each area printed to FOLDER/AREA.txt. Host backtraces are off: for each the sanitizer
# keeps the Python frames alive, and with them the buffers that the suite then finds were not freed.
set -u
folder=$1
shift
suite=$(python3 -c 'import pathlib, hal_conformance as h; print(pathlib.Path(h.__file__).parent / "suite")')
mkdir -p "$folder"
[ $# -gt 0 ] || set -- $(cd "$suite" && for area in */; do [ "$area" = __pycache__/ ] || echo "${area%/}"; done)
for area in "$@"; do
    (
        compute-sanitizer --tool memcheck --report-api-errors no --show-backtrace device --error-exitcode 1 \
            python3 -m pytest -q -p no:cacheprovider --confcutdir "$suite" --hal-backend cuda -m 'not destructive' \
            "$suite/$area" >"$folder/$area.txt" 2>&1
        echo "$area: status $?; $(grep -E 'passed|failed' "$folder/$area.txt" | tail -1); $(tail -1 "$folder/$area.txt")"
    ) &
done
wait
