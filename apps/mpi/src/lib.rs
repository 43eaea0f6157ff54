//! Facts and decisions about MPI libraries: their constants ([`Abi`]), the correspondence of types
//! and reductions ([`NumberClass`], [`reduce_ops`]), which calls are intercepted ([`MpiSettings`],
//! [`PassThroughReason`]), the communicators with groups ([`Communicators`]), and statistics of all
//! calls ([`CallTally`]). This crate must not call an MPI library; `apps/mpi/preload` does.

mod abi;
mod groups;
mod interception;
mod reductions;
mod settings;
mod tally;
mod types;

pub use abi::{Abi, ErrorClass};
pub use groups::{
    Communicators, KEY_BYTES, REASON_BYTES, first_to_fail, group_key, reason, reason_bytes, vote,
};
pub use interception::PassThroughReason;
pub use reductions::reduce_ops;
pub use settings::{InterceptMode, LARGEST_CALL_BYTES, MpiSettings, RankOrder, SettingsError};
pub use tally::CallTally;
pub use types::{NumberClass, PairValue, ReducedType, number_classes};
