//! Multidimensional scaling by SMACOF (de Leeuw, 1977; Borg and Groenen, "Modern Multidimensional Scaling", chapter 8): places
//! points in the plane so that their distances are as given. `smacof DISTANCES` reads a matrix, a row on each line, and prints
//! the stress, then the points.

use cool_map::{Error, Next, Options, Partitions, Progress, Rows};
use std::error::Error as Any;

/// Rows of the matrix in a partition.
const BLOCK: usize = 16;
/// Iterations end when stress falls by less than this share.
const TOLERANCE: f64 = 1e-9;
/// Points in the plane, and their stress before the iteration that led to them.
type State = (Vec<[f64; 2]>, f64);

/// Points whose distances are near those given, row by row; and their stress: the sum of squared differences.
fn scale(comm: cool::Comm, distances: &[Vec<f64>]) -> Result<State, Error> {
    let n = distances.len();
    let (mut parts, mut progress) = (Partitions::new(n.div_ceil(BLOCK)), Progress::new());
    cool_map::run(comm, &Options::default(), |job| {
        job.deal(&mut parts, |i| Ok::<_, Error>(i * BLOCK..n.min((i + 1) * BLOCK)))?;
        // Any points that are not all the same will do: a spiral.
        let spiral = |i: usize| (1.0 + i as f64, 2.4 * i as f64);
        let first = (0..n).map(spiral).map(|(r, angle)| [r * angle.cos(), r * angle.sin()]).collect();
        job.iterate(
            &mut progress,
            2000,
            || Ok((first, f64::INFINITY)),
            |(points, before): &State, _| {
                // The Guttman transform, row by row; row n is for the stress.
                let rows = job.map(&mut parts, &Rows::<f64>::new(n + 1, 2), |block, out| {
                    for i in block.clone() {
                        for (j, point) in points.iter().enumerate().filter(|(j, _)| *j != i) {
                            let apart = [points[i][0] - point[0], points[i][1] - point[1]];
                            let (is, should) = (apart[0].hypot(apart[1]), distances[i][j]);
                            let ratio = if is > 0.0 { should / is } else { 0.0 };
                            out.add(i, &apart.map(|x| ratio * x / n as f64));
                            out.add(n, &[(is - should).powi(2) / 2.0, 0.0]);
                        }
                    }
                    Ok::<_, Error>(())
                })?;
                let rows = job.combine(job.regroup(rows)?)?;
                let (mut next, mut stress) = (vec![[0.0; 2]; n], 0.0);
                for (i, row) in rows.iter() {
                    if i < n { next[i].copy_from_slice(row) } else { stress = row[0] }
                }
                let done = before - stress < TOLERANCE * before;
                Ok(if done { Next::Done((points.clone(), stress)) } else { Next::Again((next, stress)) })
            },
        )
    })
    .map(|()| progress.into_state().unwrap_or_default())
}

fn main() -> Result<(), Box<dyn Any>> {
    let path = std::env::args_os().nth(1).ok_or("smacof DISTANCES: a file with a row on each line")?;
    let row = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    let rows: Vec<Vec<f64>> = std::fs::read_to_string(&path)?.lines().map(row).collect::<Result<_, _>>()?;
    if rows.iter().any(|row| row.len() != rows.len()) {
        return Err(format!("{}: not as many columns as rows", path.to_string_lossy()).into());
    }
    for (driver, scaled) in cool::launch(|comm| (comm.rank() == 0, scale(comm, &rows)))? {
        let (points, stress) = scaled?;
        if driver {
            println!("{stress:e}");
            points.iter().for_each(|[x, y]| println!("{x:e} {y:e}"));
        }
    }
    Ok(())
}

#[test]
fn points_that_are_in_a_plane_are_found_up_to_turning() {
    let plain: Vec<[f64; 2]> = (0..50).map(|i| [f64::from(i * i % 13), f64::from(i * 5 % 17)]).collect();
    let apart = |a: &[f64; 2], b: &[f64; 2]| (a[0] - b[0]).hypot(a[1] - b[1]);
    let rows: Vec<Vec<f64>> = plain.iter().map(|a| plain.iter().map(|b| apart(a, b)).collect()).collect();
    for scaled in cool::launch(|comm| scale(comm, &rows)).expect("agents start") {
        let (points, stress) = scaled.expect("scaled");
        let all: f64 = rows.concat().iter().map(|d| d * d).sum();
        assert!(stress < 1e-4 * all, "{stress} of {all}");
        assert!((apart(&points[3], &points[40]) - rows[3][40]).abs() < 0.5);
    }
}
