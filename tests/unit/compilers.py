"""Which C++ compilers there are."""

import shutil

import pytest

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="there is no g++ and no clang++ here")
