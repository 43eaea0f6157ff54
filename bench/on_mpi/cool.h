/* What libcool/c/examples/conjugate_gradient.c calls of COOL, by MPI: each call is MPI's own, so that the same source is measured on
 * both. Errors end the program, as MPI does by itself. */
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

typedef MPI_Comm cool_comm;
typedef MPI_Request cool_request;
typedef int cool_status;

#define COOL_OK MPI_SUCCESS
#define COOL_F64 MPI_DOUBLE
#define COOL_SUM MPI_SUM
#define COOL_IN_PLACE MPI_IN_PLACE

static inline const char *cool_error_message(void) { return "a call of MPI failed"; }

static inline cool_status cool_launch(int (*program)(cool_comm, void *), void *context, int *result) {
    int status = MPI_Init(NULL, NULL);
    if (status != MPI_SUCCESS) return status;
    *result = program(MPI_COMM_WORLD, context);
    return MPI_Finalize();
}

static inline cool_status cool_rank(cool_comm comm, size_t *rank) {
    int mine, status = MPI_Comm_rank(comm, &mine);
    *rank = (size_t)mine;
    return status;
}

static inline cool_status cool_size(cool_comm comm, size_t *size) {
    int ranks, status = MPI_Comm_size(comm, &ranks);
    *size = (size_t)ranks;
    return status;
}

static inline cool_status cool_allreduce(const void *send, void *recv, size_t count, MPI_Datatype type, MPI_Op op, cool_comm comm) {
    return MPI_Allreduce(send, recv, (int)count, type, op, comm);
}

static inline cool_status cool_isend(const void *data, size_t count, MPI_Datatype type, size_t dest, uint32_t tag, cool_comm comm,
                                     cool_request *request) {
    return MPI_Isend(data, (int)count, type, (int)dest, (int)tag, comm, request);
}

/* Nobody here asks what came. */
static inline cool_status cool_recv(void *data, size_t count, MPI_Datatype type, size_t source, uint32_t tag, cool_comm comm, void *message) {
    (void)message;
    return MPI_Recv(data, (int)count, type, (int)source, (int)tag, comm, MPI_STATUS_IGNORE);
}

static inline cool_status cool_wait_all(cool_request *requests, size_t count) {
    return MPI_Waitall((int)count, requests, MPI_STATUSES_IGNORE);
}
