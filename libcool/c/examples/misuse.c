/* Calls the library correctly and incorrectly, and prints the code of each call, and the message of each error. */
#define _POSIX_C_SOURCE 200809L

#include "cool.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void expect(const char *what, cool_status status, cool_status expected) {
    printf("%s: %u %s\n", what, status, status == COOL_OK ? "ok" : cool_error_message());
    if (status != expected) failures++;
}

static size_t rank_of(cool_comm comm) {
    size_t rank = 0;
    expect("rank", cool_rank(comm, &rank), COOL_OK);
    return rank;
}

/* Adds doubles and counts them in the context. */
static void add(void *left, const void *right, size_t count, void *context) {
    for (size_t i = 0; i < count; i++) ((double *)left)[i] += ((const double *)right)[i];
    *(size_t *)context += count;
}

static int program(cool_comm world, void *context) {
    size_t added = 0;
    double data[8] = {0}, *none = NULL;
    void *memory, *nothing;
    cool_comm part;
    cool_request request;
    size_t rank, node, rack;
    uint64_t group, token;
    cool_queue queue;
    int done;
    (void)context;
    expect("group", cool_group(world, &group), COOL_OK);
    printf("group %llu\n", (unsigned long long)group);
    expect("place", cool_place(world, 1, &node, &rack), COOL_OK);
    printf("rank 1: node %zu, rack %zu\n", node, rack);
    expect("place of none", cool_place(world, 2, &node, &rack), COOL_INVALID);
    expect("null node", cool_place(world, 0, NULL, &rack), COOL_INVALID);
    expect("null send", cool_allreduce(none, data, 4, COOL_F64, COOL_SUM, world), COOL_INVALID);
    expect("null recv", cool_allreduce(data, NULL, 4, COOL_F64, COOL_SUM, world), COOL_INVALID);
    expect("overlap", cool_allreduce(data, data + 3, 4, COOL_F64, COOL_SUM, world), COOL_INVALID);
    expect("same", cool_allreduce(data, data, 4, COOL_F64, COOL_SUM, world), COOL_OK);
    expect("root", cool_bcast(data, 4, COOL_F64, 99, world), COOL_INVALID);
    expect("op", cool_allreduce(data, data + 4, 4, COOL_F64, COOL_BIT_AND, world), COOL_INVALID);
    expect("no such op", cool_allreduce(data, data + 4, 4, COOL_F64, 77, world), COOL_INVALID);
    expect("no such type", cool_allreduce(data, data + 4, 4, 77, COOL_SUM, world), COOL_INVALID);
    expect("immense", cool_allreduce(data, data + 4, (size_t)-1, COOL_F64, COOL_SUM, world), COOL_INVALID);
    expect("null counts", cool_allgatherv(data, data + 4, NULL, COOL_F64, world), COOL_INVALID);
    expect("null function", cool_fold(COOL_ALLREDUCE, data, data + 4, 4, 8, NULL, NULL, 0, world), COOL_INVALID);
    expect("null result", cool_rank(world, NULL), COOL_INVALID);
    expect("null flags", cool_agree(world, NULL, NULL, 0, &rank), COOL_INVALID);
    expect("null gone", cool_gone(world, NULL, 1, &rank), COOL_INVALID);
    expect("null message", cool_send(none, 4, COOL_F64, 0, 0, world), COOL_INVALID);
    expect("any tag", cool_send(data, 4, COOL_F64, 0, COOL_ANY_TAG, world), COOL_INVALID);
    expect("no source", cool_recv(data, 4, COOL_F64, 99, 0, world, NULL), COOL_INVALID);
    expect("plan", cool_set_plan(world, COOL_BCAST, "no plan"), COOL_INVALID);
    expect("in place", cool_scatter(COOL_IN_PLACE, data, 1, COOL_F64, 0, world), COOL_OK);
    data[rank_of(world)] = 5;
    expect("own part", cool_allgather(data + rank_of(world), data, 1, COOL_F64, world), COOL_OK);
    expect("both parts", data[0] == 5 && data[1] == 5 ? COOL_OK : COOL_OTHER, COOL_OK);
    struct {
        double value;
        int32_t index;
    } pair = {1, rank_of(world) == 0 ? 3 : -3};
    expect("pairs", cool_allreduce(COOL_IN_PLACE, &pair, 1, COOL_F64_INT, COOL_MIN_LOC, world), COOL_OK);
    expect("smaller index", pair.value == 1 && pair.index == -3 ? COOL_OK : COOL_OTHER, COOL_OK);
    size_t counts[] = {1, 2};
    double parts[] = {1, 2, 3};
    expect("ifold", cool_ifold_counts(COOL_IN_PLACE, parts, counts, sizeof(double), add, &added, world, &request), COOL_OK);
    expect("ifold done", cool_wait(request), COOL_OK);
    expect("sums", parts[0] == (rank_of(world) == 0 ? 2 : 4) && added > 0 ? COOL_OK : COOL_OTHER, COOL_OK);
    expect("fold in place", cool_fold(COOL_SCAN, COOL_IN_PLACE, parts, 1, 8, add, &added, 0, world), COOL_OK);
    size_t mine[] = {rank_of(world), 1}, theirs[] = {0, 1};
    if (rank_of(world) == 1) theirs[0] = 1;
    expect("of own", cool_alltoallv_of_own(data, mine, data + 4, theirs, COOL_F64, world), COOL_OK);
    const size_t *known = rank_of(world) == 1 ? counts : NULL;
    expect("gather of own", cool_gatherv_of_own(data, 1 + rank_of(world), data + 4, known, COOL_F64, 1, world), COOL_OK);
    expect("scatter of own", cool_scatterv_of_own(data + 4, known, data, 1 + rank_of(world), COOL_F64, 1, world), COOL_OK);
    expect("disagree", cool_alltoallv_of_own(data, counts, data + 4, counts, COOL_F64, world), COOL_INVALID);
    cool_probed probed;
    cool_message message;
    int is_there;
    size_t other = 1 - rank_of(world);
    expect("issend", cool_issend(data, 4, COOL_F64, other, 3, world, &request), COOL_OK);
    expect("probe", cool_probe(COOL_ANY_SOURCE, COOL_ANY_TAG, world, &probed), COOL_OK);
    expect("probed", probed.source == other && probed.tag == 3 && probed.bytes == 32 ? COOL_OK : COOL_OTHER, COOL_OK);
    expect("too long", cool_recv(parts, 3, COOL_F64, other, 3, world, NULL), COOL_TRUNCATED);
    expect("issend done", cool_wait(request), COOL_OK);
    expect("iprobe", cool_iprobe(other, 4, world, &is_there, &probed), COOL_OK);
    expect("not there", is_there == 0 ? COOL_OK : COOL_OTHER, COOL_OK);
    expect("irecv", cool_irecv(parts, 3, COOL_F64, other, 4, world, &request), COOL_OK);
    expect("cancel", cool_cancel(request, &is_there, &message), COOL_OK);
    expect("cancelled", is_there == 1 ? COOL_OK : COOL_OTHER, COOL_OK);
    expect("empty", cool_allreduce(NULL, NULL, 0, COOL_F64, COOL_SUM, world), COOL_OK);
    expect("alloc", cool_alloc(32, world, &memory), COOL_OK);
    expect("alloc to null", cool_alloc(32, world, NULL), COOL_INVALID);
    expect("alloc too much", cool_alloc((size_t)-1, world, &nothing), COOL_SYSTEM);
    expect("alloc of none", cool_alloc(32, 12345, &nothing), COOL_INVALID);
    expect("on memory", cool_allreduce(memory, data, 4, COOL_F64, COOL_SUM, world), COOL_OK);
    expect("overlap in memory", cool_allreduce(memory, (char *)memory + 8, 2, COOL_F64, COOL_SUM, world), COOL_INVALID);
    expect("dealloc within", cool_dealloc((char *)memory + 8), COOL_INVALID);
    expect("dealloc", cool_dealloc(memory), COOL_OK);
    expect("dealloc twice", cool_dealloc(memory), COOL_INVALID);
    expect("dealloc null", cool_dealloc(NULL), COOL_OK);
    expect("dealloc other", cool_dealloc(data), COOL_INVALID);
    /* A call that only this rank had started would be another one than the next call of the other rank. */
    if (rank_of(world) == 0) expect("null request", cool_ibcast(data, 4, COOL_F64, 0, world, NULL), COOL_INVALID);
    expect("alive", cool_barrier(world), COOL_OK);
    expect("dup", cool_dup(world, &part), COOL_OK);
    expect("started", cool_ibarrier(part, &request), COOL_OK);
    expect("free", cool_free(part), COOL_OK);
    expect("use after free", cool_barrier(part), COOL_INVALID);
    expect("free twice", cool_free(part), COOL_INVALID);
    expect("rank after free", cool_rank(part, &rank), COOL_INVALID);
    expect("wait", cool_wait(request), COOL_OK);
    expect("wait twice", cool_wait(request), COOL_INVALID);
    expect("wait for none", cool_wait_for(request, 0, &done), COOL_INVALID);
    expect("queue", cool_queue_new(&queue), COOL_OK);
    expect("queue none", cool_queue_add(queue, request, 1), COOL_INVALID);
    expect("next of none", cool_queue_next(queue, 0, &done, &token, NULL), COOL_OK);
    if (done) failures++;
    expect("null token", cool_queue_next(queue, 0, &done, NULL, NULL), COOL_INVALID);
    expect("free queue", cool_queue_free(queue), COOL_OK);
    expect("no queue", cool_queue_next(queue, 0, &done, &token, NULL), COOL_INVALID);
    /* The barrier on `part` is complete, so the other rank has made all its calls on `world` except those below. */
    expect("revoke", cool_revoke(world), COOL_OK);
    expect("revoked", cool_barrier(world), COOL_REVOKED);
    return failures;
}

/* Forks: the child process is not a rank. */
static int forks(cool_comm world, void *context) {
    cool_comm part;
    pid_t child;
    int status = 0;
    (void)context;
    expect("dup", cool_dup(world, &part), COOL_OK);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        expect("forked", cool_barrier(world), COOL_INVALID);
        expect("free in the child", cool_free(part), COOL_OK);
        fflush(stdout);
        _exit(failures);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) failures++;
    expect("the parent goes on", cool_barrier(part), COOL_OK);
    return failures;
}

int main(void) {
    int result;
    cool_comm world;
    expect("no launcher", cool_world(&world), COOL_ENVIRONMENT);
    expect("join beyond", cool_join("k", 2, 2, 1000, "/no/agent.sock", &world), COOL_INVALID);
    expect("join nobody", cool_join("k", 0, 2, 1000, "/no/agent.sock", &world), COOL_AGENT);
    expect("no key", cool_join(NULL, 0, 2, 1000, NULL, &world), COOL_INVALID);
    expect("null program", cool_launch(NULL, NULL, &result), COOL_INVALID);
    expect("launch", cool_launch(program, NULL, &result), COOL_OK);
    setenv("COOL_EMBEDDED", "1", 1);
    expect("launch one", cool_launch(forks, NULL, &result), COOL_OK);
    return failures;
}
