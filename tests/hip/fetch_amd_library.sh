#!/usr/bin/env bash
# Fetch AMD's HIP runtime and compiler as Debian packages them, into a folder: 18 MB. Needs no root,
# installs nothing, and asks the package index that this machine's apt is set up for:
#
#     tests/hip/fetch_amd_library.sh FOLDER
#     HAL_AMD_LIBRARY=FOLDER make test ARGS="tests/hip/test_amd_library.py"
#
# FOLDER/lib then holds the libraries, under the names that hip-python looks for, and what they
# need that is not installed here.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1/lib" "$1/apt/state/lists/partial" "$1/apt/cache/archives/partial" "$1/apt/root"
folder="$(cd "$1" && pwd)"
apt=(
    apt-get -qq -y -o "Dir::State=$folder/apt/state" -o Dir::State::status=/var/lib/dpkg/status
    -o "Dir::Cache=$folder/apt/cache" -o Debug::NoLocking=true -o APT::Sandbox::User=
    -o Acquire::Retries=2 -o Acquire::http::Timeout=20
)
"${apt[@]}" update
"${apt[@]}" install --download-only --no-install-recommends --reinstall \
    libamdhip64-5 libhiprtc-builtins5
for package in "$folder"/apt/cache/archives/*.deb; do
    dpkg -x "$package" "$folder/apt/root"
done
find "$folder/apt/root" -name 'lib*.so.*' -exec cp -P -t "$folder/lib" {} +
rm -rf "$folder/apt"
ln -sf libamdhip64.so.5 "$folder/lib/libamdhip64.so"
compiler=libhiprtc.so.5
[ -e "$folder/lib/$compiler" ] || compiler=libamdhip64.so.5 # of which it was a part once
ln -sf "$compiler" "$folder/lib/libhiprtc.so"
if LD_LIBRARY_PATH="$folder/lib" ldd "$folder"/lib/*.so.* | grep 'not found' >&2; then
    echo "$0: the libraries above are missing" >&2
    exit 1
fi
