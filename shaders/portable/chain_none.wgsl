// In the place of chain.wgsl where barriers of the device stand between dispatches.

fn await_chain(local: u32) {}

fn count_chain(local: u32) {}
