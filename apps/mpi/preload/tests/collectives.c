/* Compares every collective that libcool_mpi.so intercepts with the expected result: types, reductions, MPI_IN_PLACE,
 * noncontiguous types, temporary communicators, and calls that are passed through. tests/e2e/apps/test_mpi.py runs it with and
 * without the library; the results must be the same.
 *
 *   collectives all         all comparisons; rank 0 prints "right"
 *   collectives mismatch    one rank passes another length; the call must fail at all ranks
 *   collectives for-ever    repeats calls until the program is killed
 *   collectives progress BYTES   rank 0 starts to send messages and enters a collective, during
 *                                which the messages must be sent */
#include <complex.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 1500

static int me, ranks;
static MPI_Comm world;

static void check(int right, const char *what, int line) {
    if (right) return;
    fprintf(stderr, "rank %d: wrong: %s (line %d)\n", me, what, line);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#define CHECK(condition, what) check((condition) != 0, what, __LINE__)

/* Returns a value from 1 to 11 that depends on the place and the rank. */
static int value(size_t place, int rank) { return (int)((place * 7 + (size_t)rank * 3) % 11) + 1; }

#define SUM(a, b) ((a) + (b))
#define PROD(a, b) ((a) * (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define LAND(a, b) ((a) && (b))
#define LOR(a, b) ((a) || (b))
#define LXOR(a, b) (!(a) != !(b))
#define BAND(a, b) ((a) & (b))
#define BOR(a, b) ((a) | (b))
#define BXOR(a, b) ((a) ^ (b))

/* Executes and checks the reductions of one type by one operation. */
#define REDUCTION(c_type, mpi_type, op)                                                                                        \
    do {                                                                                                                       \
        static c_type in[COUNT], out[COUNT], all[COUNT], before[COUNT];                                                        \
        for (size_t i = 0; i < COUNT; i++) {                                                                                   \
            all[i] = (c_type)value(i, 0);                                                                                      \
            before[i] = 0;                                                                                                     \
            in[i] = (c_type)value(i, me);                                                                                      \
            for (int r = 1; r < ranks; r++) {                                                                                  \
                if (r == me) before[i] = all[i];                                                                               \
                all[i] = (c_type)op(all[i], (c_type)value(i, r));                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
        memset(out, 0, sizeof out);                                                                                            \
        MPI_Allreduce(in, out, COUNT, mpi_type, MPI_##op, world);                                                              \
        CHECK(!memcmp(out, all, sizeof out), "allreduce of " #mpi_type " by " #op);                                            \
        memcpy(out, in, sizeof out);                                                                                           \
        MPI_Allreduce(MPI_IN_PLACE, out, COUNT, mpi_type, MPI_##op, world);                                                    \
        CHECK(!memcmp(out, all, sizeof out), "allreduce in place of " #mpi_type " by " #op);                                   \
        memset(out, 0, sizeof out);                                                                                            \
        MPI_Exscan(in, out, COUNT, mpi_type, MPI_##op, world);                                                                 \
        CHECK(!memcmp(out, before, sizeof out), "exscan of " #mpi_type " by " #op);                                            \
    } while (0)

#define NUMBERS(c_type, mpi_type)                                                                                              \
    do {                                                                                                                       \
        REDUCTION(c_type, mpi_type, SUM);                                                                                      \
        REDUCTION(c_type, mpi_type, PROD);                                                                                     \
    } while (0)

#define ORDERED(c_type, mpi_type)                                                                                              \
    do {                                                                                                                       \
        NUMBERS(c_type, mpi_type);                                                                                             \
        REDUCTION(c_type, mpi_type, MAX);                                                                                      \
        REDUCTION(c_type, mpi_type, MIN);                                                                                      \
    } while (0)

#define INTEGERS(c_type, mpi_type)                                                                                             \
    do {                                                                                                                       \
        ORDERED(c_type, mpi_type);                                                                                             \
        REDUCTION(c_type, mpi_type, LAND);                                                                                     \
        REDUCTION(c_type, mpi_type, LOR);                                                                                      \
        REDUCTION(c_type, mpi_type, LXOR);                                                                                     \
        REDUCTION(c_type, mpi_type, BAND);                                                                                     \
        REDUCTION(c_type, mpi_type, BOR);                                                                                      \
        REDUCTION(c_type, mpi_type, BXOR);                                                                                     \
    } while (0)

static void types(void) {
    INTEGERS(int, MPI_INT);
    INTEGERS(unsigned long long, MPI_UNSIGNED_LONG_LONG);
    ORDERED(double, MPI_DOUBLE);
    NUMBERS(double complex, MPI_C_DOUBLE_COMPLEX);
    REDUCTION(signed char, MPI_SIGNED_CHAR, MIN);
    REDUCTION(unsigned char, MPI_UNSIGNED_CHAR, MAX);
    REDUCTION(short, MPI_SHORT, MIN);
    REDUCTION(unsigned short, MPI_UNSIGNED_SHORT, SUM);
    REDUCTION(unsigned, MPI_UNSIGNED, MAX);
    REDUCTION(long, MPI_LONG, MIN);
    REDUCTION(unsigned long, MPI_UNSIGNED_LONG, BXOR);
    REDUCTION(long long, MPI_LONG_LONG, SUM);
    REDUCTION(float, MPI_FLOAT, PROD);
    REDUCTION(long double, MPI_LONG_DOUBLE, MAX); /* not supported by COOL */
    REDUCTION(int8_t, MPI_INT8_T, SUM);
    REDUCTION(int16_t, MPI_INT16_T, SUM);
    REDUCTION(int32_t, MPI_INT32_T, MIN);
    REDUCTION(int64_t, MPI_INT64_T, PROD);
    REDUCTION(uint8_t, MPI_UINT8_T, BOR);
    REDUCTION(uint16_t, MPI_UINT16_T, PROD);
    REDUCTION(uint32_t, MPI_UINT32_T, BAND);
    REDUCTION(uint64_t, MPI_UINT64_T, MAX);
    REDUCTION(bool, MPI_C_BOOL, LAND);
    REDUCTION(float complex, MPI_C_FLOAT_COMPLEX, PROD);
    REDUCTION(MPI_Aint, MPI_AINT, SUM);
    REDUCTION(MPI_Offset, MPI_OFFSET, MAX);
    REDUCTION(MPI_Count, MPI_COUNT, MIN);
    REDUCTION(unsigned char, MPI_BYTE, BXOR);
}

/* Returns the index of a pair for MPI_MINLOC and MPI_MAXLOC. Of equal values, the one with the
 * smaller index is the result; some indices are negative. Gaps in pairs may have any contents. */
static int place_of(size_t place, int rank) { return value(place + 5, 2 * rank) - 6; }

#define BETTER(a, b, compare) ((a).value compare (b).value || ((a).value == (b).value && (a).index < (b).index))

#define EXPECT_PAIRS(out, expected, count, what)                                                                               \
    for (size_t i = 0; i < (count); i++) CHECK((out)[i].value == (expected)[i].value && (out)[i].index == (expected)[i].index, what)

#define LOCATED(c_type, mpi_type, op, compare)                                                                                 \
    do {                                                                                                                       \
        typedef struct {                                                                                                       \
            c_type value;                                                                                                      \
            int index;                                                                                                         \
        } pair;                                                                                                                \
        static pair in[COUNT], out[COUNT], all[COUNT], before[COUNT];                                                          \
        memset(in, 0xa5, sizeof in);                                                                                           \
        for (size_t i = 0; i < COUNT; i++) {                                                                                   \
            in[i].value = (c_type)(value(i, me) - 6);                                                                          \
            in[i].index = place_of(i, me);                                                                                     \
            for (int r = 0; r < ranks; r++) {                                                                                  \
                pair of_rank = {(c_type)(value(i, r) - 6), place_of(i, r)};                                                    \
                if (r == me) before[i] = all[i];                                                                               \
                if (!r || BETTER(of_rank, all[i], compare)) all[i] = of_rank;                                                  \
            }                                                                                                                  \
        }                                                                                                                      \
        MPI_Allreduce(in, out, COUNT, mpi_type, MPI_##op, world);                                                              \
        EXPECT_PAIRS(out, all, COUNT, "allreduce of " #mpi_type " by " #op);                                                   \
        memcpy(out, in, sizeof out);                                                                                           \
        MPI_Allreduce(MPI_IN_PLACE, out, COUNT, mpi_type, MPI_##op, world);                                                    \
        EXPECT_PAIRS(out, all, COUNT, "allreduce in place of " #mpi_type " by " #op);                                          \
        MPI_Exscan(in, out, COUNT, mpi_type, MPI_##op, world);                                                                 \
        if (me) EXPECT_PAIRS(out, before, COUNT, "exscan of " #mpi_type " by " #op);                                           \
        MPI_Reduce(in, out, COUNT, mpi_type, MPI_##op, ranks - 1, world);                                                      \
        if (me == ranks - 1) EXPECT_PAIRS(out, all, COUNT, "reduce of " #mpi_type " by " #op);                                 \
        int part = COUNT / ranks;                                                                                              \
        MPI_Reduce_scatter_block(in, out, part, mpi_type, MPI_##op, world);                                                    \
        EXPECT_PAIRS(out, all + me * part, (size_t)part, "reduce_scatter_block of " #mpi_type " by " #op);                     \
        MPI_Reduce_scatter_block(MPI_IN_PLACE, in, part, mpi_type, MPI_##op, world);                                           \
        EXPECT_PAIRS(in, all + me * part, (size_t)part, "reduce_scatter_block in place of " #mpi_type " by " #op);             \
    } while (0)

#define BOTH_ENDS(c_type, mpi_type)                                                                                            \
    do {                                                                                                                       \
        LOCATED(c_type, mpi_type, MINLOC, <);                                                                                  \
        LOCATED(c_type, mpi_type, MAXLOC, >);                                                                                  \
    } while (0)

static void pairs(void) {
    BOTH_ENDS(short, MPI_SHORT_INT);
    BOTH_ENDS(int, MPI_2INT);
    BOTH_ENDS(long, MPI_LONG_INT);
    BOTH_ENDS(float, MPI_FLOAT_INT);
    BOTH_ENDS(double, MPI_DOUBLE_INT);
    BOTH_ENDS(long double, MPI_LONG_DOUBLE_INT); /* not supported by COOL */
}

static int *array(size_t count) {
    int *made = malloc(count * sizeof *made);
    CHECK(made, "memory");
    return made;
}

static void fill(int *to, size_t count, int rank) {
    for (size_t i = 0; i < count; i++) to[i] = value(i, rank);
}

static int filled(const int *from, size_t count, int rank) {
    for (size_t i = 0; i < count; i++)
        if (from[i] != value(i, rank)) return 0;
    return 1;
}

/* Returns whether an array is the part from index `first` of the sum of all ranks' arrays. */
static int summed(const int *from, size_t first, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int sum = 0;
        for (int r = 0; r < ranks; r++) sum += value(first + i, r);
        if (from[i] != sum) return 0;
    }
    return 1;
}

static void rooted(int root) {
    size_t all = (size_t)ranks * COUNT;
    int *mine = array(COUNT), *whole = array(all);
    fill(mine, COUNT, root == me ? root : 99);
    MPI_Bcast(mine, COUNT, MPI_INT, root, world);
    CHECK(filled(mine, COUNT, root), "bcast");
    fill(mine, COUNT, me);
    memset(whole, 0, all * sizeof *whole);
    MPI_Reduce(mine, me == root ? whole : NULL, COUNT, MPI_INT, MPI_SUM, root, world);
    CHECK(me != root || summed(whole, 0, COUNT), "reduce");
    if (me == root) MPI_Reduce(MPI_IN_PLACE, mine, COUNT, MPI_INT, MPI_SUM, root, world);
    else MPI_Reduce(mine, NULL, COUNT, MPI_INT, MPI_SUM, root, world);
    CHECK(me == root ? summed(mine, 0, COUNT) : filled(mine, COUNT, me), "reduce in place");
    fill(mine, COUNT, me);
    memset(whole, 0, all * sizeof *whole);
    MPI_Gather(mine, COUNT, MPI_INT, whole, COUNT, MPI_INT, root, world);
    for (int r = 0; me == root && r < ranks; r++) CHECK(filled(whole + r * COUNT, COUNT, r), "gather");
    if (me == root) {
        memset(whole, 0, all * sizeof *whole);
        fill(whole + me * COUNT, COUNT, me);
        MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole, COUNT, MPI_INT, root, world);
        for (int r = 0; r < ranks; r++) CHECK(filled(whole + r * COUNT, COUNT, r), "gather in place");
    } else {
        MPI_Gather(mine, COUNT, MPI_INT, NULL, 0, MPI_DATATYPE_NULL, root, world);
    }
    for (int r = 0; r < ranks; r++) fill(whole + r * COUNT, COUNT, r);
    memset(mine, 0, COUNT * sizeof *mine);
    MPI_Scatter(whole, COUNT, MPI_INT, mine, COUNT, MPI_INT, root, world);
    CHECK(filled(mine, COUNT, me), "scatter");
    memset(mine, 0, COUNT * sizeof *mine);
    if (me == root) MPI_Scatter(whole, COUNT, MPI_INT, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, world);
    else MPI_Scatter(NULL, 0, MPI_DATATYPE_NULL, mine, COUNT, MPI_INT, root, world);
    CHECK(filled(me == root ? whole + me * COUNT : mine, COUNT, me), "scatter in place");
    free(mine);
    free(whole);
}

static void all_to_all(void) {
    size_t all = (size_t)ranks * COUNT;
    int *mine = array(COUNT), *whole = array(all), *out = array(all);
    fill(mine, COUNT, me);
    MPI_Allgather(mine, COUNT, MPI_INT, whole, COUNT, MPI_INT, world);
    for (int r = 0; r < ranks; r++) CHECK(filled(whole + r * COUNT, COUNT, r), "allgather");
    memset(whole, 0, all * sizeof *whole);
    fill(whole + me * COUNT, COUNT, me);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole, COUNT, MPI_INT, world);
    for (int r = 0; r < ranks; r++) CHECK(filled(whole + r * COUNT, COUNT, r), "allgather in place");
    for (int r = 0; r < ranks; r++) fill(out + r * COUNT, COUNT, me + 2 * r);
    MPI_Alltoall(out, COUNT, MPI_INT, whole, COUNT, MPI_INT, world);
    for (int r = 0; r < ranks; r++) CHECK(filled(whole + r * COUNT, COUNT, r + 2 * me), "alltoall");
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, COUNT, MPI_INT, world);
    for (int r = 0; r < ranks; r++) CHECK(filled(out + r * COUNT, COUNT, r + 2 * me), "alltoall in place");
    for (int r = 0; r < ranks; r++) fill(out, all, me);
    MPI_Reduce_scatter_block(out, mine, COUNT, MPI_INT, MPI_SUM, world);
    CHECK(summed(mine, (size_t)me * COUNT, COUNT), "reduce_scatter_block");
    MPI_Reduce_scatter_block(MPI_IN_PLACE, out, COUNT, MPI_INT, MPI_SUM, world);
    CHECK(summed(out, (size_t)me * COUNT, COUNT), "reduce_scatter_block in place");
    fill(mine, COUNT, me);
    MPI_Scan(MPI_IN_PLACE, mine, COUNT, MPI_INT, MPI_MAX, world);
    for (size_t i = 0; i < COUNT; i++) {
        int most = 0;
        for (int r = 0; r <= me; r++) most = MAX(most, value(i, r));
        CHECK(mine[i] == most, "scan in place");
    }
    free(mine);
    free(whole);
    free(out);
}

/* Parts of different lengths, including an empty one, with gaps between them. */
static void unequal(void) {
    int counts[64], places[64], room = 0, before = 0, total = 0;
    for (int r = 0; r < ranks; r++) {
        counts[r] = r == 1 ? 0 : COUNT + r;
        places[r] = room + r;
        room = places[r] + counts[r];
        before += r < me ? counts[r] : 0;
        total += counts[r];
    }
    int *mine = array(COUNT + 64), *whole = array((size_t)room + 1);
    fill(mine, (size_t)counts[me], me);
    memset(whole, 0xff, (size_t)room * sizeof *whole);
    MPI_Allgatherv(mine, counts[me], MPI_INT, whole, counts, places, MPI_INT, world);
    for (int r = 0; r < ranks; r++) {
        CHECK(filled(whole + places[r], (size_t)counts[r], r), "allgatherv");
        CHECK(!r || whole[places[r] - 1] == -1, "allgatherv writes between parts");
    }
    memset(whole, 0xff, (size_t)room * sizeof *whole);
    fill(whole + places[me], (size_t)counts[me], me);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole, counts, places, MPI_INT, world);
    for (int r = 0; r < ranks; r++) CHECK(filled(whole + places[r], (size_t)counts[r], r), "allgatherv in place");
    int *out = array((size_t)total);
    fill(out, (size_t)total, me);
    MPI_Reduce_scatter(out, mine, counts, MPI_INT, MPI_SUM, world);
    CHECK(summed(mine, (size_t)before, (size_t)counts[me]), "reduce_scatter");
    MPI_Reduce_scatter(MPI_IN_PLACE, out, counts, MPI_INT, MPI_SUM, world);
    CHECK(summed(out, (size_t)before, (size_t)counts[me]), "reduce_scatter in place");
    free(mine);
    free(whole);
    free(out);
}

/* The same signature with a different type at each rank: every second element, a contiguous type, a swapped pair. */
static void derived(void) {
    MPI_Datatype every_second, block, resized, swapped;
    MPI_Type_vector(COUNT, 1, 2, MPI_INT, &every_second);
    MPI_Type_contiguous(COUNT, MPI_INT, &block);
    MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &resized);
    int lengths[2] = {1, 1}, displacements[2] = {1, 0};
    MPI_Type_indexed(2, lengths, displacements, MPI_INT, &swapped);
    MPI_Type_commit(&every_second);
    MPI_Type_commit(&block);
    MPI_Type_commit(&resized);
    MPI_Type_commit(&swapped);
    size_t all = (size_t)ranks * COUNT;
    int *sparse = array(2 * all), *dense = array(all);
    for (size_t i = 0; i < 2 * all; i++) sparse[i] = i % 2 ? -1 : me ? 0 : value(i / 2, 0);
    for (size_t i = 0; i < COUNT; i++) dense[i] = 0;
    if (me % 2) MPI_Bcast(dense, 1, block, 0, world);
    else MPI_Bcast(sparse, 1, every_second, 0, world);
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(me % 2 ? dense[i] == value(i, 0) : sparse[2 * i] == value(i, 0) && sparse[2 * i + 1] == -1, "bcast by several types");
    }
    fill(dense, COUNT, me);
    for (size_t i = 0; i < 2 * all; i++) sparse[i] = -1;
    MPI_Allgather(dense, 1, block, sparse, COUNT, resized, world);
    for (size_t i = 0; i < all; i++) {
        CHECK(sparse[2 * i] == value(i % COUNT, (int)(i / COUNT)) && sparse[2 * i + 1] == -1, "allgather into gaps");
    }
    fill(dense, COUNT, me);
    MPI_Gather(dense, COUNT / 2, swapped, sparse, COUNT, MPI_INT, 0, world);
    for (size_t i = 0; !me && i < all; i++) {
        CHECK(sparse[i] == value((i % COUNT) ^ 1, (int)(i / COUNT)), "gather of swapped pairs");
    }
    for (size_t i = 0; i < 2 * all; i++) sparse[i] = i % 2 ? -1 : value(i / 2 % COUNT, me + (int)(i / 2 / COUNT));
    MPI_Alltoall(sparse, COUNT, resized, dense, 1, block, world);
    for (size_t i = 0; i < all; i++) CHECK(dense[i] == value(i % COUNT, me + (int)(i / COUNT)), "alltoall out of gaps");
    MPI_Type_free(&every_second);
    MPI_Type_free(&block);
    MPI_Type_free(&resized);
    MPI_Type_free(&swapped);
    free(sparse);
    free(dense);
}

static void second(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++) ((int *)inout)[i] = MAX(((int *)in)[i], ((int *)inout)[i]);
}

/* Temporary communicators, intercommunicators, communicators of one rank, and reductions of the program. */
static void communicators(void) {
    static int in[COUNT], out[COUNT];
    for (int round = 0; round < 3; round++) {
        MPI_Comm copy, half, between;
        MPI_Comm_dup(world, &copy);
        fill(in, COUNT, me);
        MPI_Allreduce(in, out, COUNT, MPI_INT, MPI_SUM, copy);
        CHECK(summed(out, 0, COUNT), "allreduce of a copy");
        MPI_Comm_split(world, me % 2, -me, &half);
        int rank, size;
        MPI_Comm_rank(half, &rank);
        MPI_Comm_size(half, &size);
        /* The ranks of the half are in reverse order. */
        fill(in, COUNT, rank ? 99 : me);
        MPI_Bcast(in, COUNT, MPI_INT, 0, half);
        CHECK(filled(in, COUNT, me + 2 * rank), "bcast of a half");
        MPI_Intercomm_create(half, 0, world, me % 2 ? (ranks - 1) / 2 * 2 : (ranks - 2) / 2 * 2 + 1, 7, &between);
        for (int i = 0; i < COUNT; i++) in[i] = 1;
        MPI_Allreduce(in, out, COUNT, MPI_INT, MPI_SUM, between);
        CHECK(out[COUNT - 1] == ranks - size, "allreduce between halves");
        MPI_Comm_free(&between);
        MPI_Comm_free(&half);
        MPI_Comm_free(&copy);
    }
    fill(in, COUNT, me);
    MPI_Allreduce(in, out, COUNT, MPI_INT, MPI_SUM, MPI_COMM_SELF);
    CHECK(filled(out, COUNT, me), "allreduce of oneself");
    MPI_Op op;
    MPI_Op_create(second, 1, &op);
    MPI_Allreduce(in, out, COUNT, MPI_INT, op, world);
    for (size_t i = 0; i < COUNT; i++) {
        int most = 0;
        for (int r = 0; r < ranks; r++) most = MAX(most, value(i, r));
        CHECK(out[i] == most, "a reduction of the program");
    }
    MPI_Op_free(&op);
    MPI_Comm careless;
    MPI_Comm_dup(world, &careless);
    MPI_Comm_set_errhandler(careless, MPI_ERRORS_RETURN);
    CHECK(MPI_Bcast(in, COUNT, MPI_INT, ranks, careless) != MPI_SUCCESS, "a root that is not there");
    CHECK(MPI_Bcast(in, -1, MPI_INT, 0, careless) != MPI_SUCCESS, "a negative count");
    MPI_Comm_free(&careless);
}

#ifdef FORTRAN_NAMES
void mpi_allreduce_(void *, void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *);
void mpi_bcast_(void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *);
void mpi_gather_(void *, MPI_Fint *, MPI_Fint *, void *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *);
extern int mpi_fortran_in_place_;

/* Calls as a Fortran program makes them. */
static void fortran(void) {
    size_t all = (size_t)ranks * COUNT;
    int *in = array(COUNT), *out = array(all);
    MPI_Fint count = COUNT, type = MPI_Type_c2f(MPI_INT), op = MPI_Op_c2f(MPI_SUM), comm = MPI_Comm_c2f(world), root = 1, error = -1;
    fill(in, COUNT, me);
    mpi_allreduce_(in, out, &count, &type, &op, &comm, &error);
    CHECK(!error && summed(out, 0, COUNT), "mpi_allreduce_");
    mpi_allreduce_(&mpi_fortran_in_place_, in, &count, &type, &op, &comm, &error);
    CHECK(!error && summed(in, 0, COUNT), "mpi_allreduce_ in place");
    fill(in, COUNT, me);
    mpi_bcast_(in, &count, &type, &root, &comm, &error);
    CHECK(!error && filled(in, COUNT, 1), "mpi_bcast_");
    fill(in, COUNT, me);
    mpi_gather_(in, &count, &type, out, &count, &type, &root, &comm, &error);
    for (int r = 0; me == 1 && r < ranks; r++) CHECK(!error && filled(out + r * COUNT, COUNT, r), "mpi_gather_");
    free(in);
    free(out);
}
#endif

static void mismatch(void) {
    static int in[2 * COUNT], out[2 * COUNT];
    MPI_Comm copy;
    MPI_Comm_dup(world, &copy);
    MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
    int code = MPI_Allreduce(in, out, me ? COUNT : 2 * COUNT, MPI_INT, MPI_SUM, copy), class;
    CHECK(code != MPI_SUCCESS, "ranks that give other lengths do not fail");
    MPI_Error_class(code, &class);
    CHECK(class == MPI_ERR_TRUNCATE, "the class of the error");
    MPI_Comm_free(&copy);
}

_Noreturn static void for_ever(void) {
    static int in[COUNT], out[COUNT];
    for (long call = 0;; call++) {
        MPI_Allreduce(in, out, COUNT, MPI_INT, MPI_SUM, world);
        if (!me && !call) fprintf(stderr, "under way\n");
    }
}

/* Rank 0 starts to send and then enters a collective; the others receive before they enter it. */
static void progress(int bytes) {
    char *data = calloc(1, (size_t)bytes);
    CHECK(data, "memory");
    static int in[COUNT], out[COUNT];
    /* Creates the group, so that the second call does not. */
    MPI_Allreduce(in, out, COUNT, MPI_INT, MPI_SUM, world);
    if (!me) {
        MPI_Request *sent = malloc((size_t)ranks * sizeof *sent);
        for (int r = 1; r < ranks; r++) MPI_Isend(data, bytes, MPI_BYTE, r, 5, world, &sent[r]);
        MPI_Allreduce(in, out, COUNT, MPI_INT, MPI_SUM, world);
        MPI_Waitall(ranks - 1, sent + 1, MPI_STATUSES_IGNORE);
        free(sent);
    } else {
        MPI_Recv(data, bytes, MPI_BYTE, 0, 5, world, MPI_STATUS_IGNORE);
        MPI_Allreduce(in, out, COUNT, MPI_INT, MPI_SUM, world);
    }
    free(data);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    world = MPI_COMM_WORLD;
    MPI_Comm_rank(world, &me);
    MPI_Comm_size(world, &ranks);
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "mismatch")) {
        mismatch();
    } else if (!strcmp(what, "for-ever")) {
        for_ever();
    } else if (!strcmp(what, "progress")) {
        progress(argc > 2 ? atoi(argv[2]) : 1);
    } else if (!strcmp(what, "first")) {
        rooted(0);
        REDUCTION(int, MPI_INT, SUM);
    } else {
        types();
        pairs();
        for (int root = 0; root < ranks; root += ranks - 1) rooted(root);
        all_to_all();
        unequal();
        derived();
        communicators();
#ifdef FORTRAN_NAMES
        fortran();
#endif
    }
    if (!me) printf("right\n");
    MPI_Finalize();
    return 0;
}
