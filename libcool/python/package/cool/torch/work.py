"""Calls under way, as torch knows them, and the thread that completes them."""

import atexit
import threading

import torch
from torch._C._distributed_c10d import Work

import cool


class Done(Work):
    """A call that was done when it returned."""

    def __init__(self, result):
        super().__init__()
        self._result = result

    def wait(self, timeout=None):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(self._result)
        return future

    def is_completed(self):
        return True

    def is_success(self):
        return True

    def result(self):
        return self._result


class Started(Work):
    """A call that was started: what it waits for, what it gives, and what is to be done in between. Holds the tensors."""

    def __init__(self, request, group, result, then=None):
        super().__init__()
        self._request, self._group, self._result, self._then = request, group, result, then
        self._lock = threading.Lock()
        self._is_done, self._error, self._future = False, None, None

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout else 0
        try:
            self._request.wait(seconds if seconds > 0 else None)
        except cool.TimeoutError as error:
            if not self._request.done():
                raise self._group.error_of(error) from error
        except cool.Error:
            pass  # Which `complete` finds too, for all who wait.
        self.complete()
        if self._error is not None:
            raise self._error
        return True

    def complete(self):
        """Does what is left to do with what came, once; then whoever has the future is told."""
        with self._lock:
            if self._is_done:
                return
            try:
                self._request.wait()
                if self._then is not None:
                    self._then()
            except cool.Error as error:
                self._error = self._group.failed(error)
            except Exception as error:  # Of copying, as no memory: whoever waits is told.
                self._error = error
            self._is_done, self._then = True, None
            future = self._future
        if future is not None:
            future.set_result(None)

    def get_future(self):
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._is_done:
                    self._future.set_result(None)
        # An exception that is set would be seen by Python only; one that is raised by a callback is seen by C++ too.
        return self._future.then(self._result_or_error)

    def _result_or_error(self, _):
        if self._error is not None:
            raise self._error
        return self._result

    def is_completed(self):
        return self._is_done

    def is_success(self):
        return self._is_done and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._result


class All(Work):
    """Several calls as one."""

    def __init__(self, works, result):
        super().__init__()
        self._works, self._result = works, result

    def wait(self, timeout=None):
        return all([work.wait(timeout) for work in self._works])

    def get_future(self):
        every = torch.futures.collect_all([work.get_future() for work in self._works])
        return every.then(lambda done: [future.value() for future in done.value()] and self._result)

    def is_completed(self):
        return all(work.is_completed() for work in self._works)

    def is_success(self):
        return all(work.is_success() for work in self._works)

    def result(self):
        return self._result


class Completer:
    """A thread that completes started calls in the order in which they end. It sleeps in the library, without the
    interpreter's lock, and ends when Python does."""

    def __init__(self):
        self._queue = cool.Queue()
        self._thread = threading.Thread(target=self._run, name="cool.torch", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def add(self, work):
        self._queue.add(work._request, work)

    def _run(self):
        while (done := self._queue.next()) is not None:
            done[0].complete()
            done = None  # Its tensors are not kept until the next comes.

    def _end(self):
        self._queue.close()
        self._thread.join()


_completer, _making = None, threading.Lock()


def started(request, group, result, then=None):
    """The work of a started call, which is completed whether or not anybody waits for it."""
    global _completer
    with _making:
        if _completer is None:
            _completer = Completer()
    work = Started(request, group, result, then)
    _completer.add(work)
    return work
