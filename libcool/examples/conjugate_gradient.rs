//! Conjugate gradients (Hestenes and Stiefel, 1952) for Poisson's equation on a square of N x N
//! points.
//!
//! Each rank holds some rows of points. In an iteration it exchanges one row with each neighbor,
//! and all ranks add two numbers.
//!
//!     cargo run --features embedded --example conjugate_gradient -- --grid 100
//!     cool run -n 16 -- target/release/examples/conjugate_gradient --grid 100 --json
//!
//! The same program exists in C (`libcool/c/examples/conjugate_gradient.c`) and in Python
//! (`libcool/python/examples/conjugate_gradient.py`).

use clap::Parser;
use cool::{Comm, Error, Op};
use std::error::Error as Any;
use std::f64::consts::FRAC_PI_2;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
struct Options {
    /// Points on each side of the square
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=32768))]
    grid: u16,
    /// Stop when the residual is at most this fraction of the first one
    #[arg(long, default_value_t = 1e-8, value_parser = tolerance)]
    tolerance: f64,
    /// Maximum number of iterations
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_iterations: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|t| (1e-12..=0.1).contains(t))
        .ok_or("expected a number from 1e-12 to 0.1".into())
}

/// The result, which is the same at all ranks except for the time.
struct Outcome {
    iterations: u32,
    /// Length of the residual, divided by that of the right-hand side.
    residual: f64,
    /// Distance from the solution, divided by its length.
    error: f64,
    seconds: f64,
}

/// A rank's part of the matrix: 4 on the diagonal, -1 for each neighbor of a point within the
/// square.
struct Poisson<'a> {
    comm: &'a Comm,
    /// Points on each side.
    side: usize,
    /// This rank's rows of points.
    rows: Range<usize>,
}

impl Poisson<'_> {
    /// Returns zeros for this rank's points and one row of each neighbor around them.
    fn with_neighbors(&self) -> Vec<f64> {
        vec![0.0; (self.rows.len() + 2) * self.side]
    }

    /// Returns the range of this rank's points in a vector with rows of the neighbors.
    fn own(&self) -> Range<usize> {
        self.side..(self.rows.len() + 1) * self.side
    }

    /// Multiplies the matrix by a vector with rows of the neighbors, which are updated first.
    fn times(&self, vector: &mut [f64], product: &mut [f64]) -> Result<(), Error> {
        self.exchange(vector)?;
        let n = self.side;
        for (i, result) in product.iter_mut().enumerate() {
            let (at, column) = (i + n, i % n);
            let west = if column > 0 { vector[at - 1] } else { 0.0 };
            let east = if column + 1 < n { vector[at + 1] } else { 0.0 };
            *result = 4.0 * vector[at] - vector[at - n] - vector[at + n] - west - east;
        }
        Ok(())
    }

    /// Sends the first and the last row to the neighbors and receives theirs. The sends are only
    /// started, because both neighbors send before they receive.
    fn exchange(&self, vector: &mut [f64]) -> Result<(), Error> {
        let (n, own, comm) = (self.side, self.own(), self.comm);
        let above = comm.rank().checked_sub(1);
        let below = Some(comm.rank() + 1).filter(|rank| *rank < comm.size());
        let mut sent = Vec::with_capacity(2);
        if let Some(above) = above {
            sent.push(comm.start().send(&vector[n..2 * n], above, 0)?);
        }
        if let Some(below) = below {
            sent.push(comm.start().send(&vector[own.end - n..own.end], below, 0)?);
        }
        if let Some(above) = above {
            comm.recv(&mut vector[..n], above, 0)?;
        }
        if let Some(below) = below {
            comm.recv(&mut vector[own.end..], below, 0)?;
        }
        cool::wait_all(sent)
    }

    /// Returns the inner product over all ranks.
    fn dot(&self, a: &[f64], b: &[f64]) -> Result<f64, Error> {
        let mut sum = [a.iter().zip(b).map(|(a, b)| a * b).sum()];
        self.comm.allreduce_in_place(&mut sum, Op::Sum)?;
        Ok(sum[0])
    }

    /// Solves the equations with the matrix times a known vector as right-hand side, starting from
    /// 0.
    fn solve(&self, options: &Options) -> Result<Outcome, Error> {
        let (n, own) = (self.side, self.own());
        let (mut known, mut direction) = (self.with_neighbors(), self.with_neighbors());
        let mut solution = vec![0.0; own.len()];
        let (mut residual, mut product) = (solution.clone(), solution.clone());
        for (i, value) in known[own.clone()].iter_mut().enumerate() {
            *value = (((self.rows.start + i / n) * 31 + i % n * 7 + 3) % 101) as f64;
        }
        self.times(&mut known, &mut residual)?;
        direction[own.clone()].copy_from_slice(&residual);
        let first = self.dot(&residual, &residual)?;

        let begin = Instant::now();
        let (mut square, mut iterations) = (first, 0);
        while (square / first).sqrt() > options.tolerance && iterations < options.max_iterations {
            self.times(&mut direction, &mut product)?;
            let step = square / self.dot(&direction[own.clone()], &product)?;
            for i in 0..own.len() {
                solution[i] += step * direction[n + i];
                residual[i] -= step * product[i];
            }
            let next = self.dot(&residual, &residual)?;
            let turn = next / square;
            for i in 0..own.len() {
                direction[n + i] = residual[i] + turn * direction[n + i];
            }
            (square, iterations) = (next, iterations + 1);
        }
        let seconds = begin.elapsed().as_secs_f64();

        let known = &known[own];
        let away: Vec<f64> = solution.iter().zip(known).map(|(a, b)| a - b).collect();
        let error = (self.dot(&away, &away)? / self.dot(known, known)?).sqrt();
        Ok(Outcome { iterations, residual: (square / first).sqrt(), error, seconds })
    }
}

/// Prints the result if it is correct.
fn report(options: &Options, ranks: usize, outcome: Outcome) -> Result<(), String> {
    let (side, Outcome { iterations, residual, error, seconds }) = (options.grid, outcome);
    if residual.is_nan() || residual > options.tolerance {
        return Err(format!("the residual is still {residual:.3e} after {iterations} iterations"));
    }
    // The error is at most the residual times the condition number of the matrix.
    let condition = (FRAC_PI_2 / (f64::from(side) + 1.0)).tan().powi(-2);
    if error.is_nan() || error > condition * options.tolerance {
        return Err(format!("wrong: the error is {error:.3e}, with a residual of {residual:.3e}"));
    }
    let each = seconds / f64::from(iterations);
    if options.json {
        print!(
            r#"{{"ranks": {ranks}, "grid": {side}, "iterations": {iterations}, "residual": {residual:e}, "#
        );
        println!(r#""error": {error:e}, "seconds": {seconds:e}, "seconds_per_iteration": {each:e}}}"#);
    } else {
        print!("{ranks} ranks, {side} x {side} points: {iterations} iterations, residual {residual:.3e}, ");
        println!("error {error:.3e}, {seconds:.3} s, {:.3} ms per iteration", each * 1e3);
    }
    Ok(())
}

fn program(comm: &Comm, options: &Options) -> Result<(), Box<dyn Any + Send + Sync>> {
    let (side, rank, ranks) = (usize::from(options.grid), comm.rank(), comm.size());
    // An error that occurs at all ranks is printed by one.
    let says = rank == 0;
    if side < ranks {
        return if says { Err(format!("{side} rows are too few for {ranks} ranks").into()) } else { Ok(()) };
    }
    let poisson = Poisson { comm, side, rows: rank * side / ranks..(rank + 1) * side / ranks };
    let outcome = poisson.solve(options)?;
    if says { report(options, ranks, outcome).map_err(Into::into) } else { Ok(()) }
}

fn run() -> Result<(), Box<dyn Any + Send + Sync>> {
    let options = Options::try_parse().or_else(|e| if e.use_stderr() { Err(e) } else { e.exit() });
    let options = options.map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())?;
    cool::launch(|comm| program(&comm, &options))?.into_iter().collect()
}

fn main() -> ExitCode {
    run().map_or_else(
        |e| {
            eprintln!("conjugate_gradient: {e}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}
