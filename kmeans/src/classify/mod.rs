//! From folders of pictures, one a class, to a tested classifier (Zhang, Qiu et al., "Large-Scale Image Classification using High
//! Performance Clustering", section 6): patches, a vocabulary by clustering on all ranks, histograms of words, linear machines.
//!
//! The arithmetic of histograms and machines is that of `cool-classify`; here are the pictures ([`Classes`]), the file
//! ([`Model`]) and the sharing of the work: each rank describes some pictures and trains some classes' machines. The result is the
//! same to the bit on any number of ranks and threads.

mod bag;
mod classes;
mod model;
mod test;
mod train;

pub use classes::Classes;
pub use model::{Classifier, Features, Model};
pub use test::{Tested, test};
pub use train::{Teaching, train};

use crate::error::Error;
use crate::peers::Peers;

/// What all ranks have computed for every item of a list, of which each rank did those whose number leaves it as the rest of a
/// division by the number of ranks.
fn dealt<T>(
    peers: &Peers<'_>,
    items: usize,
    compute: impl FnOnce(&[usize]) -> Result<Vec<T>, Error>,
    encode: impl Fn(&T, &mut Vec<u8>),
    decode: impl Fn(&mut &[u8]) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let mine: Vec<usize> = (peers.rank()..items).step_by(peers.size()).collect();
    let computed = peers.agree(compute(&mine))?;
    let mut bytes = Vec::new();
    computed.iter().for_each(|item| encode(item, &mut bytes));
    let all = peers.all_gather(bytes)?;
    let mut rest = all.as_slice();
    let mut done: Vec<Option<T>> = (0..items).map(|_| None).collect();
    for rank in 0..peers.size() {
        for place in done.iter_mut().skip(rank).step_by(peers.size()) {
            *place = decode(&mut rest);
        }
    }
    let all: Option<Vec<T>> = done.into_iter().collect();
    all.ok_or_else(|| {
        Error::Input("ranks disagree on what they have computed; do all run the same version?".into())
    })
}
