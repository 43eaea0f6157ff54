//! Compiles one call for the ranks of one node, as an agent does, to measure its cost. For example,
//! run `valgrind --tool=cachegrind --cache-sim=no target/release/examples/compile_cost allreduce
//! racked:ring 1024 1048576` with operation, plan, ranks and bytes. The group has one rank per node
//! and 16 nodes per rack.

use cool_collective::{Call, Layout, Plan, Rank, RankPlace, compile};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, plan, ranks, bytes] = arguments.as_slice() else {
        return Err("usage: compile_cost OPERATION PLAN RANKS BYTES".into());
    };
    let places: Vec<RankPlace> =
        (0..ranks.parse()?).map(|node| RankPlace { rack: node / 16, node }).collect();
    let layout = Layout::new(&places)?;
    let call = Call::new(operation.parse()?, Rank(0), bytes.parse()?, 4);
    let plan: Plan = plan.parse()?;
    let schedule = compile(&call, &layout, &plan, |rank| rank == Rank(1))?;
    let actions: usize = schedule.programs.iter().flatten().map(|program| program.actions.len()).sum();
    println!("{operation} by {plan} of {ranks} ranks, {bytes} bytes: {actions} actions of one rank");
    Ok(())
}
