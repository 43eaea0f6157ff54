/* Measures one MPI collective in the same way as `cool bench --pause`: all ranks meet in a barrier
 * and begin the operation at one instant. The time is that from the instant to the end of the
 * slowest rank. Every result is verified on every rank.
 *
 *   mpi_collectives OP BYTES REPS CALLS PAUSE_MS REQUEST REPLY
 *
 * A repetition consists of CALLS successive calls; its time is that of one call. BYTES is the
 * length of the message of bcast, of the vector of reduce, allreduce, reduce_scatter, scan and
 * exscan, or of the whole array of gather, allgather, scatter and alltoall. Several lengths, for
 * example 8,1024, are measured one after the other. REPS is a number, or a range such as 3-15:2,
 * which means as many repetitions as take 2 seconds, but from 3 to 15. For each length, rank 0
 * writes "start" and the seconds of a first repetition to the pipe REQUEST, and waits for a byte
 * from REPLY while bench.py reads the counters of links. After the last repetition, it writes
 * "done" and the seconds of each, and waits again. */
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int ranks, me, calls, pause_ms;

static void fail(const char *what) {
    fprintf(stderr, "rank %d: %s\n", me, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Returns a value that differs by place, rank and repetition. It is unsigned, so sums wrap around
 * and remain exact. */
static uint32_t word(size_t place, int rank, int rep) {
    return (uint32_t)place * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)rep * 97u;
}

/* Returns the sum of the words of the first `upto` ranks. */
static uint32_t sum(size_t place, int upto, int rep) {
    uint32_t total = 0;
    for (int rank = 0; rank < upto; rank++) total += word(place, rank, rep);
    return total;
}

static void run(const char *op, uint32_t *in, uint32_t *out, size_t count, int part) {
    MPI_Comm world = MPI_COMM_WORLD;
    if (!strcmp(op, "bcast")) MPI_Bcast(in, (int)count, MPI_UINT32_T, 0, world);
    else if (!strcmp(op, "reduce")) MPI_Reduce(in, out, (int)count, MPI_UINT32_T, MPI_SUM, 0, world);
    else if (!strcmp(op, "allreduce")) MPI_Allreduce(in, out, (int)count, MPI_UINT32_T, MPI_SUM, world);
    else if (!strcmp(op, "gather")) MPI_Gather(in, part, MPI_UINT32_T, out, part, MPI_UINT32_T, 0, world);
    else if (!strcmp(op, "allgather")) MPI_Allgather(in, part, MPI_UINT32_T, out, part, MPI_UINT32_T, world);
    else if (!strcmp(op, "scatter")) MPI_Scatter(in, part, MPI_UINT32_T, out, part, MPI_UINT32_T, 0, world);
    else if (!strcmp(op, "reduce_scatter")) MPI_Reduce_scatter_block(in, out, part, MPI_UINT32_T, MPI_SUM, world);
    else if (!strcmp(op, "alltoall")) MPI_Alltoall(in, part, MPI_UINT32_T, out, part, MPI_UINT32_T, world);
    else if (!strcmp(op, "scan")) MPI_Scan(in, out, (int)count, MPI_UINT32_T, MPI_SUM, world);
    else if (!strcmp(op, "exscan")) MPI_Exscan(in, out, (int)count, MPI_UINT32_T, MPI_SUM, world);
    else if (!strcmp(op, "barrier")) MPI_Barrier(world);
    else fail("unknown operation");
}

static int right(const char *op, const uint32_t *in, const uint32_t *out, size_t count, size_t part, int rep) {
    int gathers = !strcmp(op, "allgather") || (!strcmp(op, "gather") && !me);
    int reduces = !strcmp(op, "allreduce") || (!strcmp(op, "reduce") && !me);
    int scans = !strcmp(op, "scan") ? me + 1 : !strcmp(op, "exscan") ? me : 0;
    size_t mine = (size_t)me * part;
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(op, "bcast") && in[i] != word(i, 0, rep)) return 0;
        if (reduces && out[i] != sum(i, ranks, rep)) return 0;
        if (scans && out[i] != sum(i, scans, rep)) return 0;
        if (gathers && out[i] != word(i % part, (int)(i / part), rep)) return 0;
        if (!strcmp(op, "alltoall") && out[i] != word(mine + i % part, (int)(i / part), rep)) return 0;
        if (!strcmp(op, "scatter") && i < part && out[i] != word(mine + i, 0, rep)) return 0;
        if (!strcmp(op, "reduce_scatter") && i < part && out[i] != sum(mine + i, ranks, rep)) return 0;
    }
    return 1;
}

/* Returns the seconds of the clock that all hosts of the emulated network share. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs one repetition. Returns the seconds until the slowest rank ended. */
static double once(const char *op, uint32_t *in, uint32_t *out, size_t count, size_t part, int rep) {
    for (size_t i = 0; i < count; i++) {
        in[i] = strcmp(op, "bcast") || !me ? word(i, me, rep) : 0xffffffffu;
        out[i] = 0xffffffffu;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now() + pause_ms * 1e-3, slowest;
    MPI_Bcast(&begin, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    struct timespec until = {(time_t)begin, (long)((begin - (double)(time_t)begin) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {}
    for (int call = 0; call < calls; call++) run(op, in, out, count, (int)part);
    double mine = (now() - begin) / calls;
    /* Ranks that share a CPU must not verify results while others still communicate. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (!right(op, in, out, count, part, rep)) fail("wrong data");
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

/* Returns the number of repetitions according to REPS. `first` is the time of the first repetition,
 * which is the same at all ranks. */
static int repetitions(const char *text, double first) {
    int least = 0, most = 0;
    double seconds = 0;
    if (sscanf(text, "%d-%d:%lf", &least, &most, &seconds) != 3) return atoi(text);
    double fit = seconds / (first * calls + pause_ms * 1e-3);
    return fit < least ? least : fit > most ? most : (int)fit;
}

static void measure(const char *op, size_t bytes, const char *repeated, FILE *request, FILE *reply) {
    int parted = !strcmp(op, "gather") || !strcmp(op, "allgather") || !strcmp(op, "scatter") || !strcmp(op, "alltoall")
                 || !strcmp(op, "reduce_scatter");
    size_t part = bytes / 4 / (size_t)ranks ? bytes / 4 / (size_t)ranks : 1;
    size_t count = parted ? part * (size_t)ranks : bytes / 4 ? bytes / 4 : 1;
    if (count > INT32_MAX) fail("too many bytes");
    uint32_t *in = malloc(count * 4), *out = malloc(count * 4);
    if (!in || !out) fail("no memory");
    double first = once(op, in, out, count, part, 0);
    int reps = repetitions(repeated, first);
    double *seconds = reps < 1 ? NULL : malloc((size_t)reps * sizeof *seconds);
    if (!seconds) fail("no repetitions, or no memory");
    if (!me && (fprintf(request, "start %.9f\n", first) < 0 || fflush(request) || fgetc(reply) == EOF)) fail("bench.py does not reply");
    for (int rep = 0; rep < reps; rep++) seconds[rep] = once(op, in, out, count, part, rep + 1);
    if (!me) {
        fprintf(request, "done");
        for (int rep = 0; rep < reps; rep++) fprintf(request, " %.9f", seconds[rep]);
        if (fprintf(request, "\n") < 0 || fflush(request) || fgetc(reply) == EOF) fail("bench.py does not reply");
    }
    free(in);
    free(out);
    free(seconds);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (argc != 8) fail("expected OP BYTES REPS CALLS PAUSE_MS REQUEST REPLY");
    calls = atoi(argv[4]);
    pause_ms = atoi(argv[5]);
    FILE *request = me ? NULL : fopen(argv[6], "w"), *reply = me ? NULL : fopen(argv[7], "r");
    if (calls < 1 || (!me && (!request || !reply))) fail("no calls, or no pipes");
    for (char *rest = argv[2]; *rest; rest += *rest == ',') {
        char *from = rest;
        size_t bytes = strtoull(from, &rest, 10);
        if (rest == from) fail("BYTES must be numbers separated by commas");
        measure(argv[1], bytes, argv[3], request, reply);
    }
    MPI_Finalize();
    return 0;
}
