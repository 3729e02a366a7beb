"""The probe's questions about how a CUDA driver behaves, by area."""
