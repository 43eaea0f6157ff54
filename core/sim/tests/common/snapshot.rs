//! Tables under version control.

/// Compares a table with `snapshots/NAME.txt`, or writes it there if `COOL_SIM_BLESS` is set.
///
/// # Panics
/// Panics if they differ.
pub(crate) fn check(name: &str, table: &str) {
    let path = format!("{}/tests/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("COOL_SIM_BLESS").is_some() {
        std::fs::write(&path, table).expect("the table can be written");
    }
    let recorded = std::fs::read_to_string(&path).expect("the table is recorded");
    assert_eq!(table, recorded, "differs from {path}; COOL_SIM_BLESS=1 records this:\n{table}");
}
