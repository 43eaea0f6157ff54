//! Multidimensional scaling by SMACOF (de Leeuw, 1977; Borg and Groenen, "Modern Multidimensional
//! Scaling", chapter 8): points in the plane that approximate given distances.

use cool_map::{Error, Options, Partitions, Progress, Rows};
use std::error::Error as Any;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "Usage: smacof DISTANCES
Prints the stress, then points in the plane that approximate a matrix of distances. The file
contains one row of the matrix on each line.";

/// Rows of the matrix per partition.
const BLOCK: usize = 16;
/// Iterations end when an iteration lowers the stress by at most this share of it.
const TOLERANCE: f64 = 1e-9;
/// Points in the plane, and the stress of the previous points and of those before.
type State = (Vec<[f64; 2]>, [f64; 2]);

/// Returns points that approximate the distances, and their stress, the sum of squared differences.
fn scale(comm: cool::Comm, distances: &[Vec<f64>]) -> Result<(Vec<[f64; 2]>, f64), Error> {
    let n = distances.len();
    let (mut parts, mut progress) = (Partitions::new(n.div_ceil(BLOCK)), Progress::new());
    cool_map::run(comm, Options::default(), |job| {
        job.deal(&mut parts, |i| Ok::<_, Error>(i * BLOCK..n.min((i + 1) * BLOCK)))?;
        // Any points that are not all equal are a valid start, for example a spiral.
        let spiral = |i: usize| (1.0 + i as f64, 2.4 * i as f64);
        let first = (0..n).map(spiral).map(|(r, angle)| [r * angle.cos(), r * angle.sin()]).collect();
        let until = |(_, [new, old]): &State, i| i > 2 && old - new <= TOLERANCE * old;
        let step = |(points, [before, _]): &State, _| {
            // The Guttman transform, row by row. Row n contains the stress.
            let rows = job.map(&mut parts, &Rows::<f64>::new(n + 1, 2), |block, out| {
                let pairs = block.clone().flat_map(|i| (0..n).map(move |j| (i, j)));
                for (i, j) in pairs.filter(|(i, j)| i != j) {
                    let apart = [points[i][0] - points[j][0], points[i][1] - points[j][1]];
                    let (is, should) = (apart[0].hypot(apart[1]), distances[i][j]);
                    let ratio = if is > 0.0 { should / is } else { 0.0 };
                    out.add(i, &apart.map(|x| ratio * x / n as f64));
                    out.add(n, &[(is - should).powi(2) / 2.0, 0.0]);
                }
                Ok::<_, Error>(())
            })?;
            let rows = job.combine(job.regroup(rows)?)?;
            let (mut next, mut stress) = (vec![[0.0; 2]; n], 0.0);
            for (i, row) in rows.iter() {
                if i < n { next[i].copy_from_slice(row) } else { stress = row[0] }
            }
            Ok((next, [stress, *before]))
        };
        job.iterate(&mut progress, || Ok((first, [0.0; 2])), until, step).cloned()
    })
    .map(|(points, [stress, _])| (points, stress))
}

fn run(path: &Path) -> Result<(), Box<dyn Any>> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let row = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    let rows: Result<Vec<Vec<f64>>, _> = text.lines().map(row).collect();
    let rows = rows.map_err(|error| wrong(&error))?;
    if rows.iter().any(|row| row.len() != rows.len()) {
        return Err(wrong(&"the matrix must have as many columns as rows").into());
    }
    for (driver, scaled) in cool::launch(|comm| (comm.rank() == 0, scale(comm, &rows)))? {
        let (points, stress) = scaled?;
        let lines = points.iter().map(|[x, y]| format!("\n{x:e} {y:e}")).collect::<String>();
        print!("{}", if driver { format!("{stress:e}{lines}\n") } else { String::new() });
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
        [distances] => run(distances.as_ref()),
        _ => Err(USAGE.into()),
    };
    done.map_or_else(
        |error| {
            eprintln!("smacof: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

#[test]
fn points_that_are_in_a_plane_are_found_up_to_turning() {
    let plain: Vec<[f64; 2]> = (0..50).map(|i| [f64::from(i * i % 13), f64::from(i * 5 % 17)]).collect();
    let apart = |a: &[f64; 2], b: &[f64; 2]| (a[0] - b[0]).hypot(a[1] - b[1]);
    let rows: Vec<Vec<f64>> = plain.iter().map(|a| plain.iter().map(|b| apart(a, b)).collect()).collect();
    for scaled in cool::launch(|comm| scale(comm, &rows)).expect("agents start") {
        let (points, stress) = scaled.expect("scaled");
        assert!(stress < 1e-4 * rows.concat().iter().map(|d| d * d).sum::<f64>(), "{stress}");
        assert!((apart(&points[3], &points[40]) - rows[3][40]).abs() < 0.5);
    }
}
