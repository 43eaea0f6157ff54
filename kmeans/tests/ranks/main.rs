//! Whole clusterings, by embedded ranks and by the program.

mod exactness;
mod losses;
mod refusals;
mod runs;
