/* join KEY RANK SIZE: joins a group of processes that agreed on a key, without a launcher. Starts two sums on lent arrays
 * and waits for both through a queue. */
#include "cool.h"

#include <stdio.h>
#include <stdlib.h>

static void check(cool_status status) {
    if (status != COOL_OK) {
        fprintf(stderr, "%s\n", cool_error_message());
        exit(1);
    }
}

int main(int count, char **arguments) {
    cool_comm comm, copy, lending, patient;
    cool_queue queue;
    cool_request request;
    uint64_t *mine, *sums[2], token;
    size_t rank, size;
    int done = 0;
    if (count != 4) {
        fprintf(stderr, "usage: join KEY RANK SIZE\n");
        return 2;
    }
    rank = strtoul(arguments[2], NULL, 10);
    size = strtoul(arguments[3], NULL, 10);
    check(cool_join(arguments[1], rank, size, 60000, NULL, &comm));
    check(cool_dup(comm, &copy));
    check(cool_lending(comm, &lending));
    check(cool_with_timeout(copy, 60000, &patient));
    check(cool_alloc(1000 * sizeof *mine, comm, (void **)&mine));
    check(cool_queue_new(&queue));
    for (size_t i = 0; i < 1000; i++) mine[i] = rank + i;
    for (token = 0; token < 2; token++) {
        check(cool_alloc(1000 * sizeof *mine, comm, (void **)&sums[token]));
        check(cool_iallreduce(mine, sums[token], 1000, COOL_U64, COOL_SUM, token == 0 ? lending : patient, &request));
        check(cool_queue_add(queue, request, token));
    }
    for (int calls = 0; calls < 2; calls += done) check(cool_queue_next(queue, 1000000, &done, &token, NULL));
    check(cool_queue_free(queue));
    check(cool_ibarrier(comm, &request));
    for (done = 0; !done;) check(cool_wait_for(request, 200, &done));
    check(cool_wait(request));
    for (size_t i = 0; i < 1000; i++)
        if (sums[0][i] != size * (size - 1) / 2 + size * i || sums[1][i] != sums[0][i]) return 3;
    printf("rank %zu of %zu\n", rank, size);
    check(cool_free(patient));
    check(cool_free(lending));
    check(cool_free(copy));
    check(cool_free(comm));
    return 0;
}
