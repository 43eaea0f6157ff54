use cool_collective::*;
use cool_sim::schedule::*;
fn main() {
    let quick = std::env::args().nth(1);
    let mut bad = 0; let mut all = 0;
    for (text, up, fast, placement) in [("tree:4x4", 20, false, Placement::Packed), ("tree:4x4", 80, false, Placement::Packed), ("tree:4x4", 5, false, Placement::Packed), ("tree:4x4", 20, false, Placement::Interleaved), ("tree:5+3+8", 20, false, Placement::Packed), ("leafspine:4x2x4", 20, false, Placement::Packed), ("fattree:4", 20, false, Placement::Packed), ("tree:1x16", 20, false, Placement::Packed), ("tree:2x4x4", 20, false, Placement::Packed), ("tree:4x4", 20, true, Placement::Packed), ("tree:8x16", 20, false, Placement::Packed)] {
        if let Some(q) = &quick { if q != text { continue; } }
        let k = if fast { 500 } else { 1 };
        let mut fabric: Fabric = text.parse::<Fabric>().unwrap().with_rates(2_500_000 * k, up * 125_000 * k).unwrap();
        let mut costs = Costs::default();
        if fast { fabric.burst = 0; fabric.delay = std::time::Duration::from_micros(1); costs.send = std::time::Duration::from_micros(2); costs.receive = costs.send; costs.call = costs.send * 3; costs.socket = 10_000_000_000; }
        let layout = Layout::new(&fabric.places(placement)).unwrap();
        for op in Operation::ALL {
            for bytes in [8u64, 1024, 16384, 65536, 1 << 20, 8 << 20, 64 << 20, 1 << 30] {
                if op == Operation::Barrier && bytes > 8 { continue; }
                let Some(call) = call_of(op, bytes, &layout) else { continue };
                let t0 = std::time::Instant::now();
                let v = judge(&call, &layout, &fabric, &costs).unwrap();
                all += 1;
                if v.ratio() > 1.1 { bad += 1; }
                if v.ratio() > 1.1 || t0.elapsed().as_secs_f64() > 5.0 {
                println!("{text} {up} {fast} {placement:?} {op} {bytes}: {} {:.6} best {} {:.6} ratio {:.3} tried {} {:?}", v.pick, v.pick_time.as_secs_f64(), v.best, v.best_time.as_secs_f64(), v.ratio(), v.tried, t0.elapsed());
                }
            }
        }
        println!("{text} {up}: so far {bad} of {all}");
    }
}
