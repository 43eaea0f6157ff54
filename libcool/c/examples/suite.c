/* Executes every operation once and prints, for each rank, a hash of the data that it received. The output is exactly
 * that of libcool/examples/suite.rs; tests/e2e/suite.py contains the expected output. */
#include "cool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(cool_status status) {
    if (status != COOL_OK) {
        fprintf(stderr, "%s\n", cool_error_message());
        exit(1);
    }
}

static void *array(size_t count, size_t element) {
    void *data = calloc(count + 1, element);
    if (data == NULL) {
        perror("calloc");
        exit(1);
    }
    return data;
}

/* Returns element `i` of rank `rank`. */
static int64_t x(size_t rank, size_t i) { return (int64_t)((rank * 31 + i * 7 + 3) % 101); }

static int64_t *vector(size_t rank, size_t count) {
    int64_t *data = array(count, sizeof *data);
    for (size_t i = 0; i < count; i++) data[i] = x(rank, i);
    return data;
}

/* Prints, at rank 0, a hash (FNV-1a) of the values of each rank, and frees them. */
static void line(cool_comm comm, const char *name, int64_t *values, size_t count) {
    size_t rank, size;
    check(cool_rank(comm, &rank));
    check(cool_size(comm, &size));
    uint64_t mine = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < count; i++)
        for (int byte = 0; byte < 8; byte++)
            mine = (mine ^ ((uint64_t)values[i] >> 8 * byte & 0xff)) * UINT64_C(0x100000001b3);
    uint64_t *all = rank == 0 ? array(size, sizeof *all) : NULL;
    check(cool_gather(&mine, all, 1, COOL_U64, 0, comm));
    if (rank == 0) {
        printf("%s", name);
        for (size_t i = 0; i < size; i++) printf(" %016" PRIx64, all[i]);
        printf("\n");
    }
    free(all);
    free(values);
}

/* Composes affine maps, which is not commutative. */
static void then(void *left, const void *right, size_t count, void *context) {
    int64_t *first = left;
    const int64_t *second = right;
    (void)context;
    for (size_t i = 0; i < 2 * count; i += 2) {
        int64_t a = first[i], b = first[i + 1], c = second[i], d = second[i + 1];
        first[i] = a * c % 1009;
        first[i + 1] = (b * c + d) % 1009;
    }
}

static void equal_parts(cool_comm comm, size_t rank, size_t n) {
    size_t root = n - 1;
    int64_t *mine = vector(rank, 1000), *many = vector(rank, 10 * n), *data;

    data = rank == root ? vector(rank, 1000) : array(1000, sizeof *data);
    check(cool_bcast(data, 1000, COOL_I64, root, comm));
    line(comm, "bcast", data, 1000);

    data = array(1000, sizeof *data);
    check(cool_reduce(mine, data, 1000, COOL_I64, COOL_SUM, root, comm));
    line(comm, "reduce", data, 1000);

    data = array(1000, sizeof *data);
    check(cool_allreduce(mine, data, 1000, COOL_I64, COOL_SUM, comm));
    line(comm, "allreduce", data, 1000);

    /* The same in memory that is shared with the agent. */
    void *send, *recv;
    check(cool_alloc(1000 * sizeof *data, comm, &send));
    check(cool_alloc(1000 * sizeof *data, comm, &recv));
    memcpy(send, mine, 1000 * sizeof *data);
    check(cool_allreduce(send, recv, 1000, COOL_I64, COOL_SUM, comm));
    data = array(1000, sizeof *data);
    memcpy(data, recv, 1000 * sizeof *data);
    check(cool_dealloc(send));
    check(cool_dealloc(recv));
    line(comm, "allreduce of buffers", data, 1000);

    data = vector(rank, 1000);
    check(cool_allreduce(COOL_IN_PLACE, data, 1000, COOL_I64, COOL_MAX, comm));
    line(comm, "allreduce_in_place", data, 1000);

    data = array(10, sizeof *data);
    check(cool_reduce_scatter(many, data, 10, COOL_I64, COOL_SUM, comm));
    line(comm, "reduce_scatter", data, 10);

    data = array(1000, sizeof *data);
    check(cool_scan(mine, data, 1000, COOL_I64, COOL_SUM, comm));
    line(comm, "scan", data, 1000);

    data = array(1000, sizeof *data);
    check(cool_exscan(mine, data, 1000, COOL_I64, COOL_SUM, comm));
    line(comm, "exscan", data, 1000);

    data = array(10 * n, sizeof *data);
    check(cool_gather(mine, data, 10, COOL_I64, root, comm));
    line(comm, "gather", data, 10 * n);

    data = array(10 * n, sizeof *data);
    check(cool_allgather(mine, data, 10, COOL_I64, comm));
    line(comm, "allgather", data, 10 * n);

    data = array(10, sizeof *data);
    check(cool_scatter(many, data, 10, COOL_I64, root, comm));
    line(comm, "scatter", data, 10);

    data = array(10 * n, sizeof *data);
    check(cool_alltoall(many, data, 10, COOL_I64, comm));
    line(comm, "alltoall", data, 10 * n);

    free(mine);
    free(many);
}

static void unequal_parts(cool_comm comm, size_t rank, size_t n) {
    size_t *counts = array(n, sizeof *counts), *pairs = array(n * n, sizeof *pairs), all = 0, out = 0, in = 0;
    for (size_t i = 0; i < n; i++) all += counts[i] = i % 3 * 50;
    for (size_t i = 0; i < n * n; i++) pairs[i] = i % 5;
    for (size_t i = 0; i < n; i++) {
        out += pairs[rank * n + i];
        in += pairs[i * n + rank];
    }
    int64_t *mine = vector(rank, counts[rank]), *whole = vector(rank, all), *sent = vector(rank, out), *data;

    data = array(all, sizeof *data);
    check(cool_gatherv(mine, data, counts, COOL_I64, 0, comm));
    line(comm, "gatherv", data, all);

    data = array(all, sizeof *data);
    check(cool_allgatherv(mine, data, counts, COOL_I64, comm));
    line(comm, "allgatherv", data, all);

    data = array(counts[rank], sizeof *data);
    check(cool_scatterv(whole, data, counts, COOL_I64, 0, comm));
    line(comm, "scatterv", data, counts[rank]);

    data = array(counts[rank], sizeof *data);
    check(cool_reduce_scatter_counts(whole, data, counts, COOL_I64, COOL_SUM, comm));
    line(comm, "reduce_scatter_counts", data, counts[rank]);

    data = array(in, sizeof *data);
    check(cool_alltoallv(sent, data, pairs, COOL_I64, comm));
    line(comm, "alltoallv", data, in);

    free(mine);
    free(whole);
    free(sent);
    free(counts);
    free(pairs);
}

static void types_and_functions(cool_comm comm, size_t rank) {
    double value = (double)x(rank, 1), average;
    check(cool_allreduce(&value, &average, 1, COOL_F64, COOL_AVERAGE, comm));
    int64_t *data = array(1, sizeof *data);
    data[0] = (int64_t)(average * 1024.0);
    line(comm, "average of f64", data, 1);

    uint8_t bytes[3] = {(uint8_t)x(rank, 0), (uint8_t)x(rank, 1), (uint8_t)x(rank, 2)};
    check(cool_allreduce(COOL_IN_PLACE, bytes, 3, COOL_U8, COOL_BIT_XOR, comm));
    data = array(3, sizeof *data);
    for (int i = 0; i < 3; i++) data[i] = bytes[i];
    line(comm, "bit_xor of u8", data, 3);

    struct {
        double value;
        uint64_t index;
    } here = {(double)x(rank, 5), rank}, best;
    check(cool_allreduce(&here, &best, 1, COOL_F64_LOC, COOL_MIN_LOC, comm));
    data = array(2, sizeof *data);
    data[0] = (int64_t)best.value;
    data[1] = (int64_t)best.index;
    line(comm, "min_loc of f64", data, 2);

    int64_t maps[5][2];
    for (size_t i = 0; i < 5; i++) {
        maps[i][0] = x(rank, i);
        maps[i][1] = x(rank, i + 5);
    }
    data = array(10, sizeof *data);
    check(cool_fold(COOL_ALLREDUCE, maps, data, 5, sizeof maps[0], then, NULL, 0, comm));
    line(comm, "allreduce by a function", data, 10);
}

static void started_and_split(cool_comm comm, size_t rank) {
    int64_t *mine = vector(rank, 1000), *data = array(1010, sizeof *data);
    cool_request requests[3];
    check(cool_iallreduce(mine, data, 1000, COOL_I64, COOL_SUM, comm, &requests[0]));
    check(cool_iallreduce(mine, data + 1000, 10, COOL_I64, COOL_MIN, comm, &requests[1]));
    check(cool_ibarrier(comm, &requests[2]));
    check(cool_wait_all(requests, 3));
    line(comm, "started", data, 1010);
    free(mine);

    /* The even ranks, in reverse order, and the odd ones. */
    cool_comm part;
    check(cool_split(comm, (int64_t)(rank % 2), rank % 2 == 0 ? -(int64_t)rank : (int64_t)rank, &part));
    size_t size;
    check(cool_size(part, &size));
    int64_t me = (int64_t)rank;
    data = array(size, sizeof *data);
    check(cool_allgather(&me, data, 1, COOL_I64, part));
    check(cool_free(part));
    line(comm, "split", data, size);
}

/* Sends messages around a ring: to the next rank, received from any rank. */
static void messages(cool_comm comm, size_t rank, size_t size) {
    int64_t *mine = vector(rank, 15000), *data = array(20005, sizeof *data);
    cool_request requests[3];
    cool_message first, second;
    check(cool_isend(mine, 10, COOL_I64, (rank + 1) % size, 1, comm, &requests[0]));
    check(cool_isend(mine, 15000, COOL_I64, (rank + 1) % size, 2, comm, &requests[1]));
    check(cool_irecv(data + 10, 19990, COOL_I64, (rank + size - 1) % size, 2, comm, &requests[2]));
    check(cool_wait_message(requests[2], &second));
    check(cool_recv(data, 10, COOL_I64, COOL_ANY_SOURCE, COOL_ANY_TAG, comm, &first));
    check(cool_wait_all(requests, 2));
    size_t told[] = {first.source, first.tag, first.count, second.source, second.count};
    for (size_t i = 0; i < 5; i++) data[20000 + i] = (int64_t)told[i];
    line(comm, "messages", data, 20005);
    free(mine);
}

/* Lets odd ranks leave a group, which rank 0 revokes; the even ranks recover. */
static void recovered(cool_comm comm, size_t rank, size_t size) {
    cool_comm copy, rest;
    int64_t *agreed = array(2 + 2 * size, sizeof *agreed), *left = array(size, sizeof *left);
    size_t *gone = array(size, sizeof *gone), agrees = 0, remain = 0, count;
    check(cool_dup(comm, &copy));
    if (rank % 2 == 0) {
        uint64_t flags = UINT64_C(0xff) ^ (UINT64_C(1) << rank % 8);
        int64_t me = (int64_t)rank;
        if (rank == 0) check(cool_revoke(copy));
        agreed[agrees++] = cool_barrier(copy) != COOL_OK;
        check(cool_agree(copy, &flags, gone, size, &count));
        check(cool_shrink(copy, &rest));
        agreed[agrees++] = (int64_t)flags;
        for (size_t i = 0; i < count; i++) agreed[agrees++] = (int64_t)gone[i];
        check(cool_gone(rest, gone, size, &count));
        for (size_t i = 0; i < count; i++) agreed[agrees++] = (int64_t)gone[i];
        check(cool_size(rest, &remain));
        check(cool_allgather(&me, left, 1, COOL_I64, rest));
        check(cool_free(rest));
    }
    check(cool_free(copy));
    free(gone);
    line(comm, "agreed", agreed, agrees);
    line(comm, "shrunk", left, remain);
}

/* Writes the code of an error and the ranks that it names; returns how many numbers these are. */
static size_t told(cool_status status, int64_t *into, size_t size) {
    size_t *ranks = array(size, sizeof *ranks), count = status == COOL_OK ? 0 : cool_error_ranks(ranks, size);
    into[0] = status;
    for (size_t i = 0; i < count; i++) into[i + 1] = (int64_t)ranks[i];
    free(ranks);
    return count + 1;
}

/* Prints the errors of each rank for an invalid argument, for mismatching calls, and for a rank that does not join a
 * call in time or has left. */
static void errors(cool_comm comm, size_t rank, size_t size) {
    cool_comm copy;
    int64_t *data = array(size + 1, sizeof *data);
    line(comm, "wrong root", data, told(cool_bcast(data, 1, COOL_I64, size, comm), data, size));

    check(cool_dup(comm, &copy));
    size_t count = rank == size - 1 ? 11 : 10;
    int64_t *mine = vector(rank, count), *sum = array(count, sizeof *sum);
    data = array(size + 1, sizeof *data);
    told(cool_allreduce(mine, sum, count, COOL_I64, COOL_SUM, copy), data, size);
    line(comm, "other length", data, 1);
    data = array(size + 1, sizeof *data);
    told(cool_barrier(copy), data, size);
    line(comm, "failed before", data, 1);
    check(cool_free(copy));
    free(mine);
    free(sum);

    /* The last rank is alive, but calls only after the others have failed. */
    check(cool_dup(comm, &copy));
    check(cool_set_timeout(copy, 6000));
    data = array(size + 1, sizeof *data);
    count = rank == size - 1 ? 0 : told(cool_barrier(copy), data, size);
    check(cool_barrier(comm));
    check(cool_free(copy));
    line(comm, "not in time", data, count);

    check(cool_dup(comm, &copy));
    data = array(size + 1, sizeof *data);
    count = rank == size - 1 ? 0 : told(cool_barrier(copy), data, size);
    check(cool_free(copy));
    line(comm, "left", data, count);
}

static int program(cool_comm world, void *context) {
    size_t rank, size;
    (void)context;
    check(cool_rank(world, &rank));
    check(cool_size(world, &size));
    equal_parts(world, rank, size);
    unequal_parts(world, rank, size);
    types_and_functions(world, rank);
    started_and_split(world, rank);
    messages(world, rank, size);
    recovered(world, rank, size);
    errors(world, rank, size);
    return 0;
}

int main(void) {
    int result;
    check(cool_launch(program, NULL, &result));
    return result;
}
