/* Conjugate gradients (Hestenes and Stiefel, 1952) for Poisson's equation on a square of N x N points. Each rank holds
 * some rows of points. In an iteration it exchanges one row with each neighbor, and all ranks add two numbers.
 *
 *   cc -O2 -o conjugate_gradient conjugate_gradient.c $(pkg-config --cflags --libs cool) -lm
 *   cool run -n 16 -- ./conjugate_gradient --grid 100 --json
 *
 * The same program exists in Rust (libcool/examples/conjugate_gradient.rs) and Python. bench/solver.py also runs this one on MPI. */
#define _GNU_SOURCE
#include "cool.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    size_t grid;
    double tolerance;
    size_t max_iterations;
    int json;
};

/* The result, which is the same at all ranks except for the time. */
struct outcome {
    size_t iterations;
    double residual; /* length of the residual, divided by that of the right-hand side */
    double error;    /* distance from the solution, divided by its length */
    double seconds;
};

/* A rank's part of the matrix: 4 on the diagonal, -1 for each neighbor of a point within the square. */
struct poisson {
    cool_comm comm;
    size_t rank, ranks;
    size_t side;   /* points on each side */
    size_t first;  /* first row of points of this rank */
    size_t points; /* number of points in this rank's rows */
};

static void check(cool_status status) {
    if (status != COOL_OK) {
        fprintf(stderr, "conjugate_gradient: %s\n", cool_error_message());
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double *zeros(size_t count) {
    double *vector = calloc(count, sizeof *vector);
    if (vector == NULL) {
        fprintf(stderr, "conjugate_gradient: no memory for %zu numbers\n", count);
        exit(1);
    }
    return vector;
}

/* Sends the first and the last row of a vector to the neighbors and receives theirs. The sends are only started, because
 * both neighbors send before they receive. */
static void exchange(const struct poisson *p, double *vector) {
    size_t n = p->side, sends = 0;
    cool_request sent[2];
    if (p->rank > 0) check(cool_isend(vector, n, COOL_F64, p->rank - 1, 0, p->comm, &sent[sends++]));
    if (p->rank + 1 < p->ranks) check(cool_isend(vector + p->points - n, n, COOL_F64, p->rank + 1, 0, p->comm, &sent[sends++]));
    if (p->rank > 0) check(cool_recv(vector - n, n, COOL_F64, p->rank - 1, 0, p->comm, NULL));
    if (p->rank + 1 < p->ranks) check(cool_recv(vector + p->points, n, COOL_F64, p->rank + 1, 0, p->comm, NULL));
    check(cool_wait_all(sent, sends));
}

/* Multiplies the matrix by a vector, which has room for a row of a neighbor before and after it. */
static void times(const struct poisson *p, double *vector, double *product) {
    size_t n = p->side;
    exchange(p, vector);
    for (size_t i = 0; i < p->points; i++) {
        const double *at = vector + i;
        double west = i % n > 0 ? at[-1] : 0, east = i % n + 1 < n ? at[1] : 0;
        product[i] = 4 * *at - *(at - n) - at[n] - west - east;
    }
}

/* Returns the inner product over all ranks. */
static double dot(const struct poisson *p, const double *a, const double *b) {
    double sum = 0;
    for (size_t i = 0; i < p->points; i++) sum += a[i] * b[i];
    check(cool_allreduce(COOL_IN_PLACE, &sum, 1, COOL_F64, COOL_SUM, p->comm));
    return sum;
}

/* Solves the equations with the matrix times a known vector as right-hand side, starting from 0. */
static struct outcome solve(const struct poisson *p, const struct options *options) {
    size_t n = p->side, points = p->points;
    struct outcome outcome = {0};
    double *room[2] = {zeros(points + 2 * n), zeros(points + 2 * n)}, *known = room[0] + n, *direction = room[1] + n;
    double *solution = zeros(points), *residual = zeros(points), *product = zeros(points);
    for (size_t i = 0; i < points; i++) known[i] = (double)(((p->first + i / n) * 31 + i % n * 7 + 3) % 101);
    times(p, known, residual);
    memcpy(direction, residual, points * sizeof *direction);
    double first = dot(p, residual, residual), square = first;

    double begin = now();
    while (sqrt(square / first) > options->tolerance && outcome.iterations < options->max_iterations) {
        times(p, direction, product);
        double step = square / dot(p, direction, product);
        for (size_t i = 0; i < points; i++) {
            solution[i] += step * direction[i];
            residual[i] -= step * product[i];
        }
        double next = dot(p, residual, residual), turn = next / square;
        for (size_t i = 0; i < points; i++) direction[i] = residual[i] + turn * direction[i];
        square = next;
        outcome.iterations++;
    }
    outcome.seconds = now() - begin;

    for (size_t i = 0; i < points; i++) solution[i] -= known[i];
    outcome.error = sqrt(dot(p, solution, solution) / dot(p, known, known));
    outcome.residual = sqrt(square / first);
    free(room[0]);
    free(room[1]);
    free(solution);
    free(residual);
    free(product);
    return outcome;
}

/* Checks and prints the result; returns 0 if it is correct. */
static int report(const struct poisson *p, const struct options *options, struct outcome outcome) {
    /* The error is at most the residual times the condition number of the matrix. */
    double condition = pow(tan(acos(0) / (double)(p->side + 1)), -2), each = outcome.seconds / (double)outcome.iterations;
    if (!(outcome.residual <= options->tolerance)) {
        fprintf(stderr, "conjugate_gradient: the residual is still %.3e after %zu iterations\n", outcome.residual, outcome.iterations);
        return 1;
    }
    if (!(outcome.error <= condition * options->tolerance)) {
        fprintf(stderr, "conjugate_gradient: wrong: the error is %.3e, with a residual of %.3e\n", outcome.error, outcome.residual);
        return 1;
    }
    if (options->json)
        printf("{\"ranks\": %zu, \"grid\": %zu, \"iterations\": %zu, \"residual\": %.17g, \"error\": %.17g, \"seconds\": %.9g, "
               "\"seconds_per_iteration\": %.9g}\n",
               p->ranks, p->side, outcome.iterations, outcome.residual, outcome.error, outcome.seconds, each);
    else
        printf("%zu ranks, %zu x %zu points: %zu iterations, residual %.3e, error %.3e, %.3f s, %.3f ms per iteration\n", p->ranks,
               p->side, p->side, outcome.iterations, outcome.residual, outcome.error, outcome.seconds, each * 1e3);
    return 0;
}

static int program(cool_comm world, void *context) {
    const struct options *options = context;
    struct poisson p = {.comm = world, .side = options->grid};
    check(cool_rank(world, &p.rank));
    check(cool_size(world, &p.ranks));
    /* An error that occurs at all ranks is printed by one. */
    if (p.side < p.ranks) {
        if (p.rank == 0) fprintf(stderr, "conjugate_gradient: %zu rows are too few for %zu ranks\n", p.side, p.ranks);
        return p.rank == 0;
    }
    p.first = p.rank * p.side / p.ranks;
    p.points = ((p.rank + 1) * p.side / p.ranks - p.first) * p.side;
    struct outcome outcome = solve(&p, options);
    return p.rank == 0 ? report(&p, options, outcome) : 0;
}

/* Returns the number of an option, which must be within bounds, and an integer unless the bounds are small. */
static double number(const char *option, const char *text, double least, double most) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !(least <= value && value <= most) || (least >= 1 && value != floor(value))) {
        fprintf(stderr, "conjugate_gradient: --%s %s: expected a number from %g to %.0f\n", option, text, least, most);
        exit(1);
    }
    return value;
}

int main(int argc, char **argv) {
    static const struct option known[] = {{"grid", required_argument, NULL, 'g'},
                                          {"tolerance", required_argument, NULL, 't'},
                                          {"max-iterations", required_argument, NULL, 'm'},
                                          {"json", no_argument, NULL, 'j'},
                                          {0}};
    struct options options = {.grid = 64, .tolerance = 1e-8, .max_iterations = 10000};
    int result;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (option == 'g') options.grid = (size_t)number("grid", optarg, 1, 32768);
        /* Below this minimum, only rounding errors remain. */
        else if (option == 't') options.tolerance = number("tolerance", optarg, 1e-12, 0.1);
        else if (option == 'm') options.max_iterations = (size_t)number("max-iterations", optarg, 1, 4294967295.0);
        else if (option == 'j') options.json = 1;
        else return 1; /* getopt has printed the error */
    }
    if (optind < argc) {
        fprintf(stderr, "conjugate_gradient: %s: expected options\n", argv[optind]);
        return 1;
    }
    check(cool_launch(program, &options, &result));
    return result;
}
