#!/usr/bin/env bash
# Build a free-threaded Python 3.13 from the source that Debian keeps, into a folder: 22 MB to fetch,
# a minute or two on two idle processors. Needs no root, installs nothing outside of the folder:
#
#     tests/build_free_threaded.sh FOLDER
#     HAL_FREE_THREADED=FOLDER/bin/python3.13t .venv/bin/python tests/free_threaded.py
#
# It takes Debian's apt, a C compiler, make, and the headers of OpenSSL, zlib and libffi.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1/source"
folder="$(cd "$1" && pwd)"
# From where this machine's apt gets Debian's packages. The stable release keeps this version for life.
site="$(apt-get indextargets --format '$(SITE)' | sed -n 's#/debian/*$#&#p' | sort -u | sed -n 1p)"
curl -fsSL --max-time 60 -o "$folder/source.tar.xz" \
    "${site%/}/pool/main/p/python3.13/python3.13_3.13.5.orig.tar.xz"
echo "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640  $folder/source.tar.xz" |
    sha256sum --check --quiet
tar -xJf "$folder/source.tar.xz" -C "$folder/source" --strip-components 1
cd "$folder/source"
# With -O3, the default, the compiler takes three times as long.
./configure --quiet --disable-gil --disable-test-modules OPT="-O1 -fwrapv" --prefix="$folder"
make --quiet -j "$(nproc)"
make --quiet install
cd "$folder"
rm -rf source source.tar.xz
bin/python3.13t -c 'import ctypes, ensurepip, ssl, venv, zlib'
