//! The `tercet` command.

#[allow(
    dead_code,
    unused_imports,
    reason = "the `run` command reads its inputs with it"
)]
mod npy;

fn main() {}
