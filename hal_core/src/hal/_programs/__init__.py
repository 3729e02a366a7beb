"""Source in, compiled program out, with its kernels' signatures; needs no device."""
