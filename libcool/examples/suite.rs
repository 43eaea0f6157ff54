//! Executes every operation once and prints, for each rank, a hash of the data that it received.
//!
//! The programs in C (`libcool/c/examples/suite.c`) and Python (`libcool/python/examples/suite.py`)
//! print exactly the same. `tests/e2e/suite.py` contains the expected output.

use cool::{Comm, Error, FailureKind, Located, Op};
use std::time::Duration;

/// Returns element `i` of rank `rank`.
fn x(rank: usize, i: usize) -> i64 {
    ((rank * 31 + i * 7 + 3) % 101) as i64
}

/// Returns the elements of rank `rank`.
fn vector(rank: usize, count: usize) -> Vec<i64> {
    (0..count).map(|i| x(rank, i)).collect()
}

/// Prints, at rank 0, a number (FNV-1a) for the values of each rank.
fn line(comm: &Comm, name: &str, values: impl IntoIterator<Item = i64>) -> Result<(), Error> {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let bytes = values.into_iter().flat_map(i64::to_le_bytes);
    let mine = bytes.fold(0xcbf2_9ce4_8422_2325, step);
    let mut all = vec![0; if comm.rank() == 0 { comm.size() } else { 0 }];
    comm.gather(&[mine], &mut all, 0)?;
    if comm.rank() == 0 {
        let all: Vec<String> = all.iter().map(|hash| format!("{hash:016x}")).collect();
        println!("{name} {}", all.join(" "));
    }
    Ok(())
}

/// Composes affine maps, which is not commutative.
fn then([a, b]: [i64; 2], [c, d]: [i64; 2]) -> [i64; 2] {
    [a * c % 1009, (b * c + d) % 1009]
}

fn equal_parts(comm: &Comm) -> Result<(), Error> {
    let (rank, n) = (comm.rank(), comm.size());
    let root = n - 1;
    let mine = vector(rank, 1000);

    let mut data = if rank == root { mine.clone() } else { vec![0; 1000] };
    comm.bcast(&mut data, root)?;
    line(comm, "bcast", data)?;

    let mut data = vec![0; 1000];
    comm.reduce(&mine, &mut data, Op::Sum, root)?;
    line(comm, "reduce", data)?;

    let mut data = vec![0; 1000];
    comm.allreduce(&mine, &mut data, Op::Sum)?;
    line(comm, "allreduce", data)?;

    // The same in memory that is shared with the agent.
    let (mut send, mut recv) = (comm.alloc::<i64>(1000)?, comm.alloc::<i64>(1000)?);
    send.copy_from_slice(&mine);
    comm.allreduce(&send, &mut recv, Op::Sum)?;
    line(comm, "allreduce of buffers", recv.to_vec())?;

    let mut data = mine.clone();
    comm.allreduce_in_place(&mut data, Op::Max)?;
    line(comm, "allreduce_in_place", data)?;

    let mut data = vec![0; 10];
    comm.reduce_scatter(&vector(rank, 10 * n), &mut data, Op::Sum)?;
    line(comm, "reduce_scatter", data)?;

    let mut data = vec![0; 1000];
    comm.scan(&mine, &mut data, Op::Sum)?;
    line(comm, "scan", data)?;

    let mut data = vec![0; 1000];
    comm.exscan(&mine, &mut data, Op::Sum)?;
    line(comm, "exscan", data)?;

    let mut data = vec![0; 10 * n];
    comm.gather(&mine[..10], &mut data, root)?;
    line(comm, "gather", data)?;

    let mut data = vec![0; 10 * n];
    comm.allgather(&mine[..10], &mut data)?;
    line(comm, "allgather", data)?;

    let mut data = vec![0; 10];
    comm.scatter(&vector(rank, 10 * n), &mut data, root)?;
    line(comm, "scatter", data)?;

    let mut data = vec![0; 10 * n];
    comm.alltoall(&vector(rank, 10 * n), &mut data)?;
    line(comm, "alltoall", data)
}

fn unequal_parts(comm: &Comm) -> Result<(), Error> {
    let (rank, n) = (comm.rank(), comm.size());
    let counts: Vec<usize> = (0..n).map(|rank| rank % 3 * 50).collect();
    let all = counts.iter().sum();
    let mine = vector(rank, counts[rank]);

    let mut data = vec![0; all];
    comm.gatherv(&mine, &mut data, &counts, 0)?;
    line(comm, "gatherv", data)?;

    let mut data = vec![0; all];
    comm.allgatherv(&mine, &mut data, &counts)?;
    line(comm, "allgatherv", data)?;

    let mut data = vec![0; counts[rank]];
    comm.scatterv(&vector(rank, all), &mut data, &counts, 0)?;
    line(comm, "scatterv", data)?;

    let mut data = vec![0; counts[rank]];
    comm.reduce_scatter_counts(&vector(rank, all), &mut data, &counts, Op::Sum)?;
    line(comm, "reduce_scatter_counts", data)?;

    let pairs: Vec<usize> = (0..n * n).map(|pair| pair % 5).collect();
    let sent = pairs[rank * n..][..n].iter().sum();
    let mut data = vec![0; pairs.iter().skip(rank).step_by(n).sum()];
    comm.alltoallv(&vector(rank, sent), &mut data, &pairs)?;
    line(comm, "alltoallv", data)
}

fn types_and_functions(comm: &Comm) -> Result<(), Error> {
    let rank = comm.rank();

    let mut data = [0.0];
    comm.allreduce(&[x(rank, 1) as f64], &mut data, Op::Average)?;
    line(comm, "average of f64", data.map(|value| (value * 1024.0) as i64))?;

    let mut data = [0u8; 3];
    comm.allreduce(&[0, 1, 2].map(|i| x(rank, i) as u8), &mut data, Op::BitXor)?;
    line(comm, "bit_xor of u8", data.map(i64::from))?;

    let mut data = [Located::default()];
    comm.allreduce(&[Located::new(x(rank, 5) as f64, rank as u64)], &mut data, Op::MinLoc)?;
    line(comm, "min_loc of f64", [data[0].value as i64, data[0].index as i64])?;

    let maps: Vec<[i64; 2]> = (0..5).map(|i| [x(rank, i), x(rank, i + 5)]).collect();
    let mut data = [[0; 2]; 5];
    comm.allreduce_with(&maps, &mut data, then)?;
    line(comm, "allreduce by a function", data.into_iter().flatten())
}

fn started_and_split(comm: &Comm) -> Result<(), Error> {
    let rank = comm.rank();
    let (mut sums, mut smallest) = (vec![0; 1000], vec![0; 10]);
    let first = comm.start().allreduce(&vector(rank, 1000), &mut sums, Op::Sum)?;
    let second = comm.start().allreduce(&vector(rank, 10), &mut smallest, Op::Min)?;
    comm.start().barrier()?.wait()?;
    second.wait()?;
    first.wait()?;
    line(comm, "started", sums.into_iter().chain(smallest))?;

    // The even ranks in reverse order, and the odd ones.
    let color = rank as u64 % 2;
    let part = comm.split(Some(color), if color == 0 { -(rank as i64) } else { rank as i64 })?;
    let mut ranks = Vec::new();
    if let Some(part) = part {
        ranks.resize(part.size(), 0);
        part.allgather(&[rank as i64], &mut ranks)?;
    }
    line(comm, "split", ranks)
}

/// Sends messages around a ring: to the next rank, received from any rank.
fn messages(comm: &Comm) -> Result<(), Error> {
    let (rank, n) = (comm.rank(), comm.size());
    let mut data = vec![0; 20_000];
    let small = comm.start().send(&vector(rank, 10), (rank + 1) % n, 1)?;
    let large = comm.start().send(&vector(rank, 15_000), (rank + 1) % n, 2)?;
    let second = comm.recv(&mut data[10..], (rank + n - 1) % n, 2)?;
    let first = comm.recv(&mut data[..10], None, None)?;
    small.wait()?;
    large.wait()?;
    let told = [first.source, first.tag as usize, first.count, second.source, second.count];
    line(comm, "messages", data.into_iter().chain(told.map(|number| number as i64)))
}

/// Lets odd ranks leave a group, which rank 0 revokes; the even ranks recover.
fn recovered(comm: &Comm) -> Result<(), Error> {
    let rank = comm.rank();
    let copy = comm.dup()?;
    let (mut agreed, mut left) = (Vec::new(), Vec::new());
    if rank.is_multiple_of(2) {
        if rank == 0 {
            copy.revoke()?;
        }
        agreed.push(i64::from(copy.barrier().is_err()));
        let agreement = copy.agree(0xff ^ 1 << (rank % 8))?;
        let rest = copy.shrink()?;
        agreed.push(agreement.flags.cast_signed());
        agreed.extend(agreement.gone.iter().map(|rank| *rank as i64));
        agreed.extend(rest.gone().iter().map(|rank| *rank as i64));
        left.resize(rest.size(), 0);
        rest.allgather(&[rank as i64], &mut left)?;
    }
    drop(copy);
    line(comm, "agreed", agreed)?;
    line(comm, "shrunk", left)
}

/// Returns the C code of an error and the ranks that the error names.
fn told(result: Result<(), Error>) -> Vec<i64> {
    let (code, ranks) = match result {
        Ok(()) => (0, Vec::new()),
        Err(Error::Argument { .. }) => (1, Vec::new()),
        Err(Error::Collective { failure, ranks, .. }) => match failure {
            FailureKind::Mismatch => (4, ranks),
            FailureKind::Timeout => (5, ranks),
            FailureKind::Lost => (6, ranks),
            FailureKind::Aborted => (7, ranks),
            _ => (-1, ranks),
        },
        Err(_) => (-1, Vec::new()),
    };
    [code].into_iter().chain(ranks.into_iter().map(|rank| rank as i64)).collect()
}

/// Prints the errors of each rank for an invalid argument, for mismatching calls, and for a rank
/// that does not join a call in time or has left.
fn errors(comm: &Comm) -> Result<(), Error> {
    let (rank, n) = (comm.rank(), comm.size());
    line(comm, "wrong root", told(comm.bcast(&mut [0i64], n)))?;

    let copy = comm.dup()?;
    let count = if rank == n - 1 { 11 } else { 10 };
    let first = told(copy.allreduce(&vector(rank, count), &mut vec![0; count], Op::Sum));
    line(comm, "other length", [first[0]])?;
    line(comm, "failed before", [told(copy.barrier())[0]])?;

    // The last rank is alive, but calls only after the others have failed.
    let copy = comm.dup()?;
    copy.set_timeout(Duration::from_secs(6));
    let waited = if rank == n - 1 { Vec::new() } else { told(copy.barrier()) };
    comm.barrier()?;
    line(comm, "not in time", waited)?;

    let copy = comm.dup()?;
    let missed = if rank == n - 1 { Vec::new() } else { told(copy.barrier()) };
    drop(copy);
    line(comm, "left", missed)
}

fn main() -> Result<(), Error> {
    let run = |comm: Comm| {
        equal_parts(&comm)?;
        unequal_parts(&comm)?;
        types_and_functions(&comm)?;
        started_and_split(&comm)?;
        messages(&comm)?;
        recovered(&comm)?;
        errors(&comm)
    };
    cool::launch(run)?.into_iter().collect()
}
