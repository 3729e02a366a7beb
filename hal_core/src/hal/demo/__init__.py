"""Find the edges in a picture: the demonstration behind ``hal demo``.

A separable Gaussian blur and Sobel's edge magnitude over tiles that flow
through the upload, compute and download queues, several at once, on tracked
buffers (`hal.flow`). Needs the libraries of the ``demo`` extra.

- `hal.demo.run`: the whole of it, from picture to report.
- `hal.demo.pipeline`: the part to learn from.
- `hal.demo.kernels`: the kernels, and how they are recorded.
- `hal.demo.host`: the tiles on the host, pinned where the device can do that.
- `hal.demo.tiles`, `hal.demo.observe`, `hal.demo.timeline`, `hal.demo.picture`.
- `hal.demo.reference`: the oracle, in scipy.
"""
