use cool_collective::*;
use cool_sim::schedule::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let fabric: Fabric = args[1].parse().unwrap();
    let op = Operation::ALL.into_iter().find(|o| o.to_string() == args[2]).unwrap();
    let bytes: u64 = args[3].parse().unwrap();
    let layout = Layout::new(&fabric.places(Placement::Packed)).unwrap();
    let fabric = match args.get(4) { Some(u) => fabric.clone().with_rates(2_500_000, u.parse::<u64>().unwrap()*125_000).unwrap(), None => fabric }; let call = call_of(op, bytes, &layout).unwrap();
    let mut costs = Costs::default(); let mut fabric = fabric; if args.len() > 5 { fabric = fabric.with_rates(1_250_000_000, 1_250_000_000).unwrap(); fabric.burst = 0; fabric.delay = std::time::Duration::from_micros(1); costs.send = std::time::Duration::from_micros(2); costs.receive = costs.send; costs.call = costs.send * 3; costs.socket = 10_000_000_000; }
    let planner = Planner::new(fabric.cost_model(&costs), layout.clone());
    let t0 = std::time::Instant::now();
    let r = planner.rank(&call); let mut r = r; for p in Plan::fitting(op) { for q in std::iter::once(p).chain(Planner::segmented(p,&call,&layout)) { if r.iter().any(|e| e.plan==q) {continue;} if let Some(e)=planner.estimate(&call,q) { if e.seconds < 2.0*r[0].seconds { r.push(e);} } } }
    println!("rank {:?} of {}", t0.elapsed(), r.len());
    let mut best = f64::MAX; let mut first = 0.0;
    for (i, e) in r.iter().enumerate() {
        
        let s = compile(&call, &layout, &e.plan, |_| true).unwrap();
        let t = simulate(&s, &layout, &fabric, &costs).unwrap().time.as_secs_f64();
        if i == 0 { first = t; }
        best = best.min(t);
        println!("{:40} est {:.6} sim {:.6} ratio {:.2}", e.plan.to_string(), e.seconds, t, e.seconds / t);
    }
    println!("pick/best {:.3}", first / best);
}
