// Empty variant of chain.wgsl for programs with ordinary barriers between dispatches.

fn await_chain(local: u32) {}

fn count_chain(local: u32) {}
