//! Whole clusterings, by embedded ranks and by the program.

mod exactness;
mod refusals;
mod runs;
