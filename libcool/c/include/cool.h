/* COOL: collective communication for clusters with programmable networks.
 *
 * Generated from libcool/c/src by cbindgen; do not edit. `cargo test -p cool-c` checks that it is current.
 *
 * A program is a function that runs as several ranks (cool_launch), or a process that gets its communicator by
 * cool_world. All ranks of a group must call the same collectives in the same order with the same arguments.
 *
 * Each function returns COOL_OK or the kind of an error. cool_error_message() then returns a message that names the
 * ranks and the remedy. No call waits forever.
 *
 * Functions that begin with cool_i start a call and return at once. The caller must then wait for the request
 * (cool_wait), and must not access the receive buffer before.
 *
 * For example, this program adds a number of each rank; started by `cool run -n 16 -- ./program`, every rank prints 16:
 *
 *     static int program(cool_comm world, void *context) {
 *         double mine = 1, sum;
 *         (void)context;
 *         if (cool_allreduce(&mine, &sum, 1, COOL_F64, COOL_SUM, world) != COOL_OK) {
 *             fprintf(stderr, "%s", cool_error_message());
 *             return 1;
 *         }
 *         printf("%g ", sum);
 *         return 0;
 *     }
 *
 *     int main(void) {
 *         int result;
 *         return cool_launch(program, NULL, &result) != COOL_OK || result != 0;
 *     }
 *
 * Any thread may call these functions, but only one thread of a rank should call collectives, because their order
 * matters.
 */

#ifndef COOL_H
#define COOL_H

#include <stddef.h>
#include <stdint.h>
/** Pass this as send if the input is in recv. */
#define COOL_IN_PLACE ((const void *)-1)
/** For cool_recv: a message from any rank. */
#define COOL_ANY_SOURCE SIZE_MAX
/** For cool_recv: a message with any tag. */
#define COOL_ANY_TAG UINT32_MAX


/**
 * The result of a function: COOL_OK, or the kind of the error.
 */
typedef uint32_t cool_status;

/**
 * A type of elements.
 */
typedef uint32_t cool_type;

/**
 * A communicator: a rank's place in a group. 0 is not a communicator.
 */
typedef uint64_t cool_comm;

/**
 * How a reduction combines elements.
 */
typedef uint32_t cool_op;

/**
 * A program for cool_launch. It gets the communicator of all ranks and the context that was passed
 * to cool_launch, and must return 0 on success.
 */
typedef int (*cool_program)(cool_comm world, void *context);

/**
 * An operation, for cool_set_plan, cool_fold and cool_ifold.
 */
typedef uint32_t cool_operation;

/**
 * A function of the program that combines two arrays: it must set `left[i] = left[i] op right[i]`
 * for `count` elements. `left` contains the elements of smaller ranks.
 */
typedef void (*cool_combine)(void *left, const void *right, size_t count, void *context);

/**
 * A pending call. 0 is not a request.
 */
typedef uint64_t cool_request;

/**
 * A queued message that a receive would match.
 */
typedef struct cool_probed {
  /**
   * Rank that sent the message.
   */
  size_t source;
  /**
   * Tag of the message.
   */
  uint32_t tag;
  /**
   * Length of the message in bytes, for any element type.
   */
  size_t bytes;
} cool_probed;

/**
 * A received message.
 */
typedef struct cool_message {
  /**
   * Rank that sent the message.
   */
  size_t source;
  /**
   * Tag of the message.
   */
  uint32_t tag;
  /**
   * Number of received elements.
   */
  size_t count;
} cool_message;

/**
 * A queue of pending calls of any communicators. 0 is not a queue.
 */
typedef uint64_t cool_queue;

/**
 * Success.
 */
#define COOL_OK 0

/**
 * The arguments are invalid. Nothing was sent.
 */
#define COOL_INVALID 1

/**
 * The process is not a rank, or its environment is invalid.
 */
#define COOL_ENVIRONMENT 2

/**
 * The agent of the node is unreachable, or refused this rank.
 */
#define COOL_AGENT 3

/**
 * Ranks called different operations, sizes, types or roots.
 */
#define COOL_MISMATCH 4

/**
 * A rank did not join the call in time.
 */
#define COOL_TIMEOUT 5

/**
 * A rank, node or agent was lost.
 */
#define COOL_LOST 6

/**
 * An earlier call of the group failed.
 */
#define COOL_ABORTED 7

/**
 * The system cannot provide memory or a thread.
 */
#define COOL_SYSTEM 8

/**
 * Any other error.
 */
#define COOL_OTHER 9

/**
 * A rank revoked the group.
 */
#define COOL_REVOKED 10

/**
 * A message was longer than its receive. Only the receive failed.
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
 * bfloat16: the upper half of a float
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
 * float complex (two 32-bit numbers; complex64 in NumPy)
 */
#define COOL_C32 12

/**
 * double complex (two 64-bit numbers; complex128 in NumPy)
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
 * struct { int16_t value; int32_t index; }, MPI_SHORT_INT. For all COOL_..._INT types,
 * COOL_MIN_LOC and COOL_MAX_LOC select the smaller signed index among equal values. Padding is not
 * preserved.
 */
#define COOL_I16_INT 32

/**
 * struct { int32_t value; int32_t index; }, MPI_2INT
 */
#define COOL_I32_INT 33

/**
 * struct { int64_t value; int32_t index; }, MPI_LONG_INT if a long has 64 bits
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
 * Sum.
 */
#define COOL_SUM 0

/**
 * Product.
 */
#define COOL_PROD 1

/**
 * Minimum.
 */
#define COOL_MIN 2

/**
 * Maximum.
 */
#define COOL_MAX 3

/**
 * Integers only: 1 if no element is 0, otherwise 0.
 */
#define COOL_LOGICAL_AND 4

/**
 * Integers only: 0 if all elements are 0, otherwise 1.
 */
#define COOL_LOGICAL_OR 5

/**
 * Integers only: 1 if an odd number of elements is not 0, otherwise 0.
 */
#define COOL_LOGICAL_XOR 6

/**
 * Integers only: bitwise AND.
 */
#define COOL_BIT_AND 7

/**
 * Integers only: bitwise OR.
 */
#define COOL_BIT_OR 8

/**
 * Integers only: bitwise exclusive OR.
 */
#define COOL_BIT_XOR 9

/**
 * Values with an index only: the smallest value, with its index.
 */
#define COOL_MIN_LOC 10

/**
 * Values with an index only: the largest value, with its index.
 */
#define COOL_MAX_LOC 11

/**
 * Floating-point and complex numbers only: the sum, divided by the number of ranks.
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
 * Sends the root's `data`, of `count` elements, to all ranks, where it overwrites `data`.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_bcast(void *data, size_t count, cool_type dtype, size_t root, cool_comm comm);

/**
 * Combines the `count` elements of all ranks, element by element, into the root's `recv`. Other
 * ranks may pass NULL as `recv`.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_reduce(const void *send,
                        void *recv,
                        size_t count,
                        cool_type dtype,
                        cool_op op,
                        size_t root,
                        cool_comm comm);

/**
 * Combines the `count` elements of all ranks, element by element, into the `recv` of every rank.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_allreduce(const void *send,
                           void *recv,
                           size_t count,
                           cool_type dtype,
                           cool_op op,
                           cool_comm comm);

/**
 * Combines the `send` arrays of all ranks and distributes the result: rank i receives the i-th
 * `count` elements. `send` has `count` elements for each rank.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_reduce_scatter(const void *send,
                                void *recv,
                                size_t count,
                                cool_type dtype,
                                cool_op op,
                                cool_comm comm);

/**
 * As cool_reduce_scatter, in parts of unequal lengths: rank i receives `counts[i]` elements. All
 * ranks must pass the same counts.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_reduce_scatter_counts(const void *send,
                                       void *recv,
                                       const size_t *counts,
                                       cool_type dtype,
                                       cool_op op,
                                       cool_comm comm);

/**
 * Combines the `count` elements of this rank and all preceding ranks, element by element, into
 * `recv`.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_scan(const void *send,
                      void *recv,
                      size_t count,
                      cool_type dtype,
                      cool_op op,
                      cool_comm comm);

/**
 * Combines the `count` elements of all preceding ranks, element by element, into `recv`. At rank
 * 0, which has no predecessors, `recv` is unchanged.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_exscan(const void *send,
                        void *recv,
                        size_t count,
                        cool_type dtype,
                        cool_op op,
                        cool_comm comm);

/**
 * Concatenates the `count` elements of all ranks, in rank order, in the root's `recv`. Other ranks
 * may pass NULL as `recv`.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_gather(const void *send,
                        void *recv,
                        size_t count,
                        cool_type dtype,
                        size_t root,
                        cool_comm comm);

/**
 * As cool_gather, with parts of unequal lengths: rank i sends `counts[i]` elements. All ranks must
 * pass the same counts.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_gatherv(const void *send,
                         void *recv,
                         const size_t *counts,
                         cool_type dtype,
                         size_t root,
                         cool_comm comm);

/**
 * Concatenates the `count` elements of all ranks, in rank order, in the `recv` of every rank. With
 * COOL_IN_PLACE, each rank must have filled its own part of `recv`.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_allgather(const void *send, void *recv, size_t count, cool_type dtype, cool_comm comm);

/**
 * As cool_allgather, with parts of unequal lengths: rank i sends `counts[i]` elements. All ranks
 * must pass the same counts.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_allgatherv(const void *send,
                            void *recv,
                            const size_t *counts,
                            cool_type dtype,
                            cool_comm comm);

/**
 * Distributes the root's `send`: rank i receives the i-th `count` elements. Other ranks may pass
 * NULL as `send`.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_scatter(const void *send,
                         void *recv,
                         size_t count,
                         cool_type dtype,
                         size_t root,
                         cool_comm comm);

/**
 * As cool_scatter, in parts of unequal lengths: rank i receives `counts[i]` elements. All ranks
 * must pass the same counts.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_scatterv(const void *send,
                          void *recv,
                          const size_t *counts,
                          cool_type dtype,
                          size_t root,
                          cool_comm comm);

/**
 * Distributes every rank's `send`: the i-th `count` elements are sent to rank i. `recv` contains
 * the received parts in rank order.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
 */
cool_status cool_alltoall(const void *send, void *recv, size_t count, cool_type dtype, cool_comm comm);

/**
 * As cool_alltoall, in parts of unequal lengths: `counts[i * size + j]` elements are sent from
 * rank i to rank j. All ranks must pass the same counts.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, and no other code may access them
 * during the call.
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
 * Stores the communicator of all ranks of the program in `world`. Returns when all ranks have
 * joined.
 *
 * The program must have been started by a launcher: `cool run`, srun, mpirun or torchrun.
 *
 * # Safety
 * `world` must point to a communicator.
 */
cool_status cool_world(cool_comm *world);

/**
 * Joins a group of processes that agreed on a key, as rank `rank` of `size`, and stores its
 * communicator in `comm`.
 *
 * The group consists of all processes of the same user that pass the same `key` (1 to 200 bytes).
 * Returns when all `size` ranks have joined, or COOL_TIMEOUT after `milliseconds`. No launcher is
 * needed. `socket` is the socket of the agent. If it is NULL, the process uses the socket that the
 * environment variable COOL_SOCKET names, or else the only one in /run/cool. A key can be used
 * again after its group was created, but keys should be random, because a leftover process of an
 * earlier run may otherwise join.
 *
 * # Safety
 * `key` must be a string, `socket` a string or NULL, and `comm` must point to a communicator.
 */
cool_status cool_join(const char *key,
                      size_t rank,
                      size_t size,
                      uint64_t milliseconds,
                      const char *socket,
                      cool_comm *comm);

/**
 * Stores a further handle of the communicator in `again`. Calls through it fail after
 * `milliseconds` without progress, regardless of cool_set_timeout, for example to set the timeout
 * of a single call.
 *
 * Nothing is sent. The caller must free both handles; the rank leaves the group when all are
 * freed.
 *
 * # Safety
 * `again` must point to a communicator.
 */
cool_status cool_with_timeout(cool_comm comm, uint64_t milliseconds, cool_comm *again);

/**
 * Stores a further handle of the communicator in `again`, for started calls that use memory of
 * cool_alloc without a copy, as blocking calls do.
 *
 * Until a call that was started through it has been waited for, the caller must not write to the
 * memory that it sends, nor read or write the memory that it receives into. Nothing is sent. The
 * caller must free both handles; the rank leaves the group when all are freed.
 *
 * # Safety
 * The caller must follow these rules, and `again` must point to a communicator.
 */
cool_status cool_lending(cool_comm comm, cool_comm *again);

/**
 * Runs a program as the rank for which a launcher started this process. In a process that was
 * started by hand, runs it as 4 ranks (COOL_EMBEDDED sets another number), in threads of this
 * process with agents on loopback.
 *
 * The communicator is freed when the program returns. Stores the first result other than 0 in
 * `result`, or 0 if there is none.
 *
 * # Safety
 * The program must be callable in several threads with this context, and `result` must point to an
 * int.
 */
cool_status cool_launch(cool_program program, void *context, int *result);

/**
 * Stores this rank's number in `rank`, from 0.
 *
 * # Safety
 * `rank` must point to a number.
 */
cool_status cool_rank(cool_comm comm, size_t *rank);

/**
 * Stores the number of ranks of the group in `size`.
 *
 * # Safety
 * `size` must point to a number.
 */
cool_status cool_size(cool_comm comm, size_t *size);

/**
 * Stores the group's number in the network, as errors and `cool groups` show it, in `group`.
 *
 * # Safety
 * `group` must point to a number.
 */
cool_status cool_group(cool_comm comm, uint64_t *group);

/**
 * Stores the location of a rank: the index of its node within the group, where nodes are numbered
 * rack by rack, and its rack.
 *
 * # Safety
 * `node` and `rack` must point to numbers.
 */
cool_status cool_place(cool_comm comm, size_t rank, size_t *node, size_t *rack);

/**
 * Splits the group. Ranks that pass the same color form a new group, ordered by `key`, and by rank
 * where keys are equal. Stores its communicator in `part`, or 0 at a rank that passes a negative
 * color. All ranks of the group must call this.
 *
 * # Safety
 * `part` must point to a communicator.
 */
cool_status cool_split(cool_comm comm, int64_t color, int64_t key, cool_comm *part);

/**
 * Creates a group of the same ranks, whose calls are independent of those of this group, and
 * stores its communicator in `copy`. All ranks of the group must call this.
 *
 * # Safety
 * `copy` must point to a communicator.
 */
cool_status cool_dup(cool_comm comm, cool_comm *copy);

/**
 * Creates a group of `n` of the ranks, in the given order, and stores its communicator in `part`,
 * or 0 at other ranks. All ranks of the group must call this with the same `ranks`.
 *
 * # Safety
 * `ranks` must point to `n` numbers, and `part` to a communicator.
 */
cool_status cool_subset(cool_comm comm, const size_t *ranks, size_t n, cool_comm *part);

/**
 * Leaves the group. Pending calls are still executed.
 */
cool_status cool_free(cool_comm comm);

/**
 * Sets the time without progress after which later calls fail. The default is 5 minutes.
 */
cool_status cool_set_timeout(cool_comm comm, uint64_t milliseconds);

/**
 * Sets whether multicasts of this rank's node for later calls of the group yield to other traffic:
 * if `background` is not 0, they use only the capacity that other traffic leaves.
 */
cool_status cool_set_background(cool_comm comm, int background);

/**
 * Forces the plan of later calls of an operation, as `cool plan` prints it. "" lets the agents
 * choose again. All ranks must force the same plan. Returns COOL_INVALID if the plan cannot
 * execute the operation; the message lists the plans that can.
 *
 * # Safety
 * `plan` must be a string.
 */
cool_status cool_set_plan(cool_comm comm, cool_operation operation, const char *plan);

/**
 * Returns the message of the last failed call of this thread. The pointer is valid until the next
 * failed call of the thread.
 */
const char *cool_error_message(void);

/**
 * Writes the ranks that the last error of this thread concerns to `ranks`, at most `room` of them.
 * Returns their total number.
 *
 * # Safety
 * `ranks` must have room for `room` numbers, or `room` must be 0.
 */
size_t cool_error_ranks(size_t *ranks, size_t room);

/**
 * Executes a file command: copy, put, get, ls, stat, rm or verify (docs/guide/copy.md,
 * docs/guide/store.md).
 *
 * `arguments` is its command line: the name of the command first, and a null pointer last. With
 * the argument --json, the JSON document that the command prints is stored in `outcome`;
 * otherwise, or if there is none, NULL is. The caller must free it by cool_free_text. If some
 * nodes failed, returns COOL_OTHER with a message that names them, and stores the document all the
 * same.
 *
 * The program is `cool` in the PATH, or COOL_PROGRAM. The process need not be a rank.
 *
 * # Safety
 * `arguments` must be an array of strings that ends with a null pointer, and `outcome` must point
 * to a pointer.
 */
cool_status cool_files(const char *const *arguments, char **outcome);

/**
 * Frees a text that the library returned. Does nothing for NULL.
 *
 * # Safety
 * `text` must be NULL or a text of cool_files that was not freed yet.
 */
void cool_free_text(char *text);

/**
 * Executes a reduction by a function of the program: COOL_REDUCE, COOL_ALLREDUCE,
 * COOL_REDUCE_SCATTER, COOL_SCAN or COOL_EXSCAN.
 *
 * Elements have `element` bytes. The function need not be commutative. `count` and `root` have the
 * meaning of the operation. All ranks must pass the same function.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires, no other code may access them
 * during the call, and the function must access only its arrays.
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
 * As cool_reduce_scatter_counts, with a function of the program; see cool_fold.
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
 * Starts cool_fold and stores the request.
 *
 * The thread that waits for the call calls the function. All vectors are sent to each receiving
 * rank, so cool_fold is faster for long vectors, except for a reduce_scatter, which moves the same
 * data in both forms.
 *
 * # Safety
 * As cool_fold, for this longer time: the caller must keep the send buffer unchanged until this
 * returns, and must not access the receive buffer, the function and its context until cool_wait
 * returns. `request` must point to a request.
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
 * Starts cool_fold_counts and stores the request; see cool_ifold.
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
 * Allocates `bytes` zero bytes that are shared with the agent, for any type of elements, and
 * stores their address in `data`. The caller must free them by cool_dealloc. The memory may
 * outlive the communicator.
 *
 * Blocking calls of this communicator, and calls that were started through cool_lending, send from
 * and receive into such memory without a copy. A copy is still made if a call works in place, or
 * receives into a part of the memory that does not begin and end at multiples of the system's page
 * size or at its ends. A call that fails may have overwritten a part of the memory that it
 * receives into.
 *
 * # Safety
 * `data` must point to a pointer.
 */
cool_status cool_alloc(size_t bytes, cool_comm comm, void **data);

/**
 * Frees memory of cool_alloc. Does nothing for NULL. A call of another thread that still uses the
 * memory keeps it until it is complete.
 */
cool_status cool_dealloc(void *data);

/**
 * Sends `count` elements to rank `dest`, which must receive them with the same type and tag.
 *
 * Among the messages that match a receive, those from one rank are received in the order in which
 * they were sent.
 *
 * # Safety
 * `data` must have `count` elements.
 */
cool_status cool_send(const void *data,
                      size_t count,
                      cool_type dtype,
                      size_t dest,
                      uint32_t tag,
                      cool_comm comm);

/**
 * As cool_send, but returns only when a receive has matched the message.
 *
 * # Safety
 * `data` must have `count` elements.
 */
cool_status cool_ssend(const void *data,
                       size_t count,
                       cool_type dtype,
                       size_t dest,
                       uint32_t tag,
                       cool_comm comm);

/**
 * Waits for a message that a receive from `source` (or COOL_ANY_SOURCE) with `tag` (or
 * COOL_ANY_TAG) would match, and describes it in `probed`. The message stays queued.
 *
 * # Safety
 * `probed` must point to a cool_probed.
 */
cool_status cool_probe(size_t source, uint32_t tag, cool_comm comm, struct cool_probed *probed);

/**
 * As cool_probe, but does not wait: stores 1 in `found` if there is such a message. Otherwise
 * stores 0 and leaves `probed` unchanged.
 *
 * # Safety
 * `found` must point to an int, and `probed` to a cool_probed.
 */
cool_status cool_iprobe(size_t source, uint32_t tag, cool_comm comm, int *found, struct cool_probed *probed);

/**
 * Receives at most `count` elements from `source` (or COOL_ANY_SOURCE) with `tag` (or
 * COOL_ANY_TAG), and describes the message in `message`, unless that is NULL.
 *
 * If the message is longer, it is lost and COOL_TRUNCATED is returned; the group stays usable.
 *
 * # Safety
 * `data` must have room for `count` elements, and no other code may access it during the call.
 * `message` must point to a cool_message or be NULL.
 */
cool_status cool_recv(void *data,
                      size_t count,
                      cool_type dtype,
                      size_t source,
                      uint32_t tag,
                      cool_comm comm,
                      struct cool_message *message);

/**
 * Starts cool_send and stores the request.
 *
 * # Safety
 * `data` must have `count` elements, which stay valid until this returns. `request` must point to
 * a request.
 */
cool_status cool_isend(const void *data,
                       size_t count,
                       cool_type dtype,
                       size_t dest,
                       uint32_t tag,
                       cool_comm comm,
                       cool_request *request);

/**
 * Starts cool_ssend and stores the request.
 *
 * # Safety
 * `data` must have `count` elements, which stay valid until this returns. `request` must point to
 * a request.
 */
cool_status cool_issend(const void *data,
                        size_t count,
                        cool_type dtype,
                        size_t dest,
                        uint32_t tag,
                        cool_comm comm,
                        cool_request *request);

/**
 * Starts cool_recv and stores the request.
 *
 * # Safety
 * `data` must have room for `count` elements, and the caller must not access it until the request
 * was waited for. `request` must point to a request.
 */
cool_status cool_irecv(void *data,
                       size_t count,
                       cool_type dtype,
                       size_t source,
                       uint32_t tag,
                       cool_comm comm,
                       cool_request *request);

/**
 * As cool_wait, for a request of cool_irecv. Describes the received message in `message`.
 *
 * # Safety
 * `message` must point to a cool_message.
 */
cool_status cool_wait_message(cool_request request, struct cool_message *message);

/**
 * Cancels a request of cool_irecv and frees it. Stores 1 in `cancelled` if no message had matched
 * it. Otherwise stores 0, and describes the received message in `message`, unless that is NULL.
 *
 * # Safety
 * `cancelled` must point to an int, and `message` to a cool_message or be NULL.
 */
cool_status cool_cancel(cool_request request, int *cancelled, struct cool_message *message);

/**
 * Starts cool_bcast and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_ibcast(void *data,
                        size_t count,
                        cool_type dtype,
                        size_t root,
                        cool_comm comm,
                        cool_request *request);

/**
 * Starts cool_reduce and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
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
 * Starts cool_allreduce and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_iallreduce(const void *send,
                            void *recv,
                            size_t count,
                            cool_type dtype,
                            cool_op op,
                            cool_comm comm,
                            cool_request *request);

/**
 * Starts cool_reduce_scatter and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_ireduce_scatter(const void *send,
                                 void *recv,
                                 size_t count,
                                 cool_type dtype,
                                 cool_op op,
                                 cool_comm comm,
                                 cool_request *request);

/**
 * Starts cool_reduce_scatter_counts and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_ireduce_scatter_counts(const void *send,
                                        void *recv,
                                        const size_t *counts,
                                        cool_type dtype,
                                        cool_op op,
                                        cool_comm comm,
                                        cool_request *request);

/**
 * Starts cool_scan and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_iscan(const void *send,
                       void *recv,
                       size_t count,
                       cool_type dtype,
                       cool_op op,
                       cool_comm comm,
                       cool_request *request);

/**
 * Starts cool_exscan and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_iexscan(const void *send,
                         void *recv,
                         size_t count,
                         cool_type dtype,
                         cool_op op,
                         cool_comm comm,
                         cool_request *request);

/**
 * Starts cool_gather and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_igather(const void *send,
                         void *recv,
                         size_t count,
                         cool_type dtype,
                         size_t root,
                         cool_comm comm,
                         cool_request *request);

/**
 * Starts cool_gatherv and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_igatherv(const void *send,
                          void *recv,
                          const size_t *counts,
                          cool_type dtype,
                          size_t root,
                          cool_comm comm,
                          cool_request *request);

/**
 * Starts cool_allgather and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_iallgather(const void *send,
                            void *recv,
                            size_t count,
                            cool_type dtype,
                            cool_comm comm,
                            cool_request *request);

/**
 * Starts cool_allgatherv and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_iallgatherv(const void *send,
                             void *recv,
                             const size_t *counts,
                             cool_type dtype,
                             cool_comm comm,
                             cool_request *request);

/**
 * Starts cool_scatter and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_iscatter(const void *send,
                          void *recv,
                          size_t count,
                          cool_type dtype,
                          size_t root,
                          cool_comm comm,
                          cool_request *request);

/**
 * Starts cool_scatterv and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_iscatterv(const void *send,
                           void *recv,
                           const size_t *counts,
                           cool_type dtype,
                           size_t root,
                           cool_comm comm,
                           cool_request *request);

/**
 * Starts cool_alltoall and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_ialltoall(const void *send,
                           void *recv,
                           size_t count,
                           cool_type dtype,
                           cool_comm comm,
                           cool_request *request);

/**
 * Starts cool_alltoallv and stores the request.
 *
 * # Safety
 * The buffers must have the lengths that the operation requires. The caller must keep the send
 * buffer unchanged until this returns, and must not access the receive buffer until cool_wait
 * returns. `request` must point to a request.
 */
cool_status cool_ialltoallv(const void *send,
                            void *recv,
                            const size_t *counts,
                            cool_type dtype,
                            cool_comm comm,
                            cool_request *request);

/**
 * Starts cool_barrier and stores the request.
 *
 * # Safety
 * `request` must point to a request.
 */
cool_status cool_ibarrier(cool_comm comm, cool_request *request);

/**
 * As cool_gatherv, but only the root must pass `counts`; each rank passes the `count` of elements
 * that it sends. The root broadcasts the counts first, 8 bytes for each rank. Only the root may
 * pass COOL_IN_PLACE.
 *
 * # Safety
 * The buffers must have the lengths that the counts require, and no other code may access them
 * during the call.
 */
cool_status cool_gatherv_of_own(const void *send,
                                size_t count,
                                void *recv,
                                const size_t *counts,
                                cool_type dtype,
                                size_t root,
                                cool_comm comm);

/**
 * As cool_scatterv, but only the root must pass `counts`; each rank passes the `count` of elements
 * that it receives. The root broadcasts the counts first, 8 bytes for each rank.
 *
 * # Safety
 * The buffers must have the lengths that the counts require, and no other code may access them
 * during the call.
 */
cool_status cool_scatterv_of_own(const void *send,
                                 const size_t *counts,
                                 void *recv,
                                 size_t count,
                                 cool_type dtype,
                                 size_t root,
                                 cool_comm comm);

/**
 * As cool_alltoallv, but each rank passes only the number of elements that it sends to and
 * receives from each rank. All ranks exchange their counts first, 16 bytes for each pair of ranks.
 *
 * # Safety
 * `sent` and `received` must have one number for each rank. The buffers must have the lengths that
 * these counts require, and no other code may access them during the call.
 */
cool_status cool_alltoallv_of_own(const void *send,
                                  const size_t *sent,
                                  void *recv,
                                  const size_t *received,
                                  cool_type dtype,
                                  cool_comm comm);

/**
 * Creates a queue that returns the first of many pending calls to complete, and stores it in
 * `queue`.
 *
 * The calls may belong to several communicators. Any number of threads may add calls and wait for
 * completions; a single thread suffices for all calls of a process.
 *
 * # Safety
 * `queue` must point to a queue.
 */
cool_status cool_queue_new(cool_queue *queue);

/**
 * Adds a request to a queue, with a token that identifies the call. The queue owns the request
 * from now on, so the caller must neither wait for it nor test it.
 */
cool_status cool_queue_add(cool_queue queue, cool_request request, uint64_t token);

/**
 * Waits for a completed call of a queue, including calls that other threads add meanwhile, but at
 * most for `microseconds`.
 *
 * Stores 1 in `done`, the token of the call in `token`, and the received message, for a receive,
 * in `message` unless that is NULL. Stores 0 in `done` if no call has completed. If the call
 * failed, returns its error; `done` and `token` are set then, too.
 *
 * # Safety
 * `done` must point to an int, `token` to a number, and `message` to a cool_message or be NULL.
 */
cool_status cool_queue_next(cool_queue queue,
                            uint64_t microseconds,
                            int *done,
                            uint64_t *token,
                            struct cool_message *message);

/**
 * Frees a queue. Its calls are still executed, without their results.
 */
cool_status cool_queue_free(cool_queue queue);

/**
 * Creates a group of the surviving ranks, in their old order, and stores its communicator in
 * `rest`. All survivors must call this. It works after calls of this group have failed.
 *
 * A rank counts as lost if it has ended or freed its communicator, its agent is unreachable, or it
 * does not call this within the shortest timeout that any survivor has set. The old group should
 * be freed afterwards, by cool_free.
 *
 * # Safety
 * `rest` must point to a communicator.
 */
cool_status cool_shrink(cool_comm comm, cool_comm *rest);

/**
 * Replaces `flags` with the bitwise AND of the flags of all surviving ranks. Writes the lost ranks
 * to `gone`, at most `room` of them, and stores their total number in `count`. All survivors must
 * call this. It works after calls of this group have failed.
 *
 * # Safety
 * `flags` must point to this rank's flags, `count` to a number, and `gone` must have room for
 * `room` numbers, or `room` must be 0.
 */
cool_status cool_agree(cool_comm comm, uint64_t *flags, size_t *gone, size_t room, size_t *count);

/**
 * Makes all pending and later calls of the group fail with COOL_REVOKED, at every rank. Only
 * cool_agree and cool_shrink work afterwards.
 */
cool_status cool_revoke(cool_comm comm);

/**
 * Writes the lost ranks of the group from which cool_shrink created this one to `gone`, at most
 * `room` of them, and stores their total number in `count`.
 *
 * # Safety
 * `count` must point to a number, and `gone` must have room for `room` numbers, or `room` must be
 * 0.
 */
cool_status cool_gone(cool_comm comm, size_t *gone, size_t room, size_t *count);

/**
 * Waits until a call is complete, and frees the request.
 */
cool_status cool_wait(cool_request request);

/**
 * Waits until a call is complete, but at most for `microseconds`. Stores 1 in `done` if it is,
 * otherwise 0.
 *
 * Once it is complete, received data is available, and cool_wait, which must still free the
 * request, returns at once. The function may be called repeatedly with short waits. If the call
 * failed, returns its error and frees the request.
 *
 * # Safety
 * `done` must point to an int.
 */
cool_status cool_wait_for(cool_request request, uint64_t microseconds, int *done);

/**
 * Waits for all of `n` calls and frees their requests. Returns the first error, after all have
 * completed.
 *
 * # Safety
 * `requests` must point to `n` requests.
 */
cool_status cool_wait_all(const cool_request *requests, size_t n);

/**
 * Stores 1 in `done` if cool_wait would return at once, otherwise 0.
 *
 * # Safety
 * `done` must point to an int.
 */
cool_status cool_test(cool_request request, int *done);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COOL_H */
