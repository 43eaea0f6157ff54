"""Pending calls as torch's Work objects, and the thread that completes them."""

import functools
import os
import signal
import threading
import time
import weakref
from multiprocessing.util import Finalize

import torch
from torch._C._distributed_c10d import ProcessGroup, Work

import cool

# The last work that a thread created, while torch holds it.
_last = threading.local()

# The completer whose calls a thread completes, while it does.
_completing = threading.local()

# Time in seconds for which the end of the process waits for callbacks that are still running.
END_SECONDS = 10


class CoolWork(Work):
    """The result of a call that is complete."""

    def __init__(self, gives):
        super().__init__()
        self._gives = gives
        _last.latest_work = weakref.ref(self)

    def wait(self, timeout=None):
        return True

    def synchronize(self):
        self.wait()

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(self._gives)
        return future

    def is_completed(self):
        return True

    def is_success(self):
        return True

    def exception(self):
        return None

    def result(self):
        return self._gives


class Started(CoolWork):
    """A call that was started: its request, its result, and a final step. Keeps the tensors alive.

    `explain` returns the beginning of the message for an error.
    """

    def __init__(self, request, group, gives, then=None, explain=None):
        super().__init__(gives)
        self._request, self._group, self._then, self._explain = request, group, then, explain
        # The final step writes to the caller's tensors, which may belong to the inference mode.
        self._is_inference = torch.is_inference_mode_enabled()
        self._lock = threading.Lock()
        self._is_done, self._is_queued, self._error, self._future = False, False, None, None

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout else 0
        try:
            _before_waiting(self._request.done)
            self._request.wait(seconds if seconds > 0 else None)
        except cool.Error as error:
            # An error of the call itself is reported by `complete`, to all waiting threads.
            if not self._request.done():
                self._queue_if_future_exists()
                raise self._group.error_of(error) from error
        self.complete()
        if self._error is not None:
            raise self._error
        return True

    def complete(self):
        """Executes the final step once, and completes the future."""
        with self._lock:
            if self._is_done:
                return
            try:
                self._request.wait()
                if self._then is not None:
                    with torch.inference_mode(self._is_inference):
                        self._then()
            except cool.Error as error:
                self._error = self._group.failed(error, self._explain(error) if self._explain else "")
            except Exception as error:  # An error of the final step is reported to waiting threads.
                self._error = error
            self._is_done, self._then = True, None
            future = self._future
        if future is not None:
            future.set_result(None)

    def complete_by_itself(self):
        """Lets the completer thread complete the call, even if no thread waits for it. Returns self."""
        self._is_queued = True
        _completer().add(self._request, self)
        return self

    def _queue_if_future_exists(self):
        with self._lock:
            if self._future is None or self._is_done or self._is_queued:
                return
            try:
                self.complete_by_itself()
            except cool.ArgumentError:
                self._is_queued = False  # Another thread waits for the call and will complete it.

    def get_future(self):
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._is_done:
                    self._future.set_result(None)
        self._queue_if_future_exists()
        # A callback raises the error, because C++ code cannot read an exception that is set on the
        # future.
        return self._future.then(self._given)

    def _given(self, _):
        if self._error is not None:
            raise self._error
        return self._gives

    def is_completed(self):
        if not self._is_done and self._request.done():
            self.complete()
        return self._is_done

    def is_success(self):
        return self._is_done and self._error is None

    def exception(self):
        return self._error

    def source_rank(self):
        """Returns the sender of a received message."""
        return self._request.message[0]

    _source_rank = source_rank


class All(CoolWork):
    """Several calls as one, with a final step after all of them."""

    def __init__(self, works, gives, then=None):
        super().__init__(gives)
        self._works, self._then, self._lock = works, then, threading.Lock()
        self._is_inference = torch.is_inference_mode_enabled()

    def wait(self, timeout=None):
        for work in self._works:
            work.wait(timeout)
        self._finish()
        return True

    def _finish(self):
        """Executes the final step once."""
        with self._lock:
            then, self._then = self._then, None
            if then is not None:
                with torch.inference_mode(self._is_inference):
                    then()

    def complete_by_itself(self):
        """Lets the completer thread complete the calls, even if no thread waits for them. Returns self."""
        for work in self._works:
            work.complete_by_itself()
        return self

    def get_future(self):
        every = torch.futures.collect_all([work.get_future() for work in self._works])
        return every.then(self._given)

    def _given(self, done):
        for future in done.value():
            future.value()
        self._finish()
        return self._gives

    def is_completed(self):
        if not all([work.is_completed() for work in self._works]):
            return False
        if self.is_success():
            self._finish()
        return True

    def is_success(self):
        return all([work.is_success() for work in self._works])

    def exception(self):
        return next((work.exception() for work in self._works if work.exception()), None)


class Completer:
    """A thread that completes calls in the order in which they end, one after the other.

    It waits in the library, without the interpreter lock, and ends before Python does. It also executes the callbacks of
    the calls' futures. If one of them waits, another thread takes over, because the callback may wait for a later call.
    """

    def __init__(self):
        self._queue = cool.Queue()
        self.add = self._queue.add
        self._threads = []
        self.start_thread()
        Finalize(None, self._end, exitpriority=20)  # Works in processes of multiprocessing, unlike atexit.

    def start_thread(self):
        """Starts the thread that completes calls from now on. The thread that did so before must call this."""
        thread = threading.Thread(target=self._run, name="cool.torch", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        # The thread inherits the mask, so the system delivers signals to the program's threads only.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _run(self):
        _completing.completer = self
        while _completing.completer is not None and (done := self._queue.next()) is not None:
            done[0].complete()
            done = None  # Do not keep the tensors alive until the next call completes.

    def _end(self):
        self._queue.close()
        deadline = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))


def _before_waiting(is_done):
    """Must be called before a thread waits for a call or future. If it completes calls, another thread does so from now on."""
    completer = getattr(_completing, "completer", None)
    if completer is not None and not is_done():
        completer.start_thread()
        _completing.completer = None


_creation_lock = threading.Lock()
_process_completer = None


def _completer():
    """Returns the completer of this process."""
    global _process_completer
    with _creation_lock:
        if _process_completer is None:
            _process_completer = Completer()
        return _process_completer


def _forget_completer():
    """Makes a forked process create a completer of its own, because it has no threads of the parent's."""
    global _creation_lock, _process_completer
    _creation_lock, _process_completer, _completing.completer = threading.Lock(), None, None


os.register_at_fork(after_in_child=_forget_completer)


def _handing_out(method):
    """Wraps a method of torch's groups, so that it returns our own work.

    torch would return a wrapper that passes on only `wait` and `get_future`: it never reports completion or the sender of
    a message.
    """

    @functools.wraps(method)
    def call(*arguments, **more):
        _last.latest_work = None
        work = method(*arguments, **more)
        own_work = _last.latest_work and _last.latest_work()
        return work if own_work is None else own_work

    return call


def _directly(method, name, kind):
    """Wraps a method of torch's groups that torch does not pass on to Python backends, for backends of this kind."""

    @functools.wraps(method)
    def call(group, output, input, *arguments, **more):
        backend = group._get_backend(input.device)
        if isinstance(backend, kind):
            return getattr(backend, name)(output, input, *arguments, **more)
        return method(group, output, input, *arguments, **more)

    return call


@functools.cache
def let_futures_wait():
    """Lets callbacks wait for any future: torch's `wait` blocks its thread, which may be the one that completes calls."""
    wait = torch._C.Future.wait

    @functools.wraps(wait)
    def wait_elsewhere(future):
        _before_waiting(future.done)
        return wait(future)

    torch._C.Future.wait = wait_elsewhere


@functools.cache
def hand_out(kind):
    """Makes all calls of torch's groups return our own work, for backends of this kind."""
    for name in ("gather_single", "gather_into_tensor"):
        if (method := getattr(ProcessGroup, name, None)) is not None:
            setattr(ProcessGroup, name, _directly(method, "gather_single", kind))
    for name in (
        "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "all_gather_single", "_allgather_base",
        "allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter",
        "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced",
        "reduce_scatter_tensor_coalesced", "all_to_all_single", "alltoall_base", "alltoall", "send", "recv", "recv_anysource",
        "barrier",
    ):  # fmt: skip
        if (method := getattr(ProcessGroup, name, None)) is not None:
            setattr(ProcessGroup, name, _handing_out(method))
