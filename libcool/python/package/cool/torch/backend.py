"""The backend: converts torch's arguments to those of a communicator. This module moves no data itself."""

import functools
import logging

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ErrorType

import cool

from . import errors, groups, sparse, work
from .errors import ArgumentError
from .tensors import Reduction, flat, in_turn, joined, only, received, room, sent, spread, unequal

log = logging.getLogger(__name__)

# Tags of messages of the program are smaller.
FIRST_EXCHANGE_TAG = 1 << 31


def _explain_exchange(error):
    """Returns the beginning of the message for an error of an all_to_all."""
    if isinstance(error, cool.MismatchError):
        return "all ranks must pass lists or splits, which counts as a barrier here, or none may: "
    return ""


def create(options, backend_options):
    """Returns the backend of a new group. torch calls this at every rank of the group."""
    work.hand_out(CoolBackend)
    work.let_futures_wait()
    comm, key = groups.join(options.store, options.group_rank, options.group_size, options.group_id, options.timeout)
    group_options = backend_options or Backend.Options("cool", timeout=options.timeout)
    group_options._timeout = options.timeout
    group_options.global_ranks_in_group = options.global_ranks_in_group
    group_options.group_name = options.group_id
    return CoolBackend(comm, key, group_options)


class CoolBackend(Backend):
    """The backend of a group: a communicator, the key of its group, and torch's options."""

    # Properties that torch queries. All must be defined, because torch's defaults recurse without
    # end.
    supports_splitting = supports_shrinking = True
    supports_coalescing = supports_reconfigure = supports_window = _supports_time_estimate = False

    def __init__(self, comm, key, options):
        super().__init__(comm.rank, comm.size)
        self._key, self._options, self._error = key, options, ErrorType.SUCCESS
        self._calls, self._exchanges, self._parts, self._is_left = 0, 0, 0, False
        # torch does not access the tensors of a started call until it was waited for.
        self._comm, self._lending = comm, comm.lending()
        self.set_timeout(options._timeout)
        groups.opened(self)

    def getBackendName(self):
        return "cool"

    @property
    def options(self):
        return self._options

    def set_timeout(self, timeout):
        self._options._timeout, self._seconds = timeout, timeout.total_seconds()
        self._comm.set_timeout(self._seconds)

    def _get_sequence_number_for_group(self):
        return self._calls

    def get_error(self):
        return self._error

    def error_of(self, error, before=""):
        """Returns torch's error for a COOL error, with the prefix `before`."""
        ranks = list(self._options.global_ranks_in_group)
        return errors.of(error, [] if ranks == list(range(len(ranks))) else ranks, before)

    def failed(self, error, before=""):
        """As `error_of`, and records the kind of the error for `get_error`."""
        if isinstance(error, cool.TimeoutError):
            self._error = ErrorType.TIMEOUT
        elif isinstance(error, cool.LostError):
            self._error = ErrorType.REMOTE_ERROR
        elif not isinstance(error, cool.ArgumentError) and self._error == ErrorType.SUCCESS:
            self._error = ErrorType.COMM_ERROR
        return self.error_of(error, before)

    def _call(self, options, name, *arguments, gives, then=None, explain=None, **more):
        """Calls a method of the communicator, or starts it if `asyncOp` is set. Returns a work with the result `gives`.

        `explain` returns the beginning of the message for an error.
        """
        self._calls += 1
        comm = self._within(self._lending if options.asyncOp else self._comm, options.timeout.total_seconds())
        try:
            if options.asyncOp:
                request = getattr(comm, f"i{name}")(*arguments, **more)
                return work.Started(request, self, gives, then, explain).complete_by_itself()
            getattr(comm, name)(*arguments, **more)
        except cool.Error as error:
            raise self.failed(error, explain(error) if explain else "") from error
        if then is not None:
            then()
        return work.CoolWork(gives)

    def _within(self, comm, seconds):
        """Returns a handle of `comm` with a timeout in seconds; a negative number selects the group's timeout."""
        return comm.with_timeout(seconds) if seconds > 0 and seconds != self._seconds else comm

    def broadcast(self, tensors, opts):
        row, back = received("tensor", only("tensors", tensors))
        return self._call(opts, "bcast", row, root=opts.rootRank, gives=tensors, then=back)

    def allreduce(self, tensors, opts):
        if only("tensors", tensors).layout == torch.sparse_coo:
            return self._allreduce_sparse(tensors, opts)
        row, back = received("tensor", tensors[0])
        op = Reduction(opts.reduceOp, tensors[0].dtype, self.size())
        then = in_turn(op.then(row), back)
        return self._call(opts, "allreduce", op.sent(row), row, op.name, gives=tensors, then=then)

    def _allreduce_sparse(self, tensors, opts):
        """Completes before it returns, even if `asyncOp` is set, because its messages depend on the other ranks' counts."""
        self._calls += 1
        try:
            sparse.allreduce(self._within(self._comm, opts.timeout.total_seconds()), tensors[0], opts.reduceOp)
        except cool.Error as error:
            raise self.failed(error) from error
        return work.CoolWork(tensors)

    def reduce(self, tensors, opts):
        row, back = received("tensor", only("tensors", tensors))
        op, root = Reduction(opts.reduceOp, tensors[0].dtype, self.size()), opts.rootRank
        then = in_turn(op.then(row), back) if root == self.rank() else None
        return self._call(opts, "reduce", op.sent(row), row, op.name, root=root, gives=tensors, then=then)

    def all_gather_single(self, output, input, opts):
        into, back = received("output", output)
        return self._call(opts, "allgather", sent("input", input), into, gives=[output], then=back)

    def allgather(self, output_tensors, input_tensors, opts):
        outputs, row = only("output_tensors", output_tensors), sent("input", only("input_tensors", input_tensors))
        self._check_one_each("outputs", outputs)
        into = room(outputs)
        then = functools.partial(spread, into, outputs)
        return self._call(opts, "allgather", row, into, counts=unequal(outputs), gives=outputs, then=then)

    def gather(self, output_tensors, input_tensors, opts):
        row, root = sent("input", only("input_tensors", input_tensors)), opts.rootRank
        if self.rank() != root:
            return self._call(opts, "gather", row, root=root, gives=[])
        outputs = only("output_tensors", output_tensors)
        self._check_one_each("outputs", outputs)
        into = room(outputs)
        then = functools.partial(spread, into, outputs)
        return self._call(opts, "gather", row, into, root=root, gives=outputs, then=then)

    def gather_single(self, output, input, opts):
        row, root = sent("input", input), opts.rootRank
        into, back = received("output", output) if self.rank() == root else (None, None)
        return self._call(opts, "gather", row, into, root=root, gives=[output] if self.rank() == root else [], then=back)

    def scatter(self, output_tensors, input_tensors, opts):
        output, root = only("output_tensors", output_tensors), opts.rootRank
        send = None
        if self.rank() == root:
            inputs = only("input_tensors", input_tensors)
            self._check_one_each("inputs", inputs)
            send = joined("inputs", inputs)
        into, back = received("output", output)
        return self._call(opts, "scatter", send, into, root=root, gives=[output], then=back)

    def reduce_scatter_single(self, output, input, opts):
        send, (into, back) = sent("input", input), received("output", output)
        op = Reduction(opts.reduceOp, output.dtype, self.size())
        then = in_turn(op.then(into), back)
        return self._call(opts, "reduce_scatter", op.sent(send), into, op.name, gives=[output], then=then)

    def reduce_scatter(self, output_tensors, input_tensors, opts):
        output, inputs = only("output_tensors", output_tensors), only("input_tensors", input_tensors)
        self._check_one_each("inputs", inputs)
        send, (into, back) = joined("inputs", inputs), received("output", output)
        op, counts = Reduction(opts.reduceOp, output.dtype, self.size()), unequal(inputs)
        then = in_turn(op.then(into), back)
        return self._call(opts, "reduce_scatter", op.sent(send), into, op.name, counts=counts, gives=[output], then=then)

    def all_to_all_single(self, output, input, output_split_sizes, input_split_sizes, opts):
        send, (into, back) = sent("input", input), received("output", output)
        if not output_split_sizes and not input_split_sizes:
            return self._call(opts, "alltoall", send, into, gives=[output], then=back, explain=_explain_exchange)
        parts = send.split(self._elements("input", input, input_split_sizes)), into.split(self._elements("output", output, output_split_sizes))
        return self._exchange(*parts, opts, gives=[output], then=back)

    def alltoall(self, output_tensors, input_tensors, opts):
        self._check_one_each("outputs", output_tensors)
        self._check_one_each("inputs", input_tensors)
        inputs = [flat(f"inputs[{i}]", tensor.contiguous()) for i, tensor in enumerate(input_tensors)]
        outputs, steps = zip(*[received(f"outputs[{i}]", tensor, has_gaps=True) for i, tensor in enumerate(output_tensors)])
        return self._exchange(inputs, outputs, opts, gives=output_tensors, then=in_turn(*steps))

    def _elements(self, name, tensor, splits):
        """Returns the number of elements sent to or received from each rank; without splits, all are equal."""
        size, rows = self.size(), tensor.size(0) if tensor.dim() else 1
        if not splits:
            if rows % size:
                raise ArgumentError(f"{name} has {rows} rows, which cannot be divided evenly among {size} ranks; pass {name}_split_sizes")
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows or min(splits) < 0:
            raise ArgumentError(f"{name}_split_sizes are {splits}, but must be {size} numbers that add up to the {rows} rows of {name}")
        row = sent(name, tensor).numel() // rows if rows else 0
        return [split * row for split in splits]

    def _exchange(self, inputs, outputs, opts, gives, then=None):
        """Sends a row to each rank and receives one from each, of lengths that only the two ranks know.

        The rows are messages, so that the call can start without waiting for the lengths of all other ranks. A barrier
        gives it a place in the order of the group's calls; ranks that make another call instead get an error at once.
        """
        rank, size = self.rank(), self.size()
        if len(inputs[rank]) != len(outputs[rank]):
            raise ArgumentError(f"rank {rank} sends {len(inputs[rank])} elements to itself, and receives {len(outputs[rank])}")
        self._calls, self._exchanges = self._calls + 1, self._exchanges + 1
        # Memory that is shared with the agent is not copied, so rows must not be received into rows to send.
        memory = {row.untyped_storage().data_ptr() for row in outputs}
        inputs = [row.clone() if row.untyped_storage().data_ptr() in memory else row for row in inputs]
        tag = FIRST_EXCHANGE_TAG + self._exchanges % FIRST_EXCHANGE_TAG
        comm = self._within(self._lending, opts.timeout.total_seconds())
        works = []
        try:
            works.append(work.Started(comm.ibarrier(), self, [], explain=_explain_exchange))
            # Each rank begins with its successor, so that they do not all send to the same one.
            for distance in range(1, size):
                source, dest = (rank - distance) % size, (rank + distance) % size
                works.append(self._receive(comm, outputs[source], source, tag))
                works.append(work.Started(comm.isend(inputs[dest], dest, tag), self, []))
        except cool.Error as error:
            raise self.failed(error, _explain_exchange(error)) from error
        outputs[rank].copy_(inputs[rank])
        exchange = work.All(works, gives, then)
        if opts.asyncOp:
            return exchange.complete_by_itself()
        exchange.wait()
        return exchange

    def allreduce_coalesced(self, tensors, opts):
        return self._each_type(tensors, tensors, opts, self._allreduce_joined)

    def _allreduce_joined(self, tensors, _, opts):
        row = joined("tensors", tensors)
        op = Reduction(opts.reduceOp, tensors[0].dtype, self.size())
        then = functools.partial(op.finish, row, tensors)
        return self._call(opts, "allreduce", op.sent(row), row, op.name, gives=tensors, then=then)

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        return self._each_type(outputs, inputs, opts, self._all_gather_joined)

    def _all_gather_joined(self, outputs, inputs, opts):
        send = joined("inputs", inputs)
        into = torch.empty(self.size(), send.numel(), dtype=send.dtype)
        # The part of each output from each rank, in rank order.
        parts = [part for rank in zip(*[output.view(self.size(), -1) for output in outputs]) for part in rank]
        then = functools.partial(spread, into.view(-1), parts)
        return self._call(opts, "allgather", send, into.view(-1), gives=outputs, then=then)

    def allgather_coalesced(self, output_lists, inputs, opts):
        self._check_one_each("output_lists", output_lists)
        send, parts = joined("inputs", inputs), [tensor for tensors in output_lists for tensor in tensors]
        into = room(parts)
        then = functools.partial(spread, into, parts)
        return self._call(opts, "allgather", send, into, gives=output_lists, then=then)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        return self._each_type(outputs, inputs, opts, self._reduce_scatter_joined)

    def _reduce_scatter_joined(self, outputs, inputs, opts):
        into = room(outputs)
        op = Reduction(opts.reduceOp, outputs[0].dtype, self.size())
        send = op.sent(torch.cat([flat("input", tensor).view(self.size(), -1) for tensor in inputs], dim=1).view(-1))
        then = functools.partial(op.finish, into, outputs)
        return self._call(opts, "reduce_scatter", send, into, op.name, gives=outputs, then=then)

    def _each_type(self, outputs, inputs, opts, call):
        """Makes one call for all tensors of each type."""
        if len(outputs) != len(inputs):
            raise ArgumentError(f"there are {len(outputs)} outputs for {len(inputs)} inputs")
        types = dict.fromkeys(tensor.dtype for tensor in inputs)
        chosen = [[i for i, tensor in enumerate(inputs) if tensor.dtype == dtype] for dtype in types]
        works = [call([outputs[i] for i in some], [inputs[i] for i in some], opts) for some in chosen]
        return works[0] if len(works) == 1 else work.All(works, outputs)

    def send(self, tensors, dst, tag):
        row = sent("tensor", only("tensors", tensors))
        try:
            return work.Started(self._lending.isend(row, dst, self._tag(tag)), self, tensors)
        except cool.Error as error:
            raise self.failed(error) from error

    def recv(self, tensors, src, tag):
        row, back = received("tensor", only("tensors", tensors))
        try:
            return self._receive(self._lending, row, src, self._tag(tag), tensors, back)
        except cool.Error as error:
            raise self.failed(error) from error

    def recv_anysource(self, tensors, tag):
        return self.recv(tensors, None, tag)

    def _receive(self, comm, row, source, tag, gives=(), then=None):
        """Starts to receive a message that must be as long as `row`. Shorter ones are errors, as with other backends."""
        request = comm.irecv(row, source, tag)
        return work.Started(request, self, gives, in_turn(functools.partial(self._check_length, request, row), then))

    def _check_length(self, request, row):
        source, _, count = request.message
        if count != len(row):
            error = errors.Error(
                f"rank {self.rank()}: rank {source} has sent {count} elements, but {len(row)} are received; both ranks must pass the same length"
            )
            error.ranks = (source, self.rank())
            raise error

    def _tag(self, tag):
        if not 0 <= tag < FIRST_EXCHANGE_TAG:
            raise ArgumentError(f"tag is {tag}, but must be from 0 to {FIRST_EXCHANGE_TAG - 1}")
        return tag

    def barrier(self, opts):
        return self._call(opts, "barrier", gives=[])

    def monitored_barrier(self, opts, wait_all_ranks=False):
        seconds = opts.timeout.total_seconds()
        if seconds == 0:
            raise errors.Error(f"Rank {self.rank()} timed out in monitoredBarrier after 0 ms; pass a longer timeout")
        try:
            self._within(self._comm, seconds).barrier()
        except (cool.TimeoutError, cool.LostError) as error:
            seconds = seconds if seconds > 0 else self._seconds
            raise self.failed(error, errors.not_passed(error.ranks, self.rank(), seconds, wait_all_ranks)) from error
        except cool.Error as error:
            raise self.failed(error) from error

    def supports_tensor_alloc(self, device):
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size, *, dtype=None, device=None):
        """Returns a tensor in memory that is shared with the node's agent, which calls use without a copy."""
        dtype = dtype or torch.get_default_dtype()
        try:
            memory = self._comm.alloc(size * dtype.itemsize, "u1")
        except cool.Error as error:
            raise self.failed(error) from error
        return torch.from_numpy(memory).view(dtype)

    def split(self, store, ranks, opts):
        """Returns the backend of a group of some of the ranks, in the given order. All of these ranks must call this."""
        ranks, self._parts = list(ranks), self._parts + 1
        if self.rank() not in ranks:
            return None
        return self._of(f"part {self._parts}", ranks, opts)

    def perform_nocolor_split(self, device):
        """As `split`, at a rank that is in no part."""
        self._parts += 1

    def shrink(self, ranks_to_exclude, shrink_flags=0, opts_override=None):
        """Returns the backend of a group without the excluded ranks. All other ranks must call this.

        It does not need the failed group, because all ranks know which ranks are excluded.
        """
        if shrink_flags & dist.distributed_c10d.SHRINK_ABORT:
            self.abort()
        ranks = [rank for rank in range(self.size()) if rank not in ranks_to_exclude]
        return self._of(f"without {sorted(ranks_to_exclude)}", ranks, opts_override)

    def _of(self, description, ranks, opts):
        """Returns the backend of a group of some of the ranks, which all derive the same key."""
        seconds = opts._timeout.total_seconds() if opts else self._seconds
        # The ranks of several parts of one split call this with the same description.
        key = groups.bounded(f"{description} with {','.join(map(str, ranks))} of {self._key}")
        comm = groups.meet(key, ranks.index(self.rank()), len(ranks), seconds)
        # A new object, because torch may pass the options of the parent.
        group_options = Backend.Options("cool", timeout=opts._timeout if opts else self._options._timeout)
        group_options.group_name = opts.group_name if opts else ""
        parents = list(self._options.global_ranks_in_group)
        group_options.global_ranks_in_group = [parents[rank] for rank in ranks] if parents else ranks
        return CoolBackend(comm, key, group_options)

    def abort(self):
        """Makes pending calls fail at every rank of the group, and leaves the group."""
        if not self._is_left:
            try:
                self._comm.revoke()
            except cool.Error as error:
                log.warning("the group could not be revoked at the other ranks: %s", error)
        self.shutdown()

    def shutdown(self):
        """Leaves the group. Pending calls are still executed."""
        self._is_left = True
        self._comm.free()
        groups.left(self)

    def _check_one_each(self, name, tensors):
        if len(tensors) != self.size():
            raise ArgumentError(f"{name} has {len(tensors)} tensors, but must have {self.size()}, one for each rank")
