//! What coded repair could gain at best: the packets of repair in one rack where each receiver loses on its own, by three
//! ways of mending, none of which wastes any. A study of a design that was not built (docs/design/repair.md); it prints a table.
//!
//! One node of the rack has the message, the others lost a share of it and lose the same share of what is sent to mend
//! it. Along the chain each node gets what it lacks from the one before. Plain: the node that has the message multicasts
//! what anybody lacks, in rounds. Coded: it multicasts combinations of all chunks of a generation, each of which mends
//! one loss, whichever, of every receiver that still has one, and stops as soon as all are mended.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Chunks of 1 MiB at MTU 1500.
const CHUNKS: usize = 736;
const RUNS: u64 = 50;

/// Packets of repair on the busiest link of the rack and on all of its host links, over the chunks of the message.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    busiest: f64,
    all: f64,
}

/// Which chunks of a generation each receiver lacks.
fn losses(rng: &mut ChaCha8Rng, receivers: usize, chunks: usize, loss: f64) -> Vec<Vec<bool>> {
    (0..receivers).map(|_| (0..chunks).map(|_| rng.random_bool(loss)).collect()).collect()
}

/// Packets sent until as many have come.
fn sent_until(rng: &mut ChaCha8Rng, come: usize, loss: f64) -> usize {
    (0..come).map(|_| 1 + (0..).take_while(|_: &usize| rng.random_bool(loss)).count()).sum()
}

/// Each receiver's losses go over one link to the switch and one from it.
fn chain(rng: &mut ChaCha8Rng, lacking: &[Vec<bool>], loss: f64) -> (usize, usize) {
    let lost = lacking.iter().map(|lacks| lacks.iter().filter(|lost| **lost).count());
    let sent: Vec<usize> = lost.map(|lost| sent_until(rng, lost, loss)).collect();
    (sent.iter().copied().max().unwrap_or(0), 2 * sent.iter().sum::<usize>())
}

/// All links of the rack carry every packet.
fn plain(rng: &mut ChaCha8Rng, lacking: &[Vec<bool>], loss: f64) -> (usize, usize) {
    let mut lacking = lacking.to_vec();
    let mut sent = 0;
    for chunk in 0..lacking[0].len() {
        while lacking.iter().any(|lacks| lacks[chunk]) {
            sent += 1;
            for lacks in &mut lacking {
                lacks[chunk] &= rng.random_bool(loss);
            }
        }
    }
    (sent, (1 + lacking.len()) * sent)
}

/// The same, and what is sent is what the receiver needs that loses most.
fn coded(rng: &mut ChaCha8Rng, lacking: &[Vec<bool>], loss: f64) -> (usize, usize) {
    let lost = lacking.iter().map(|lacks| lacks.iter().filter(|lost| **lost).count());
    let sent = lost.map(|lost| sent_until(rng, lost, loss)).max().unwrap_or(0);
    (sent, (1 + lacking.len()) * sent)
}

type Mending = fn(&mut ChaCha8Rng, &[Vec<bool>], f64) -> (usize, usize);

/// The mean of many messages in generations.
fn load(mend: Mending, receivers: usize, generation: usize, loss: f64) -> Load {
    let mut load = Load::default();
    for seed in 1..=RUNS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let lacking = losses(&mut rng, receivers, CHUNKS, loss);
        let (mut busiest, mut all) = (0, 0);
        for start in (0..CHUNKS).step_by(generation) {
            let end = (start + generation).min(CHUNKS);
            let part: Vec<Vec<bool>> = lacking.iter().map(|lacks| lacks[start..end].to_vec()).collect();
            let (on_busiest, on_all) = mend(&mut rng, &part, loss);
            busiest += on_busiest;
            all += on_all;
        }
        load.busiest += busiest as f64 / (RUNS as f64 * CHUNKS as f64);
        load.all += all as f64 / (RUNS as f64 * CHUNKS as f64);
    }
    load
}

fn main() {
    println!(
        "Packets of repair over the {CHUNKS} chunks of the message, on the busiest link and on all host links of a rack; means\n\
         of {RUNS} messages. Coded in generations of 64 chunks, and of the whole message.\n\n\
         rack of  loss   chain         plain multicast   coded, 64     coded, whole",
    );
    for receivers in [3, 7, 15] {
        for loss in [0.001, 0.01, 0.05, 0.2] {
            print!("{:7} {:4.1}%", receivers + 1, loss * 100.0);
            let schemes: [(Mending, usize); 4] =
                [(chain, CHUNKS), (plain, CHUNKS), (coded, 64), (coded, CHUNKS)];
            for (mend, generation) in schemes {
                let Load { busiest, all } = load(mend, receivers, generation, loss);
                print!("  {busiest:6.4} {all:6.3}");
            }
            println!();
        }
    }
}
