//! Computes the most that coded repair could gain: the number of repair packets in one rack, in
//! which receivers lose packets independently, by three schemes that waste no packet. This is a
//! study of a design that was not built (docs/design/repair.md). It prints a table.
//!
//! One node of the rack has the message. The others have lost a share of it, and lose the same
//! share of the repair packets. Chain: each node receives its missing chunks from the previous
//! node. Plain: the node with the message multicasts all chunks that any node is missing, in
//! rounds. Coded: it multicasts combinations of all chunks of a generation. Each combination
//! repairs one loss of every receiver that still has one, whichever it is. The sender stops as soon
//! as all losses are repaired.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Number of chunks of a message of 1 MiB at MTU 1500.
const CHUNKS: usize = 736;
const RUNS: u64 = 50;

/// Packets of repair on the busiest link of the rack and on all of its host links, divided by the
/// number of chunks of the message.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    busiest: f64,
    all: f64,
}

/// Returns for each receiver which chunks of a generation it is missing.
fn losses(rng: &mut ChaCha8Rng, receivers: usize, chunks: usize, loss: f64) -> Vec<Vec<bool>> {
    (0..receivers).map(|_| (0..chunks).map(|_| rng.random_bool(loss)).collect()).collect()
}

/// Returns the number of packets sent until this many have arrived.
fn sent_until(rng: &mut ChaCha8Rng, arrivals: usize, loss: f64) -> usize {
    (0..arrivals).map(|_| 1 + (0..).take_while(|_: &usize| rng.random_bool(loss)).count()).sum()
}

/// Each receiver's missing chunks cross one link to the switch and one from it. Returns the packets
/// on the busiest link and on all links.
fn chain(rng: &mut ChaCha8Rng, missing: &[Vec<bool>], loss: f64) -> (usize, usize) {
    let lost = missing.iter().map(|missing_chunks| missing_chunks.iter().filter(|lost| **lost).count());
    let sent: Vec<usize> = lost.map(|lost| sent_until(rng, lost, loss)).collect();
    (sent.iter().copied().max().unwrap_or(0), 2 * sent.iter().sum::<usize>())
}

/// All links of the rack carry every packet.
fn plain(rng: &mut ChaCha8Rng, missing: &[Vec<bool>], loss: f64) -> (usize, usize) {
    let mut missing = missing.to_vec();
    let mut sent = 0;
    for chunk in 0..missing[0].len() {
        while missing.iter().any(|missing_chunks| missing_chunks[chunk]) {
            sent += 1;
            for missing_chunks in &mut missing {
                missing_chunks[chunk] &= rng.random_bool(loss);
            }
        }
    }
    (sent, (1 + missing.len()) * sent)
}

/// All links of the rack carry every packet. The receiver that needs the most packets determines
/// their number.
fn coded(rng: &mut ChaCha8Rng, missing: &[Vec<bool>], loss: f64) -> (usize, usize) {
    let lost = missing.iter().map(|missing_chunks| missing_chunks.iter().filter(|lost| **lost).count());
    let sent = lost.map(|lost| sent_until(rng, lost, loss)).max().unwrap_or(0);
    (sent, (1 + missing.len()) * sent)
}

type RepairScheme = fn(&mut ChaCha8Rng, &[Vec<bool>], f64) -> (usize, usize);

/// Returns the mean load over many messages that are divided into generations.
fn load(mend: RepairScheme, receivers: usize, generation: usize, loss: f64) -> Load {
    let mut load = Load::default();
    for seed in 1..=RUNS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let missing = losses(&mut rng, receivers, CHUNKS, loss);
        let (mut busiest, mut all) = (0, 0);
        for start in (0..CHUNKS).step_by(generation) {
            let end = (start + generation).min(CHUNKS);
            let part: Vec<Vec<bool>> =
                missing.iter().map(|missing_chunks| missing_chunks[start..end].to_vec()).collect();
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
            let schemes: [(RepairScheme, usize); 4] =
                [(chain, CHUNKS), (plain, CHUNKS), (coded, 64), (coded, CHUNKS)];
            for (mend, generation) in schemes {
                let Load { busiest, all } = load(mend, receivers, generation, loss);
                print!("  {busiest:6.4} {all:6.3}");
            }
            println!();
        }
    }
}
