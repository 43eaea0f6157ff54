use cool_collective::*;
use cool_sim::schedule::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let fabric: Fabric = args[1].parse().unwrap();
    let op = Operation::ALL.into_iter().find(|o| o.to_string() == args[2]).unwrap();
    let bytes: u64 = args[3].parse().unwrap();
    let layout = Layout::new(&fabric.places(Placement::Packed)).unwrap();
    let call = Call::new(op, Rank(0), bytes, 4.min(bytes.max(1) as u32));
    let lim = limit(&call, &layout, &fabric);
    println!("limit {lim:?}");
    for plan in Plan::fitting(op) {
        if args.len() > 4 && !args[4..].contains(&plan.to_string()) { continue; }
        let t0 = std::time::Instant::now();
        let s = compile(&call, &layout, &plan, |_| true).unwrap();
        let t1 = std::time::Instant::now();
        let t = simulate(&s, &layout, &fabric, &Costs::default());
        match t { Ok(t)=>println!("{plan}: {:?} x{:.3} events {} compile {:?} sim {:?}", t.time, lim.map_or(0.0, |l| t.time.as_secs_f64()/l.as_secs_f64()), t.events, t1-t0, t1.elapsed()),
        Err(e)=>println!("{plan}: {e}") }
    }
}
