//! PageRank (Page, Brin, Motwani and Winograd, 1999). Pages without links count as linking to all
//! pages.

use cool_map::{Error, Options, Partitions, Progress, Rows};
use std::error::Error as Any;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "Usage: pagerank LINKS
Prints the rank of each page, given a file with a link \"FROM TO\" of page numbers on each line.";

const DAMPING: f64 = 0.85;
/// Number of partitions of the links. It must not depend on the number of ranks, because the last
/// bits of the result depend on it.
const PARTITIONS: usize = 64;
/// Iterations end when the sum of the absolute changes of all pages' ranks is less.
const TOLERANCE: f64 = 1e-12;

/// Returns the ranks of pages `0..pages`, which sum to 1.
fn rank_pages(comm: cool::Comm, links: &[(usize, usize)], pages: usize) -> Result<Vec<f64>, Error> {
    let mut degrees = vec![0.0; pages];
    links.iter().for_each(|(from, _)| degrees[*from] += 1.0);
    let (mut parts, mut progress) = (Partitions::new(PARTITIONS), Progress::new());
    cool_map::run(comm, Options::default(), |job| {
        job.deal(&mut parts, |i| {
            let range = i * links.len() / PARTITIONS..(i + 1) * links.len() / PARTITIONS;
            Ok::<_, Error>(links[range].to_vec())
        })?;
        let first = || Ok((vec![1.0 / pages as f64; pages], f64::INFINITY));
        let until = |state: &(Vec<f64>, f64), _| state.1 < TOLERANCE;
        job.iterate(&mut progress, first, until, |(ranks, _), _| {
            let shares = job.map(&mut parts, &Rows::<f64>::new(pages, 1), |links, shares| {
                links.iter().for_each(|(from, to)| shares.add(*to, &[ranks[*from] / degrees[*from]]));
                Ok::<_, Error>(())
            })?;
            let shares = job.combine(job.regroup(shares)?)?;
            let lost: f64 =
                ranks.iter().zip(&degrees).filter(|(_, n)| **n == 0.0).map(|(rank, _)| rank).sum();
            let all = (1.0 - DAMPING + DAMPING * lost) / pages as f64;
            let mut next = vec![all; pages];
            shares.iter().for_each(|(page, rank)| next[page] += DAMPING * rank[0]);
            let change: f64 = next.iter().zip(ranks).map(|(new, old)| (new - old).abs()).sum();
            Ok((next, change))
        })
        .cloned()
    })
    .map(|(ranks, _)| ranks)
}

fn run(path: &Path) -> Result<(), Box<dyn Any>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut links: Vec<(usize, usize)> = Vec::new();
    for line in text.lines() {
        let link = line.split_once(' ').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        links.push(link.ok_or_else(|| format!("{}: {line:?} is not a link", path.display()))?);
    }
    let pages = links.iter().map(|(from, to)| from.max(to) + 1).max().unwrap_or(0);
    let results = cool::launch(|comm| (comm.rank() == 0, rank_pages(comm, &links, pages)));
    for (driver, ranks) in results? {
        ranks?.iter().enumerate().filter(|_| driver).for_each(|(page, rank)| println!("{page} {rank:e}"));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if arguments.iter().any(|argument| argument == "-h" || argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let done = match &arguments[..] {
        [links] => run(links.as_ref()),
        _ => Err(USAGE.into()),
    };
    done.map_or_else(
        |error| {
            eprintln!("pagerank: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

#[test]
fn ranks_satisfy_their_definition() {
    let links: Vec<_> = (0..500).map(|i| (i * 7 % 31, (i * i + 3 * i) % 37)).collect();
    let all = cool::launch(|comm| rank_pages(comm, &links, 40)).expect("agents start");
    let ranks = all
        .into_iter()
        .map(|one| one.expect("ranks"))
        .reduce(|a, b| if a == b { a } else { panic!("{a:?}, {b:?}") });
    let ranks = ranks.expect("there is a rank");
    assert!((ranks.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    let degree = |page: usize| links.iter().filter(|(from, _)| *from == page).count() as f64;
    let lost: f64 = (0..40).filter(|page| degree(*page) == 0.0).map(|page| ranks[page]).sum();
    for page in 0..40 {
        let shares = links.iter().filter(|(_, to)| *to == page).map(|(from, _)| ranks[*from] / degree(*from));
        let should = (1.0 - DAMPING + DAMPING * lost) / 40.0 + DAMPING * shares.sum::<f64>();
        assert!((ranks[page] - should).abs() < 1e-11, "{page}: {} is not {should}", ranks[page]);
    }
}
