//! What COOL has to know of an MPI library to carry out its calls: its constants ([`Abi`]), what its types and reductions are for COOL
//! ([`NumberClass`], [`reduce_ops`]), which calls are taken ([`MpiSettings`], [`WhyLeft`]), the communicators that have groups
//! ([`Communicators`]), and what became of all calls ([`Tally`]). Nothing here calls an MPI library; `apps/mpi/preload` does.

mod abi;
mod decision;
mod groups;
mod reductions;
mod settings;
mod tally;
mod types;

pub use abi::{Abi, ErrorClass};
pub use decision::WhyLeft;
pub use groups::{
    Communicators, KEY_BYTES, REASON_BYTES, first_to_fail, group_key, reason, reason_bytes, vote,
};
pub use reductions::reduce_ops;
pub use settings::{LARGEST, Mode, MpiSettings, RankOrder, SettingsError};
pub use tally::Tally;
pub use types::{Combined, NumberClass, PairValue, number_classes};
