"""Another library, which captures, beside a backend of ours."""

import ctypes
import queue
import threading

import pytest


@pytest.fixture
def exchange(vendor):
    """Exchange the calling thread's mode, as another library would; give the one before."""

    def function(mode):
        word = ctypes.c_int(mode)
        vendor.call("ThreadExchangeStreamCaptureMode", ctypes.byref(word))
        return word.value

    return function


class Other:
    """Another library: a thread that captures on a stream of its own."""

    def __init__(self, vendor, device):
        self._call = vendor.call
        self._bind = device.bind
        self._asked, self._done = queue.SimpleQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.stream = ctypes.c_void_p()
        self.run(lambda: self._call("StreamCreate", ctypes.byref(self.stream), 1))

    def _work(self):
        self._bind()
        while (function := self._asked.get()) is not None:
            try:
                self._done.put((function(), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
                self._done.put((None, error))

    def run(self, function):
        self._asked.put(function)
        result, error = self._done.get(timeout=20)
        if error is not None:
            raise error
        return result

    def begin(self, mode, address, run=None):
        def work():
            self._call("StreamBeginCapture", self.stream, mode)
            self._call("MemsetD8Async", ctypes.c_void_p(address), 1, 16, self.stream)

        (run or self.run)(work)

    def end(self, run=None):
        """End the capture; return the number of its nodes: of our work nothing is among them."""
        graph, count = ctypes.c_void_p(), ctypes.c_size_t()
        (run or self.run)(lambda: self._call("StreamEndCapture", self.stream, ctypes.byref(graph)))
        self._call("GraphGetNodes", graph, None, ctypes.byref(count))
        self._call("GraphDestroy", graph)
        return count.value

    def close(self):
        self.run(lambda: self._call("StreamDestroy", self.stream))
        self._asked.put(None)
        self._thread.join(20)


@pytest.fixture
def other(vendor, device):
    found = Other(vendor, device)
    yield found
    device.bind()
    found.close()
