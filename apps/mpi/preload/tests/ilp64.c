/* Both parts of the test of Fortran's INTEGER: as a library (-DLIBRARY), the functions and symbols
 * of Open MPI that libcool_mpi.so needs, with an INTEGER of INTEGER_BYTES; otherwise a program that
 * calls mpi_reduce_scatter_ as Fortran does. */
#include <stdio.h>

void mpi_reduce_scatter_(const void *send, void *recv, const long *counts, const int *type, const int *op, const int *comm, long *error);

#ifdef LIBRARY
#define HANDLE(name) long name[16]
HANDLE(ompi_mpi_comm_world); HANDLE(ompi_mpi_comm_self); HANDLE(ompi_mpi_comm_null); HANDLE(ompi_mpi_datatype_null);
HANDLE(ompi_mpi_int); HANDLE(ompi_mpi_integer); HANDLE(ompi_mpi_byte); HANDLE(ompi_mpi_op_min);
#define STUB(name) int name(void) { return 0; }
STUB(PMPI_Allreduce) STUB(PMPI_Bcast) STUB(PMPI_Comm_call_errhandler) STUB(PMPI_Comm_rank) STUB(PMPI_Comm_remote_size)
STUB(PMPI_Comm_size) STUB(PMPI_Comm_test_inter) STUB(PMPI_Comm_create_keyval) STUB(PMPI_Initialized) STUB(PMPI_Iprobe)
STUB(PMPI_Pack) STUB(PMPI_Comm_set_attr) STUB(PMPI_Type_get_contents) STUB(PMPI_Type_get_envelope) STUB(PMPI_Type_get_extent)
STUB(PMPI_Type_free) STUB(PMPI_Unpack)

int PMPI_Type_size_x(void *type, long long *size) {
    *size = type == ompi_mpi_integer ? INTEGER_BYTES : 4;
    return 0;
}

/* The library calls these only for a call that it may intercept. No call on these handles is. */
void *PMPI_Comm_f2c(int number) { (void)number; puts("converted"); return ompi_mpi_comm_null; }
void *PMPI_Type_f2c(int number) { (void)number; return ompi_mpi_datatype_null; }
void *PMPI_Op_f2c(int number) { (void)number; return ompi_mpi_op_min; }

void mpi_reduce_scatter_(const void *send, void *recv, const long *counts, const int *type, const int *op, const int *comm, long *error) {
    (void)send, (void)recv, (void)type, (void)op, (void)comm;
    printf("host %ld %ld\n", counts[0], counts[1]);
    *error = 0;
}
#else
int main(void) {
    int data[8] = {0}, number = 0;
    long counts[2] = {3, 5}, error = 1L << 32;
    mpi_reduce_scatter_(data, data, counts, &number, &number, &number, &error);
    printf("error %ld\n", error);
    return 0;
}
#endif
