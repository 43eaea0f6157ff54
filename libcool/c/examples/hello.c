/* Adds the numbers of all ranks. */
#include "cool.h"

#include <stdio.h>

static int program(cool_comm world, void *context) {
    size_t rank, size;
    double mine, sum;
    (void)context;
    if (cool_rank(world, &rank) != COOL_OK || cool_size(world, &size) != COOL_OK) return 1;
    mine = (double)rank;
    if (cool_allreduce(&mine, &sum, 1, COOL_F64, COOL_SUM, world) != COOL_OK) {
        fprintf(stderr, "%s\n", cool_error_message());
        return 1;
    }
    printf("rank %zu of %zu: the sum of all ranks is %g\n", rank, size, sum);
    return 0;
}

int main(void) {
    int result;
    if (cool_launch(program, NULL, &result) != COOL_OK) {
        fprintf(stderr, "%s\n", cool_error_message());
        return 1;
    }
    return result;
}
