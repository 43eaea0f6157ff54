//! A library that is loaded before an MPI library (`LD_PRELOAD=libcool_mpi.so mpirun ...`). It
//! intercepts long collectives and executes them by COOL; all other calls are passed through to
//! that library, which is the host's MPI library. docs/guide/mpi.md is the guide for users;
//! `cool-mpi` contains the decisions about calls.
//!
//! The program calls a function with MPI's name ([`interposed_functions`], [`fortran`]). The call
//! is intercepted ([`calls`]) and executed by a group of COOL ([`groups`]) on memory that an MPI
//! type describes ([`typed_memory`]), while the host's library makes progress ([`wait`]). Functions
//! of the host's library are called by their `PMPI_` names ([`host`]). When MPI is initialized, the
//! ranks compare their settings ([`initialization`]).

mod calls;
mod failure;
mod fortran;
mod groups;
mod host;
mod initialization;
mod interposed_functions;
mod report;
mod typed_memory;
mod wait;
