//! Tables 1 and 3 of the COOL paper: each cell has the paper's formula, its value, and the count of
//! a schedule.
//!
//! As in the paper, there is one process per node; classical patterns use the best ranking
//! (`racked`, with the root first), and COOL has a root that is not a leader.
//! `docs/measurements/cool-tables.md` explains the cells in which the formula and the count differ.

use crate::error::Error;
use cool_collective::{Analysis, Call, Layout, Operation, Plan, Rank, RankPlace, analyze, compile};
use std::io::Write;

/// The parameters of the paper's table 2, and logarithms to base 2.
struct TableParameters {
    n: f64,
    r: f64,
    k: f64,
}

/// A cell: the formula as printed in the paper, and its value.
type FormulaCell = (&'static str, fn(&TableParameters) -> f64);

/// The costs of a pattern according to the paper.
struct TableRow {
    operation: Operation,
    pattern: &'static str,
    plan: &'static str,
    /// Steps, steps across racks, messages, messages across racks.
    table_1: [FormulaCell; 4],
    /// Load of the network, load across racks, and most messages in a step of a leader and of
    /// another rank.
    table_3: [FormulaCell; 4],
}

/// Parses the number of a table of the paper. Only two of them have figures.
pub(super) fn number(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("write 1 or 3, which are the paper's tables with figures".to_owned()),
    }
}

/// Prints table 1 or 3 as Markdown.
pub(super) fn print(out: &mut impl Write, number: u8, racks: u32, per_rack: u32) -> Result<(), Error> {
    let sizes =
        TableParameters { n: f64::from(racks * per_rack), r: f64::from(racks), k: f64::from(per_rack) };
    let columns = match number {
        1 => ["steps", "across racks", "messages", "across racks"],
        _ => ["network load", "across racks", "leader's load", "others' load"],
    };
    writeln!(
        out,
        "Table {number} of the COOL paper for r = {racks} racks of k = {per_rack} nodes, N = {}.",
        sizes.n
    )?;
    writeln!(out, "Each cell: formula = its value, then what the schedule counts; (!) where they differ.\n")?;
    let mut lines = vec![
        [["operation", "pattern"], [columns[0], columns[1]], [columns[2], columns[3]]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    ];
    for row in &ROWS {
        let analysis = count(row, racks, per_rack)?;
        let (cells, counted) = match number {
            1 => (&row.table_1, steps_and_messages(&analysis)),
            _ => (&row.table_3, loads(&analysis, per_rack)),
        };
        let mut line = vec![row.operation.to_string(), row.pattern.to_owned()];
        line.extend(cells.iter().zip(counted).map(|((formula, value), counted)| {
            let value = value(&sizes);
            let mark = if (value - counted as f64).abs() < 1e-9 { "" } else { " (!)" };
            let digits = usize::from(value.fract() != 0.0);
            format!("{formula} = {value:.digits$}, {counted}{mark}")
        }));
        lines.push(line);
    }
    write_table(out, &lines)
}

fn write_table(out: &mut impl Write, lines: &[Vec<String>]) -> Result<(), Error> {
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    for (i, line) in lines.iter().enumerate() {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(out, "| {} |", cells.join(" | "))?;
        if i == 0 {
            let dashes: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            writeln!(out, "| {} |", dashes.join(" | "))?;
        }
    }
    Ok(())
}

/// Analyzes the schedule of a row, with messages of one segment each.
fn count(row: &TableRow, racks: u32, per_rack: u32) -> Result<Analysis, Error> {
    let places: Vec<RankPlace> =
        (0..racks * per_rack).map(|node| RankPlace { rack: node / per_rack, node }).collect();
    let stuck = || Error::Stuck(row.plan.to_owned());
    let layout = Layout::new(&places).map_err(|_| stuck())?;
    let plan: Plan = row.plan.parse().map_err(|_| stuck())?;
    // The second node of the second rack, which is not a leader.
    let root = if row.plan.starts_with("cool") { Rank(per_rack + 1) } else { Rank(0) };
    // One element per rank, because some patterns divide the vector among all ranks.
    let bytes = if row.operation == Operation::Allreduce || row.operation == Operation::Reduce {
        u64::from(racks * per_rack)
    } else {
        1
    };
    let call = Call::new(row.operation, root, bytes, 1);
    analyze(&compile(&call, &layout, &plan, |_| true)?, &layout).ok_or_else(stuck)
}

fn steps_and_messages(a: &Analysis) -> [usize; 4] {
    [a.steps, a.steps_across_racks, a.unicasts + a.multicasts, a.across_racks]
}

fn loads(a: &Analysis, per_rack: u32) -> [usize; 4] {
    let most = |leaders: bool| {
        let ranks = a.busiest.iter().enumerate();
        let of = ranks.filter(|(rank, _)| rank.is_multiple_of(per_rack as usize) == leaders);
        of.map(|(_, messages)| *messages).max().unwrap_or(0)
    };
    [a.network().messages, a.core().messages, most(true), most(false)]
}

fn log(x: f64) -> f64 {
    x.log2()
}

/// The rows of both tables. A message to several receivers (x_y in the paper) counts once.
#[rustfmt::skip]
static ROWS: [TableRow; 18] = [
    TableRow { operation: Operation::Reduce, pattern: "COOL-P-P", plan: "cool-p-p",
        table_1: [("3", |_| 3.0), ("1", |_| 1.0), ("N", |s| s.n), ("r-1", |s| s.r - 1.0)],
        table_3: [("2N+2r-2", |s| 2.0 * s.n + 2.0 * s.r - 2.0), ("2r-1", |s| 2.0 * s.r - 1.0),
            ("max(r,k)", |s| s.r.max(s.k)), ("1", |_| 1.0)] },
    TableRow { operation: Operation::Reduce, pattern: "Binomial tree", plan: "racked:binomial",
        table_1: TREE_1, table_3: TREE_3 },
    TableRow { operation: Operation::Reduce, pattern: "Rabenseifner", plan: "racked:recursive-halving",
        table_1: [("2logN", |s| 2.0 * log(s.n)), ("2logr", |s| 2.0 * log(s.r)),
            ("NlogN+N-1", |s| s.n * log(s.n) + s.n - 1.0), ("Nlogr+r-1", |s| s.n * log(s.r) + s.r - 1.0)],
        table_3: [("2(NlogN+Nlogr+N+r-2)", |s| 2.0 * (s.n * log(s.n) + s.n * log(s.r) + s.n + s.r - 2.0)),
            ("2Nlogr+2r-2", |s| 2.0 * s.n * log(s.r) + 2.0 * s.r - 2.0), ("2", |_| 2.0), ("2", |_| 2.0)] },
    TableRow { operation: Operation::Allreduce, pattern: "COOL-P-P", plan: "cool-p-p",
        table_1: COOL_ALL_1, table_3: COOL_ALL_3 },
    TableRow { operation: Operation::Allreduce, pattern: "COOL-B-R", plan: "cool-b-r",
        table_1: [("logN+1", |s| log(s.n) + 1.0), ("logr", |s| log(s.r)),
            ("N-r+rlogr+r_k", |s| s.n + s.r * log(s.r)), ("rlogr", |s| s.r * log(s.r))],
        table_3: [("3N+4rlogr-2r", |s| 3.0 * s.n + 4.0 * s.r * log(s.r) - 2.0 * s.r),
            ("2rlogr", |s| 2.0 * s.r * log(s.r)), ("2", |_| 2.0), ("1", |_| 1.0)] },
    TableRow { operation: Operation::Allreduce, pattern: "Ring", plan: "racked:ring",
        table_1: RING_1, table_3: RING_3 },
    TableRow { operation: Operation::Allreduce, pattern: "Recursive doubling", plan: "racked:recursive-doubling",
        table_1: DOUBLING_1, table_3: DOUBLING_3 },
    TableRow { operation: Operation::Allreduce, pattern: "Rabenseifner", plan: "racked:recursive-halving",
        table_1: [("2logN", |s| 2.0 * log(s.n)), ("2logr", |s| 2.0 * log(s.r)),
            ("2NlogN", |s| 2.0 * s.n * log(s.n)), ("2Nlogr", |s| 2.0 * s.n * log(s.r))],
        table_3: [("4NlogN+4Nlogr", |s| 4.0 * s.n * (log(s.n) + log(s.r))),
            ("4Nlogr", |s| 4.0 * s.n * log(s.r)), ("2", |_| 2.0), ("2", |_| 2.0)] },
    TableRow { operation: Operation::Gather, pattern: "COOL-P-P", plan: "cool-p-p",
        table_1: COOL_PARTS_1, table_3: COOL_GATHER_3 },
    TableRow { operation: Operation::Gather, pattern: "Binomial tree", plan: "racked:binomial",
        table_1: TREE_1, table_3: TREE_3 },
    TableRow { operation: Operation::Allgather, pattern: "COOL-P-P", plan: "cool-p-p",
        table_1: COOL_ALL_1, table_3: COOL_ALL_3 },
    TableRow { operation: Operation::Allgather, pattern: "Ring", plan: "racked:ring",
        table_1: RING_1, table_3: RING_3 },
    TableRow { operation: Operation::Allgather, pattern: "Recursive doubling", plan: "racked:recursive-doubling",
        table_1: DOUBLING_1, table_3: DOUBLING_3 },
    TableRow { operation: Operation::Allgather, pattern: "Bruck", plan: "racked:bruck",
        table_1: [("logN", |s| log(s.n)), ("logN", |s| log(s.n)), ("NlogN", |s| s.n * log(s.n)),
            ("Nlogr+N-r", |s| s.n * log(s.r) + s.n - s.r)],
        table_3: [("2N(logN+logr)+2N-2r", |s| 2.0 * s.n * (log(s.n) + log(s.r)) + 2.0 * s.n - 2.0 * s.r),
            ("2Nlogr+2N-2r", |s| 2.0 * s.n * log(s.r) + 2.0 * s.n - 2.0 * s.r), ("2", |_| 2.0), ("2", |_| 2.0)] },
    TableRow { operation: Operation::Bcast, pattern: "COOL-P-P", plan: "cool-p-p",
        table_1: [("3", |_| 3.0), ("1", |_| 1.0), ("r_k+1_r+1", |s| s.r + 2.0), ("1_r", |_| 1.0)],
        table_3: [("N+2r+2", |s| s.n + 2.0 * s.r + 2.0), ("r", |s| s.r), ("1", |_| 1.0), ("1", |_| 1.0)] },
    TableRow { operation: Operation::Bcast, pattern: "Binomial tree", plan: "racked:binomial",
        table_1: TREE_1, table_3: TREE_3 },
    TableRow { operation: Operation::Scatter, pattern: "COOL-P-P", plan: "cool-p-p",
        table_1: COOL_PARTS_1, table_3: [("2N+2r-2", |s| 2.0 * s.n + 2.0 * s.r - 2.0),
            ("2r-2", |s| 2.0 * s.r - 2.0), ("max(r,k)", |s| s.r.max(s.k)), ("1", |_| 1.0)] },
    TableRow { operation: Operation::Scatter, pattern: "Binomial tree", plan: "racked:binomial",
        table_1: TREE_1, table_3: TREE_3 },
];

const TREE_1: [FormulaCell; 4] =
    [("logN", |s| log(s.n)), ("logr", |s| log(s.r)), ("N-1", |s| s.n - 1.0), ("r-1", |s| s.r - 1.0)];
const TREE_3: [FormulaCell; 4] = [
    ("2N+2r-4", |s| 2.0 * s.n + 2.0 * s.r - 4.0),
    ("2r-2", |s| 2.0 * s.r - 2.0),
    ("1", |_| 1.0),
    ("1", |_| 1.0),
];
const COOL_PARTS_1: [FormulaCell; 4] =
    [("3", |_| 3.0), ("1", |_| 1.0), ("N", |s| s.n), ("r-1", |s| s.r - 1.0)];
const COOL_GATHER_3: [FormulaCell; 4] = [
    ("2N+2r-2", |s| 2.0 * s.n + 2.0 * s.r - 2.0),
    ("2r-1", |s| 2.0 * s.r - 1.0),
    ("max(r,k)", |s| s.r.max(s.k)),
    ("1", |_| 1.0),
];
const COOL_ALL_1: [FormulaCell; 4] =
    [("3", |_| 3.0), ("1", |_| 1.0), ("N-r+r_r+r_k", |s| s.n + s.r), ("r_r", |s| s.r)];
const COOL_ALL_3: [FormulaCell; 4] = [
    ("3N+2r^2-2r", |s| 3.0 * s.n + 2.0 * s.r * s.r - 2.0 * s.r),
    ("r^2", |s| s.r * s.r),
    ("max(r,k)", |s| s.r.max(s.k)),
    ("1", |_| 1.0),
];
const RING_1: [FormulaCell; 4] = [
    ("N-1", |s| s.n - 1.0),
    ("N-1", |s| s.n - 1.0),
    ("N(N-1)", |s| s.n * (s.n - 1.0)),
    ("Nr", |s| s.n * s.r),
];
const RING_3: [FormulaCell; 4] = [
    ("2(N-1)(N+r)", |s| 2.0 * (s.n - 1.0) * (s.n + s.r)),
    ("2r(N-1)", |s| 2.0 * s.r * (s.n - 1.0)),
    ("2", |_| 2.0),
    ("2", |_| 2.0),
];
const DOUBLING_1: [FormulaCell; 4] = [
    ("logN", |s| log(s.n)),
    ("logr", |s| log(s.r)),
    ("NlogN", |s| s.n * log(s.n)),
    ("Nlogr", |s| s.n * log(s.r)),
];
const DOUBLING_3: [FormulaCell; 4] = [
    ("2NlogN+2Nlogr", |s| 2.0 * s.n * (log(s.n) + log(s.r))),
    ("2Nlogr", |s| 2.0 * s.n * log(s.r)),
    ("2", |_| 2.0),
    ("2", |_| 2.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the cells in which formula and count differ, on 4 racks of 4 nodes, with the list
    /// in `docs/measurements/cool-tables.md`.
    #[test]
    fn the_document_explains_all_differences() {
        let mut differences = Vec::new();
        for row in &ROWS {
            let a = count(row, 4, 4).unwrap();
            let sizes = TableParameters { n: 16.0, r: 4.0, k: 4.0 };
            let counts = [steps_and_messages(&a), loads(&a, 4)];
            for (table, (cells, counted)) in [&row.table_1, &row.table_3].into_iter().zip(counts).enumerate()
            {
                for (column, ((_, value), counted)) in cells.iter().zip(counted).enumerate() {
                    if (value(&sizes) - counted as f64).abs() > 1e-9 {
                        differences.push(format!(
                            "{} {} {}.{}: {} {counted}",
                            row.operation,
                            row.pattern,
                            if table == 0 { 1 } else { 3 },
                            column + 1,
                            value(&sizes)
                        ));
                    }
                }
            }
        }
        let document = include_str!("../../../../docs/measurements/cool-tables.md");
        let differences = differences.join("\n");
        assert!(document.contains(&differences), "not as in the document:\n{differences}");
    }
}
