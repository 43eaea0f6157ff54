//! What COOL has to know of an MPI library to carry out its calls: its constants ([`Abi`]), what its types and reductions are for COOL
//! ([`NumberClass`], [`reduce_ops`]), which calls are taken ([`MpiSettings`], [`FallbackReason`]), the communicators that have groups
//! ([`Communicators`]), and what became of all calls ([`CallTally`]). Nothing here calls an MPI library; `apps/mpi/preload` does.

mod abi;
mod decision;
mod groups;
mod reductions;
mod settings;
mod tally;
mod types;

pub use abi::{Abi, ErrorClass};
pub use decision::FallbackReason;
pub use groups::{
    Communicators, KEY_BYTES, REASON_BYTES, first_to_fail, group_key, reason, reason_bytes, vote,
};
pub use reductions::reduce_ops;
pub use settings::{InterceptMode, LARGEST_CALL_BYTES, MpiSettings, RankOrder, SettingsError};
pub use tally::CallTally;
pub use types::{NumberClass, PairValue, ReducedType, number_classes};
