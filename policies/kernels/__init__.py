"""GPU kernels (Triton), one a file: `x(...)` launches, `x_reference(...)` is its torch twin with the same arguments.

Everything here needs triton, so nothing outside imports it but what runs on a GPU. No launch reads a device value on
the host: what must be known beforehand comes as a Python number and the rest stays in tensors, so that every launch can
be captured into a CUDA graph. docs/kernels.md says what each costs and what only a device can prove.
"""
