//! Checks the planner's picks against a table under version control, so that every change of a pick
//! shows as a difference. Each pick is made by a new planner with a cost model that was serialized
//! and parsed, as in an agent. No state is kept between picks.

use cool_collective::{Call, CostModel, Layout, Operation, Planner, Rank, RankPlace};
use std::fmt::Write;

/// Racks, nodes per rack, ranks per node: groups that are timed as they are, and groups that are
/// extrapolated, also with odd sizes and in several dimensions.
const SHAPES: [(u32, u32, u32); 6] = [(1, 4, 1), (4, 4, 1), (3, 5, 2), (2, 4, 6), (9, 11, 1), (16, 24, 3)];

const BYTES: [u64; 4] = [8, 4096, 100_000, 8 << 20];

/// Number of nodes above which fewer lengths are tested, because larger groups are extrapolated,
/// which takes longer.
const SMALL: u32 = 32;

fn layout((racks, nodes, ranks): (u32, u32, u32)) -> Layout {
    let node_of = (0..racks * nodes * ranks).map(|rank| rank / ranks);
    let places: Vec<RankPlace> = node_of.map(|node| RankPlace { rack: node / nodes, node }).collect();
    Layout::new(&places).unwrap()
}

fn pick(layout: &Layout, call: &Call) -> String {
    let model = serde_json::to_string(&CostModel::default()).unwrap();
    let planner = Planner::new(serde_json::from_str(&model).unwrap(), layout.clone());
    planner.best(call).to_string()
}

fn table() -> String {
    let mut table = String::new();
    for shape in SHAPES {
        let layout = layout(shape);
        for operation in Operation::ALL {
            let (racks, nodes, ranks) = shape;
            write!(table, "{:<10} {:<14}", format!("{racks}x{nodes}x{ranks}"), operation.name()).unwrap();
            let bytes = match operation {
                Operation::Barrier => &BYTES[..1],
                _ if racks * nodes > SMALL => &BYTES[1..3],
                _ => &BYTES,
            };
            for bytes in bytes {
                let plan = pick(&layout, &Call::new(operation, Rank(1), *bytes, 4));
                write!(table, " {plan:<22}").unwrap();
            }
            table.truncate(table.trim_end().len());
            table.push('\n');
        }
    }
    table
}

#[test]
fn picks_are_those_of_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/picks.txt");
    let found = table();
    if std::env::var_os("COOL_WRITE_PICKS").is_some() {
        std::fs::write(path, &found).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap();
    let remedy = "if the change is intended, update the table by COOL_WRITE_PICKS=1 cargo test -p cool-collective --test picks";
    for (found, kept) in found.lines().zip(kept.lines()) {
        assert_eq!(found, kept, "{remedy}");
    }
    assert_eq!(found.lines().count(), kept.lines().count(), "{remedy}");
}
