// Dispatches that follow each other without a barrier of the device: each counts its workgroups that are done, and one that
// reads what others write waits until all of theirs are counted. What does not depend on them, such as weights, is on its
// way meanwhile. For devices only that start all workgroups of a dispatch before those of a later one, and whose barriers
// of storage order memory for all workgroups. (CUDA knows this as programmatic dependent launch.)
//
// The block has chain_waits, the counter to wait for, chain_wanted, what it counts up to (0: nothing is waited for), and
// chain_own, one past the counter of this dispatch (0: nobody waits for it).
// uses attention_token.wgsl or matmul/operands.wgsl: p
// uses attention_token_chained.wgsl or matmul/chain_row.wgsl: chain

// `chain` begins with the record of a check (see check.wgsl) that dispatches run in their order; then come the counters,
// each in a line of its own.
const CHAIN_RECORD: u32 = 64u;
const CHAIN_STEP: u32 = 32u;
// Seconds: nothing else takes as long.
const CHAIN_TRIES: u32 = 4194304u;
// Tries between two looks at whether somebody gave up.
const CHAIN_LOOKS: u32 = 4096u;

// Every invocation of the workgroup must call this.
fn await_chain(local: u32) {
    if p.chain_wanted == 0u {
        return;
    }
    if local == 0u {
        let at = CHAIN_RECORD + p.chain_waits * CHAIN_STEP;
        var counted = atomicLoad(&chain[at]);
        // Some drivers end loops earlier. Where somebody gave up already, nobody waits as long again.
        for (var tries = 1u; counted < p.chain_wanted && tries < CHAIN_TRIES; tries += 1u) {
            if tries % CHAIN_LOOKS == 0u && atomicLoad(&chain[0]) != 0u {
                break;
            }
            counted = atomicLoad(&chain[at]);
        }
        if counted < p.chain_wanted {
            // The run fails; until then nobody waits for these again.
            atomicStore(&chain[0], p.chain_waits + 1u);
            atomicMax(&chain[at], 0x80000000u);
        }
    }
    storageBarrier();
    workgroupBarrier();
}

// Every invocation of the workgroup must call this in the end.
fn count_chain(local: u32) {
    if p.chain_own == 0u {
        return;
    }
    storageBarrier();
    workgroupBarrier();
    if local == 0u {
        atomicAdd(&chain[CHAIN_RECORD + (p.chain_own - 1u) * CHAIN_STEP], 1u);
    }
}
