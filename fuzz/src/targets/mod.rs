//! The fuzz targets. Each has a file with a function `check`, which panics if a property does not
//! hold for the given bytes, some valid inputs as `seeds` for the tests, and a line in
//! [`targets!`].

use crate::FuzzTarget;

/// Defines the tests of a target in its file. The first tries [`TRIES`](crate::tries::TRIES)
/// inputs, or the given number.
macro_rules! target {
    () => {
        target!(crate::tries::TRIES);
    };
    ($tries:expr) => {
        #[test]
        fn holds_for_seeded_random_and_mutated_bytes() {
            crate::tries::try_many(&seeds(), $tries, check);
        }

        #[test]
        fn holds_for_the_corpus() {
            crate::tries::try_corpus(module_path!(), check).unwrap();
        }
    };
}

/// Declares the files of the targets and makes the list of them.
macro_rules! targets {
    ($($name:ident,)*) => {
        $(mod $name;)*

        /// All targets.
        pub(crate) const TARGETS: &[FuzzTarget] =
            &[$(FuzzTarget { name: stringify!($name), check: $name::check }),*];
    };
}

targets! {
    agent_stream,
    discovery,
    flooding_probe,
    kmeans_model,
    lldp,
    lldp_neighbor,
    local_frame,
    local_session,
    manifest,
    map_checkpoint,
    map_table,
    membership_query,
    membership_report,
    network_file,
    openflow,
    packet,
    peer_frame,
    plan_text,
    points_csv,
    points_npy,
    points_parquet,
    points_text,
    points_vecs,
    quick_datagram,
    rank_sequence,
    switch_sequence,
    tagged,
    tool_sequence,
    trace_file,
}
