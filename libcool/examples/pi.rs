//! Computes pi by the midpoint rule: every rank sums its share of the area, and a reduction adds
//! the shares.
//!
//!     cargo run --features embedded --example pi
//!     cool run -n 16 -- target/release/examples/pi

fn main() -> Result<(), cool::Error> {
    let results = cool::launch(|comm| -> Result<(), cool::Error> {
        let steps = 10_000_000;
        let width = 1.0 / steps as f64;
        let height = |step: usize| 4.0 / (1.0 + ((step as f64 + 0.5) * width).powi(2));
        let share: f64 = (comm.rank()..steps).step_by(comm.size()).map(height).sum();
        let mut pi = [0.0];
        comm.allreduce(&[share * width], &mut pi, cool::Op::Sum)?;
        println!("rank {} of {}: pi is {:.12}", comm.rank(), comm.size(), pi[0]);
        Ok(())
    })?;
    results.into_iter().collect()
}
