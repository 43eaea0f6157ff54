//! The binomial tree: in each round, the number of members that have the message doubles.

use super::Pattern;
use super::k_nomial::edges;
use super::tree::tree;

pub(crate) static BINOMIAL: Pattern = tree!("binomial", edges::<2>, 1);
