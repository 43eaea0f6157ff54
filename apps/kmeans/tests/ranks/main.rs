//! Complete clusterings, on embedded ranks and by the program.

mod cases;
mod classes;
mod exactness;
mod losses;
mod models;
mod options;
mod refusals;
mod runs;
