//! Rank 0 sends a megabyte to all ranks, and every rank prints its location.
//!
//!     cargo run --features embedded --example hello_bcast
//!     cool run -n 16 -- target/release/examples/hello_bcast

use cool::{Comm, Error};

fn main() -> Result<(), Error> {
    cool::launch(hello)?.into_iter().collect()
}

fn hello(comm: Comm) -> Result<(), Error> {
    let mut message = vec![0u8; 1 << 20];
    if comm.rank() == 0 {
        message.fill(42);
    }
    comm.bcast(&mut message, 0)?;
    assert!(message.iter().all(|byte| *byte == 42));
    let node = comm.place(comm.rank()).map_or("nowhere", |place| &place.name);
    println!("rank {} of {} on {node} has {} bytes", comm.rank(), comm.size(), message.len());
    comm.barrier()
}
