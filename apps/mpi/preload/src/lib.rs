//! Loaded before an MPI library (`LD_PRELOAD=libcool_mpi.so mpirun ...`), it takes long collectives of the program to COOL, and leaves
//! all else to that library, the host's. docs/guide/mpi.md is for users; what is decided about calls is in `cool-mpi`.
//!
//! A call comes in by a function of MPI's name ([`names`], [`fortran`]), is judged and carried out ([`calls`]) by a group of COOL
//! ([`groups`]) on memory that a type describes ([`memory`]), while the host's library goes on with what it has to do ([`wait`]). Its
//! own functions are called by their names with `P` ([`host`]).

mod calls;
mod failure;
mod fortran;
mod groups;
mod host;
mod memory;
mod names;
mod report;
mod wait;
