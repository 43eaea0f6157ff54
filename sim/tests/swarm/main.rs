//! The swarm over simulated networks: its paper's results, and what comes of it where nodes come and go and much is lost.

mod paper;
mod seeded;
mod table;
