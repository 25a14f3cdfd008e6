//! Programs of every operator's cases for every device profile, without any device: they plan, their
//! shaders are valid, they have no races, and new sizes change numbers only.

mod blocks;
mod checks;
mod choices;
mod common;
mod control;
mod fusions;
mod orders;
mod parts;
mod planning;
mod races;
mod sizes;
mod snapshots;
mod tokens;
mod variants;
