//! Jobs on several ranks in this process: the same results on any number of ranks and threads, whatever ranks are lost.

mod exactness;
mod losses;
mod refusals;
mod running;
