//! Jobs on several ranks in this process: the results must be the same on any number of ranks and
//! threads, and after losses.

mod exactness;
mod losses;
mod refusals;
mod running;
