/* COOL: collective communication for clusters with programmable networks.
 *
 * Made from libcool/c/src by cbindgen; `cargo test -p cool-c` says how when it is not current.
 *
 * A program is a function that runs as many ranks (cool_launch), or gets its world by cool_world. Collectives are
 * called by all ranks of a group in the same order with the same arguments. Each returns COOL_OK or an error, whose
 * text, with ranks and remedy, is cool_error_message(). Those that begin with cool_i return at once; their buffers
 * must stay until cool_wait. Any thread may call; let one thread of a rank do so.
 */

#ifndef COOL_H
#define COOL_H

#include <stddef.h>
#include <stdint.h>
/** In place of send: the call finds its input in recv. */
#define COOL_IN_PLACE ((const void *)-1)
/** For cool_recv: from whichever rank sends first. */
#define COOL_ANY_SOURCE SIZE_MAX
/** For cool_recv: whatever its tag is. */
#define COOL_ANY_TAG UINT32_MAX


/**
 * What a function returns: COOL_OK or what kind of error there was.
 */
typedef uint32_t cool_status;

/**
 * A type of elements.
 */
typedef uint32_t cool_type;

/**
 * A communicator; 0 is none.
 */
typedef uint64_t cool_comm;

/**
 * How a reduction combines elements.
 */
typedef uint32_t cool_op;

/**
 * What cool_launch runs: gets the world, and what was given to cool_launch; returns 0 if all went well.
 */
typedef int (*cool_program)(cool_comm world, void *context);

/**
 * An operation, for cool_set_plan and cool_fold.
 */
typedef uint32_t cool_operation;

/**
 * A function of the program that combines: `left[i] = left[i] op right[i]` for `count` elements, where `left` is of
 * smaller ranks.
 */
typedef void (*cool_combine)(void *left, const void *right, size_t count, void *context);

/**
 * A call under way; 0 is none.
 */
typedef uint64_t cool_request;

/**
 * A message that a receive would take.
 */
typedef struct cool_probed {
  /**
   * The rank that sent it.
   */
  size_t source;
  /**
   * With this tag.
   */
  uint32_t tag;
  /**
   * Its length, whatever its elements are.
   */
  size_t bytes;
} cool_probed;

/**
 * What a receive got.
 */
typedef struct cool_message {
  /**
   * The rank that sent it.
   */
  size_t source;
  /**
   * With this tag.
   */
  uint32_t tag;
  /**
   * Elements.
   */
  size_t count;
} cool_message;

/**
 * Calls under way, of any communicators; 0 is none.
 */
typedef uint64_t cool_queue;

/**
 * All went well.
 */
#define COOL_OK 0

/**
 * The arguments make no sense. Nothing was sent.
 */
#define COOL_INVALID 1

/**
 * The process is no rank, or its environment makes no sense.
 */
#define COOL_ENVIRONMENT 2

/**
 * The node's agent is gone, or refused.
 */
#define COOL_AGENT 3

/**
 * Ranks called different operations, sizes, types or roots.
 */
#define COOL_MISMATCH 4

/**
 * Somebody did not come in time.
 */
#define COOL_TIMEOUT 5

/**
 * A rank, node or agent went away.
 */
#define COOL_LOST 6

/**
 * An earlier call failed.
 */
#define COOL_ABORTED 7

/**
 * There is no memory or no thread.
 */
#define COOL_SYSTEM 8

/**
 * Anything else.
 */
#define COOL_OTHER 9

/**
 * A rank has revoked the group.
 */
#define COOL_REVOKED 10

/**
 * A message was longer than its receive, which alone failed.
 */
#define COOL_TRUNCATED 11

/**
 * int8_t
 */
#define COOL_I8 0

/**
 * int16_t
 */
#define COOL_I16 1

/**
 * int32_t
 */
#define COOL_I32 2

/**
 * int64_t
 */
#define COOL_I64 3

/**
 * uint8_t
 */
#define COOL_U8 4

/**
 * uint16_t
 */
#define COOL_U16 5

/**
 * uint32_t
 */
#define COOL_U32 6

/**
 * uint64_t
 */
#define COOL_U64 7

/**
 * IEEE 754 half precision
 */
#define COOL_F16 8

/**
 * The upper half of a float
 */
#define COOL_BF16 9

/**
 * float
 */
#define COOL_F32 10

/**
 * double
 */
#define COOL_F64 11

/**
 * float complex
 */
#define COOL_C32 12

/**
 * double complex
 */
#define COOL_C64 13

/**
 * struct { int32_t value; uint32_t index; }
 */
#define COOL_I32_LOC 14

/**
 * struct { int64_t value; uint64_t index; }
 */
#define COOL_I64_LOC 15

/**
 * struct { float value; uint32_t index; }
 */
#define COOL_F32_LOC 16

/**
 * struct { double value; uint64_t index; }
 */
#define COOL_F64_LOC 17

/**
 * struct { int16_t value; int32_t index; }, MPI_SHORT_INT: as all COOL_..._INT, of equal values COOL_MIN_LOC and COOL_MAX_LOC
 * take that with the smaller signed index, and padding need not be kept
 */
#define COOL_I16_INT 32

/**
 * struct { int32_t value; int32_t index; }, MPI_2INT
 */
#define COOL_I32_INT 33

/**
 * struct { int64_t value; int32_t index; }, MPI_LONG_INT where a long has 64 bits
 */
#define COOL_I64_INT 34

/**
 * struct { float value; int32_t index; }, MPI_FLOAT_INT
 */
#define COOL_F32_INT 35

/**
 * struct { double value; int32_t index; }, MPI_DOUBLE_INT
 */
#define COOL_F64_INT 36

/**
 * The sum.
 */
#define COOL_SUM 0

/**
 * The product.
 */
#define COOL_PROD 1

/**
 * The smallest.
 */
#define COOL_MIN 2

/**
 * The largest.
 */
#define COOL_MAX 3

/**
 * Of integers: 1 if none is 0, else 0.
 */
#define COOL_LOGICAL_AND 4

/**
 * Of integers: 0 if all are 0, else 1.
 */
#define COOL_LOGICAL_OR 5

/**
 * Of integers: 1 if an odd number of them is not 0, else 0.
 */
#define COOL_LOGICAL_XOR 6

/**
 * Of integers: the bits that all have.
 */
#define COOL_BIT_AND 7

/**
 * Of integers: the bits that any has.
 */
#define COOL_BIT_OR 8

/**
 * Of integers: the bits that an odd number of them has.
 */
#define COOL_BIT_XOR 9

/**
 * Of values with an index: the smallest, with its index.
 */
#define COOL_MIN_LOC 10

/**
 * Of values with an index: the largest, with its index.
 */
#define COOL_MAX_LOC 11

/**
 * Of floating-point and complex numbers: the sum over the number of ranks.
 */
#define COOL_AVERAGE 12

/**
 * cool_bcast
 */
#define COOL_BCAST 0

/**
 * cool_reduce
 */
#define COOL_REDUCE 1

/**
 * cool_allreduce
 */
#define COOL_ALLREDUCE 2

/**
 * cool_gather and cool_gatherv
 */
#define COOL_GATHER 3

/**
 * cool_allgather and cool_allgatherv
 */
#define COOL_ALLGATHER 4

/**
 * cool_scatter and cool_scatterv
 */
#define COOL_SCATTER 5

/**
 * cool_reduce_scatter and cool_reduce_scatter_counts
 */
#define COOL_REDUCE_SCATTER 6

/**
 * cool_alltoall and cool_alltoallv
 */
#define COOL_ALLTOALL 7

/**
 * cool_scan
 */
#define COOL_SCAN 8

/**
 * cool_exscan
 */
#define COOL_EXSCAN 9

/**
 * cool_barrier
 */
#define COOL_BARRIER 10

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Sends the root's `data`, of `count` elements, to all.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_bcast(void *data, size_t count, cool_type dtype, size_t root, cool_comm comm);

/**
 * Combines all ranks' `count` elements into the root's `recv`.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_reduce(const void *send,
                        void *recv,
                        size_t count,
                        cool_type dtype,
                        cool_op op,
                        size_t root,
                        cool_comm comm);

/**
 * Combines all ranks' `count` elements into every rank's `recv`.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_allreduce(const void *send,
                           void *recv,
                           size_t count,
                           cool_type dtype,
                           cool_op op,
                           cool_comm comm);

/**
 * Combines all ranks' `send` and deals the result out: rank i gets the i-th `count` elements.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_reduce_scatter(const void *send,
                                void *recv,
                                size_t count,
                                cool_type dtype,
                                cool_op op,
                                cool_comm comm);

/**
 * cool_reduce_scatter in parts of unequal lengths: rank i gets `counts[i]` elements. All ranks pass the
 * same counts.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_reduce_scatter_counts(const void *send,
                                       void *recv,
                                       const size_t *counts,
                                       cool_type dtype,
                                       cool_op op,
                                       cool_comm comm);

/**
 * Combines the `count` elements of this rank and of all before it.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_scan(const void *send,
                      void *recv,
                      size_t count,
                      cool_type dtype,
                      cool_op op,
                      cool_comm comm);

/**
 * Combines the `count` elements of all ranks before this one; rank 0's `recv` stays as it is.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_exscan(const void *send,
                        void *recv,
                        size_t count,
                        cool_type dtype,
                        cool_op op,
                        cool_comm comm);

/**
 * Puts all ranks' `count` elements, in rank order, into the root's `recv`.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_gather(const void *send,
                        void *recv,
                        size_t count,
                        cool_type dtype,
                        size_t root,
                        cool_comm comm);

/**
 * cool_gather of parts of unequal lengths: rank i sends `counts[i]` elements. All ranks pass the same
 * counts.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_gatherv(const void *send,
                         void *recv,
                         const size_t *counts,
                         cool_type dtype,
                         size_t root,
                         cool_comm comm);

/**
 * Puts all ranks' `count` elements, in rank order, into every rank's `recv`. In place, each has its own
 * part there.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_allgather(const void *send, void *recv, size_t count, cool_type dtype, cool_comm comm);

/**
 * cool_allgather of parts of unequal lengths: rank i sends `counts[i]` elements. All ranks pass the same
 * counts.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_allgatherv(const void *send,
                            void *recv,
                            const size_t *counts,
                            cool_type dtype,
                            cool_comm comm);

/**
 * Deals the root's `send` out: rank i gets the i-th `count` elements.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_scatter(const void *send,
                         void *recv,
                         size_t count,
                         cool_type dtype,
                         size_t root,
                         cool_comm comm);

/**
 * cool_scatter in parts of unequal lengths: rank i gets `counts[i]` elements. All ranks pass the same
 * counts.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_scatterv(const void *send,
                          void *recv,
                          const size_t *counts,
                          cool_type dtype,
                          size_t root,
                          cool_comm comm);

/**
 * Deals every rank's `send` out: the i-th `count` elements go to rank i.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_alltoall(const void *send, void *recv, size_t count, cool_type dtype, cool_comm comm);

/**
 * cool_alltoall of parts of unequal lengths: `counts[i * size + j]` elements go from rank i to rank j. All
 * ranks pass the same counts.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile.
 */
cool_status cool_alltoallv(const void *send,
                           void *recv,
                           const size_t *counts,
                           cool_type dtype,
                           cool_comm comm);

/**
 * Returns when all ranks have called it.
 */
cool_status cool_barrier(cool_comm comm);

/**
 * All ranks of the program, as the launcher started them: `cool run`, srun, mpirun, torchrun. Waits for all.
 *
 * # Safety
 * `world` points to a communicator.
 */
cool_status cool_world(cool_comm *world);

/**
 * A group of processes that have agreed on a key by themselves: rank `rank` of `size`, with all others of the same user
 * that give the same `key` (1 to 200 bytes). Waits until all `size` have come, for at most `milliseconds`. No launcher is
 * needed. The agent is the one at `socket`; if that is null, at COOL_SOCKET, or else the only one in /run/cool. A key can be
 * used again when its group has been made, but a random one cannot meet a process that was left over.
 *
 * # Safety
 * `key` is a string, and so is `socket`, unless it is null; `comm` points to a communicator.
 */
cool_status cool_join(const char *key,
                      size_t rank,
                      size_t size,
                      uint64_t milliseconds,
                      const char *socket,
                      cool_comm *comm);

/**
 * The communicator again, as `again`, whose calls fail when they make no progress for `milliseconds`, whatever
 * cool_set_timeout says: for the timeout of one call. Nothing is sent. Free both; the rank has left the group when all are freed.
 *
 * # Safety
 * `again` points to a communicator.
 */
cool_status cool_with_timeout(cool_comm comm,
                              uint64_t milliseconds,
                              cool_comm *again);

/**
 * The communicator again, as `again`, to which started calls lend their arrays: memory of cool_alloc is used where it is,
 * as by calls that wait, without a copy when a call starts and when it is done. Who starts a call by it promises, until
 * that was waited for, not to write to what it sends, and neither to read nor to write what it receives into. Nothing is
 * sent. Free both; the rank has left the group when all are freed.
 *
 * # Safety
 * The promise is kept; `again` points to a communicator.
 */
cool_status cool_lending(cool_comm comm,
                         cool_comm *again);

/**
 * Runs a program as the rank that a launcher started this process as; in a process that was started by hand, as 4
 * ranks (COOL_EMBEDDED sets another number) in threads of this process, with agents on loopback. The world is freed
 * when the program returns. `result` gets the first result that is not 0.
 *
 * # Safety
 * The program can be run in several threads with this context; `result` points to a number.
 */
cool_status cool_launch(cool_program program,
                        void *context,
                        int *result);

/**
 * This rank's number in a group, from 0.
 *
 * # Safety
 * `rank` points to a number.
 */
cool_status cool_rank(cool_comm comm, size_t *rank);

/**
 * The number of ranks of a group.
 *
 * # Safety
 * `size` points to a number.
 */
cool_status cool_size(cool_comm comm, size_t *size);

/**
 * The group's number in the network, as errors and `cool groups` have it.
 *
 * # Safety
 * `group` points to a number.
 */
cool_status cool_group(cool_comm comm, uint64_t *group);

/**
 * Where a rank runs: its node, counted over the group with racks in order, and its rack.
 *
 * # Safety
 * `node` and `rack` point to numbers.
 */
cool_status cool_place(cool_comm comm, size_t rank, size_t *node, size_t *rack);

/**
 * Splits a group: ranks that give the same color form a new group, ordered by `key`, then by rank. Who gives a
 * negative color is in none and gets 0. All ranks of the group call this.
 *
 * # Safety
 * `part` points to a communicator.
 */
cool_status cool_split(cool_comm comm,
                       int64_t color,
                       int64_t key,
                       cool_comm *part);

/**
 * A group of the same ranks, whose calls do not meet those of the first. All ranks of the group call this.
 *
 * # Safety
 * `copy` points to a communicator.
 */
cool_status cool_dup(cool_comm comm, cool_comm *copy);

/**
 * A group of `n` of the ranks, in that order; the others get 0. All ranks of the group call this alike.
 *
 * # Safety
 * `ranks` has `n` numbers, and `part` points to a communicator.
 */
cool_status cool_subset(cool_comm comm, const size_t *ranks, size_t n, cool_comm *part);

/**
 * Leaves a group. Calls that are under way are finished.
 */
cool_status cool_free(cool_comm comm);

/**
 * Lets later calls fail when they make no progress for `milliseconds`; 5 minutes if never set.
 */
cool_status cool_set_timeout(cool_comm comm, uint64_t milliseconds);

/**
 * Lets what this rank's node multicasts for later calls of the group give way to whatever else uses its path, if
 * `background` is not 0: it takes what others leave.
 */
cool_status cool_set_background(cool_comm comm,
                                int background);

/**
 * Forces the plan of later calls of an operation, as `cool plan` writes it; "" leaves it to the agents again. All
 * ranks force the same.
 *
 * # Safety
 * `plan` is a string.
 */
cool_status cool_set_plan(cool_comm comm,
                          cool_operation operation,
                          const char *plan);

/**
 * What went wrong in this thread's last call that failed, in words; it stays until the next such call.
 */
const char *cool_error_message(void);

/**
 * The ranks that the last error of this thread is about: as many as fit are written to `ranks`; returns how many
 * there are.
 *
 * # Safety
 * `ranks` has room for `room` numbers, or `room` is 0.
 */
size_t cool_error_ranks(size_t *ranks,
                        size_t room);

/**
 * Runs a command on files and waits for its end: copy, put, get, ls, stat, rm or verify, as `cool` has them (docs/guide/copy.md, docs/guide/store.md). `arguments` are
 * those of its command line, the command first, and a null pointer last; with --json, `outcome` gets the document that
 * it prints, also if not all nodes have what they should (COOL_OTHER, and the message names them), or null if there is none. Free it by cool_free_text.
 * The program is `cool` in the PATH, or COOL_PROGRAM. The process need not be a rank.
 *
 * # Safety
 * `arguments` is an array of strings that ends with a null pointer; `outcome` points to a pointer.
 */
cool_status cool_files(const char *const *arguments,
                       char **outcome);

/**
 * Frees a text that was given to the program. Null is nothing.
 *
 * # Safety
 * `text` is null, or came from cool_files and was not freed before.
 */
void cool_free_text(char *text);

/**
 * A reduction (COOL_REDUCE, COOL_ALLREDUCE, COOL_REDUCE_SCATTER, COOL_SCAN, COOL_EXSCAN) by a function of the program,
 * which need not be commutative, on elements of `element` bytes. `count` and `root` are as for the operation. All ranks
 * pass the same function.
 *
 * # Safety
 * The buffers are as long as the operation says, and nobody else uses them meanwhile; the function keeps to its arrays.
 */
cool_status cool_fold(cool_operation operation,
                      const void *send,
                      void *recv,
                      size_t count,
                      size_t element,
                      cool_combine combine,
                      void *context,
                      size_t root,
                      cool_comm comm);

/**
 * cool_reduce_scatter_counts by a function of the program; see cool_fold.
 *
 * # Safety
 * As cool_fold.
 */
cool_status cool_fold_counts(const void *send,
                             void *recv,
                             const size_t *counts,
                             size_t element,
                             cool_combine combine,
                             void *context,
                             cool_comm comm);

/**
 * Starts cool_fold. The function is called by whoever waits for the call, in that thread. All vectors go to each rank that
 * receives: for long ones cool_fold costs less, but of a reduce_scatter, which moves as much.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received, the function
 * and what its context points to until cool_wait. `request` points to a request.
 */
cool_status cool_ifold(cool_operation operation,
                       const void *send,
                       void *recv,
                       size_t count,
                       size_t element,
                       cool_combine combine,
                       void *context,
                       size_t root,
                       cool_comm comm,
                       cool_request *request);

/**
 * Starts cool_fold_counts; see cool_ifold.
 *
 * # Safety
 * As cool_ifold.
 */
cool_status cool_ifold_counts(const void *send,
                              void *recv,
                              const size_t *counts,
                              size_t element,
                              cool_combine combine,
                              void *context,
                              cool_comm comm,
                              cool_request *request);

/**
 * `bytes` zeros in memory that is shared with the agent, for any type of elements: calls of this communicator that wait
 * (and those that begin with cool_i, by cool_lending) take what they send from there, and put there what they receive,
 * without a copy; what is overwritten in place is copied all the same before it is sent, and so is what comes into a part of
 * the memory that does not begin and end at multiples of the system's page size or at the ends. A call that fails may have
 * overwritten a part of what it was to receive. The memory outlives its communicator; give it back by cool_dealloc.
 *
 * # Safety
 * `data` points to a pointer.
 */
cool_status cool_alloc(size_t bytes,
                       cool_comm comm,
                       void **data);

/**
 * Gives back what cool_alloc gave, or NULL. A call that still uses it in another thread keeps it until that is done.
 */
cool_status cool_dealloc(void *data);

/**
 * Sends `count` elements to a rank, which receives them with the same type and tag. Messages from one rank to
 * another are received in the order in which they were sent, among those that a receive takes.
 *
 * # Safety
 * `data` has `count` elements.
 */
cool_status cool_send(const void *data,
                      size_t count,
                      cool_type dtype,
                      size_t dest,
                      uint32_t tag,
                      cool_comm comm);

/**
 * cool_send, done when a receive has taken the message.
 *
 * # Safety
 * `data` has `count` elements.
 */
cool_status cool_ssend(const void *data,
                       size_t count,
                       cool_type dtype,
                       size_t dest,
                       uint32_t tag,
                       cool_comm comm);

/**
 * Waits until there is a message that a receive from `source`, or COOL_ANY_SOURCE, with `tag`, or COOL_ANY_TAG, would
 * take, which `probed` gets. It stays there.
 *
 * # Safety
 * `probed` points to one.
 */
cool_status cool_probe(size_t source,
                       uint32_t tag,
                       cool_comm comm,
                       struct cool_probed *probed);

/**
 * cool_probe without waiting: `found` gets 1, or 0 if there is none, which leaves `probed` as it is.
 *
 * # Safety
 * `found` points to a number, `probed` to one.
 */
cool_status cool_iprobe(size_t source, uint32_t tag, cool_comm comm, int *found, struct cool_probed *probed);

/**
 * Receives at most `count` elements from a rank, or COOL_ANY_SOURCE, with a tag, or COOL_ANY_TAG. `message` gets what
 * came, unless it is null. One that is longer is gone (COOL_TRUNCATED), and the group goes on.
 *
 * # Safety
 * `data` has room for `count` elements, and nobody else uses it meanwhile; `message` points to one, or is null.
 */
cool_status cool_recv(void *data,
                      size_t count,
                      cool_type dtype,
                      size_t source,
                      uint32_t tag,
                      cool_comm comm,
                      struct cool_message *message);

/**
 * Starts cool_send.
 *
 * # Safety
 * `data` has `count` elements, which stay until this returns; `request` points to a request.
 */
cool_status cool_isend(const void *data,
                       size_t count,
                       cool_type dtype,
                       size_t dest,
                       uint32_t tag,
                       cool_comm comm,
                       cool_request *request);

/**
 * Starts cool_ssend.
 *
 * # Safety
 * `data` has `count` elements, which stay until this returns; `request` points to a request.
 */
cool_status cool_issend(const void *data,
                        size_t count,
                        cool_type dtype,
                        size_t dest,
                        uint32_t tag,
                        cool_comm comm,
                        cool_request *request);

/**
 * Starts cool_recv.
 *
 * # Safety
 * `data` has room for `count` elements, and nobody else uses it until cool_wait; `request` points to a request.
 */
cool_status cool_irecv(void *data,
                       size_t count,
                       cool_type dtype,
                       size_t source,
                       uint32_t tag,
                       cool_comm comm,
                       cool_request *request);

/**
 * cool_wait, for a request of cool_irecv; `message` gets what came.
 *
 * # Safety
 * `message` points to one.
 */
cool_status cool_wait_message(cool_request request, struct cool_message *message);

/**
 * Takes a request of cool_irecv back, and frees it: `cancelled` gets 1 if nothing has come that it takes; else 0, and `message`
 * gets what came, unless it is null.
 *
 * # Safety
 * `cancelled` points to a number, `message` to one, or is null.
 */
cool_status cool_cancel(cool_request request,
                        int *cancelled,
                        struct cool_message *message);

/**
 * cool_gatherv where only the root has `counts`, and each rank the `count` elements that it sends. The root tells the others
 * first (a bcast of 8 bytes for each rank). COOL_IN_PLACE is for the root.
 *
 * # Safety
 * The buffers are as long as the counts say, and nobody else uses them meanwhile.
 */
cool_status cool_gatherv_of_own(const void *send,
                                size_t count,
                                void *recv,
                                const size_t *counts,
                                cool_type dtype,
                                size_t root,
                                cool_comm comm);

/**
 * cool_scatterv where only the root has `counts`, and each rank the `count` elements that it receives. The root tells the others
 * first (a bcast of 8 bytes for each rank).
 *
 * # Safety
 * The buffers are as long as the counts say, and nobody else uses them meanwhile.
 */
cool_status cool_scatterv_of_own(const void *send,
                                 const size_t *counts,
                                 void *recv,
                                 size_t count,
                                 cool_type dtype,
                                 size_t root,
                                 cool_comm comm);

/**
 * cool_alltoallv where each rank has how many elements it sends to each, and receives from each. All tell all first (an
 * allgather of 16 bytes for each pair of ranks).
 *
 * # Safety
 * The buffers are as long as the counts say, of which there are as many as ranks, and nobody else uses them meanwhile.
 */
cool_status cool_alltoallv_of_own(const void *send,
                                  const size_t *sent,
                                  void *recv,
                                  const size_t *received,
                                  cool_type dtype,
                                  cool_comm comm);

/**
 * A queue that tells which of many calls is done first; they may be of several communicators. Any number of threads may add
 * calls and wait for the next; one suffices for all calls of a process.
 *
 * # Safety
 * `queue` points to a queue.
 */
cool_status cool_queue_new(cool_queue *queue);

/**
 * Gives a call to a queue, with a token by which the program knows it. The request is the queue's from now on: neither wait
 * for it nor test it.
 */
cool_status cool_queue_add(cool_queue queue,
                           cool_request request,
                           uint64_t token);

/**
 * Waits for a call of a queue that is done, also for one that another thread adds meanwhile, but at most for
 * `microseconds`. `done` gets 1, or 0 if there was none; `token` gets that of the call, and `message`, unless it is null, what
 * came, if it was a receive. If the call failed, its error is returned, and `done` and `token` are set all the same.
 *
 * # Safety
 * `done` and `token` point to numbers; `message` points to one, or is null.
 */
cool_status cool_queue_next(cool_queue queue,
                            uint64_t microseconds,
                            int *done,
                            uint64_t *token,
                            struct cool_message *message);

/**
 * Frees a queue. Its calls go on without their results.
 */
cool_status cool_queue_free(cool_queue queue);

/**
 * A group of the ranks that are left, in their old order; it works after calls of this group have failed. A rank is
 * gone if it has ended or freed its communicator, its agent is gone, or it does not come within the shortest timeout
 * that any has set. All ranks that are left call this; cool_free the old group afterwards.
 *
 * # Safety
 * `rest` points to a communicator.
 */
cool_status cool_shrink(cool_comm comm,
                        cool_comm *rest);

/**
 * Puts the bitwise and of what all ranks give that are left in `flags`, and who is gone in `gone`: as many as there is
 * `room` for, and into `count` how many there are. It works after calls of this group have failed. All ranks that are
 * left call this.
 *
 * # Safety
 * `flags` points to this rank's number, `count` to a number, and `gone` has room for `room` numbers, or `room` is 0.
 */
cool_status cool_agree(cool_comm comm,
                       uint64_t *flags,
                       size_t *gone,
                       size_t room,
                       size_t *count);

/**
 * Lets all calls of a group fail with COOL_REVOKED that are under way or come later, at every rank. Only cool_agree
 * and cool_shrink work afterwards.
 */
cool_status cool_revoke(cool_comm comm);

/**
 * The ranks of the group from which cool_shrink made this one that are not in it: as many as there is `room` for, and
 * into `count` how many there are.
 *
 * # Safety
 * `count` points to a number, and `gone` has room for `room` numbers, or `room` is 0.
 */
cool_status cool_gone(cool_comm comm,
                      size_t *gone,
                      size_t room,
                      size_t *count);

/**
 * Waits until a call is done, and frees the request.
 */
cool_status cool_wait(cool_request request);

/**
 * Waits until a call is done, but at most for `microseconds`; `done` gets 1 or 0. If it is done, what it received is there;
 * cool_wait then returns at once, and frees the request. It can be called again and again, with waits as short as one likes.
 * If the call failed, that is told here, and the request is freed.
 *
 * # Safety
 * `done` points to a number.
 */
cool_status cool_wait_for(cool_request request,
                          uint64_t microseconds,
                          int *done);

/**
 * Waits for all of `n` calls and frees their requests. The error is that of the first that failed.
 *
 * # Safety
 * There are `n` requests at `requests`.
 */
cool_status cool_wait_all(const cool_request *requests, size_t n);

/**
 * Whether cool_wait would return at once: `done` gets 1 or 0.
 *
 * # Safety
 * `done` points to a number.
 */
cool_status cool_test(cool_request request, int *done);

/**
 * Starts cool_bcast.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_ibcast(void *data,
                        size_t count,
                        cool_type dtype,
                        size_t root,
                        cool_comm comm,
                        cool_request *request);

/**
 * Starts cool_reduce.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_ireduce(const void *send,
                         void *recv,
                         size_t count,
                         cool_type dtype,
                         cool_op op,
                         size_t root,
                         cool_comm comm,
                         cool_request *request);

/**
 * Starts cool_allreduce.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_iallreduce(const void *send,
                            void *recv,
                            size_t count,
                            cool_type dtype,
                            cool_op op,
                            cool_comm comm,
                            cool_request *request);

/**
 * Starts cool_reduce_scatter.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_ireduce_scatter(const void *send,
                                 void *recv,
                                 size_t count,
                                 cool_type dtype,
                                 cool_op op,
                                 cool_comm comm,
                                 cool_request *request);

/**
 * Starts cool_reduce_scatter_counts.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_ireduce_scatter_counts(const void *send,
                                        void *recv,
                                        const size_t *counts,
                                        cool_type dtype,
                                        cool_op op,
                                        cool_comm comm,
                                        cool_request *request);

/**
 * Starts cool_scan.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_iscan(const void *send,
                       void *recv,
                       size_t count,
                       cool_type dtype,
                       cool_op op,
                       cool_comm comm,
                       cool_request *request);

/**
 * Starts cool_exscan.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_iexscan(const void *send,
                         void *recv,
                         size_t count,
                         cool_type dtype,
                         cool_op op,
                         cool_comm comm,
                         cool_request *request);

/**
 * Starts cool_gather.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_igather(const void *send,
                         void *recv,
                         size_t count,
                         cool_type dtype,
                         size_t root,
                         cool_comm comm,
                         cool_request *request);

/**
 * Starts cool_gatherv.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_igatherv(const void *send,
                          void *recv,
                          const size_t *counts,
                          cool_type dtype,
                          size_t root,
                          cool_comm comm,
                          cool_request *request);

/**
 * Starts cool_allgather.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_iallgather(const void *send,
                            void *recv,
                            size_t count,
                            cool_type dtype,
                            cool_comm comm,
                            cool_request *request);

/**
 * Starts cool_allgatherv.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_iallgatherv(const void *send,
                             void *recv,
                             const size_t *counts,
                             cool_type dtype,
                             cool_comm comm,
                             cool_request *request);

/**
 * Starts cool_scatter.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_iscatter(const void *send,
                          void *recv,
                          size_t count,
                          cool_type dtype,
                          size_t root,
                          cool_comm comm,
                          cool_request *request);

/**
 * Starts cool_scatterv.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_iscatterv(const void *send,
                           void *recv,
                           const size_t *counts,
                           cool_type dtype,
                           size_t root,
                           cool_comm comm,
                           cool_request *request);

/**
 * Starts cool_alltoall.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_ialltoall(const void *send,
                           void *recv,
                           size_t count,
                           cool_type dtype,
                           cool_comm comm,
                           cool_request *request);

/**
 * Starts cool_alltoallv.
 *
 * # Safety
 * The buffers are as long as the operation says; what is sent stays until this returns, what is received until
 * cool_wait. `request` points to a request.
 */
cool_status cool_ialltoallv(const void *send,
                            void *recv,
                            const size_t *counts,
                            cool_type dtype,
                            cool_comm comm,
                            cool_request *request);

/**
 * Starts cool_barrier.
 *
 * # Safety
 * `request` points to a request.
 */
cool_status cool_ibarrier(cool_comm comm, cool_request *request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COOL_H */
