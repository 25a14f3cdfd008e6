// Dependent launch: synchronizes dispatches with counters instead of barriers between them (compare
// CUDA programmatic dependent launch). Each dispatch counts its finished workgroups. A dispatch
// that reads results of an earlier one spins until all workgroups of that one are counted. Loads
// that do not depend on those results, such as weights, are issued before the wait.
//
// The device must start all workgroups of a dispatch before any workgroup of a later dispatch.
// Storage barriers of the device must order memory across workgroups.
//
// The parameter block contains three fields:
// - chain_waits: index of the counter to wait for.
// - chain_wanted: target value of that counter; 0: no wait.
// - chain_own: index of this dispatch's counter plus 1; 0: no counter.
// uses attention_token.wgsl or matmul/operands.wgsl: p
// uses attention_token_chained.wgsl or matmul/chain_row.wgsl: chain

// `chain` begins with the fault record of the dispatch-order check (see check.wgsl). The counters
// follow, one per cache line.
const CHAIN_RECORD: u32 = 64u;
const CHAIN_STEP: u32 = 32u;
// Iterations of the wait loop until timeout. These iterations take several seconds, far longer than
// any dispatch.
const CHAIN_TRIES: u32 = 4194304u;
// Iterations of the wait loop between two checks of the fault record.
const CHAIN_LOOKS: u32 = 4096u;

// Waits for the counter. All threads of the workgroup must call this function.
fn await_chain(local: u32) {
    if p.chain_wanted == 0u {
        return;
    }
    if local == 0u {
        let at = CHAIN_RECORD + p.chain_waits * CHAIN_STEP;
        var counted = atomicLoad(&chain[at]);
        // Some drivers end long loops earlier. After a fault by another workgroup, the wait ends
        // early.
        for (var tries = 1u; counted < p.chain_wanted && tries < CHAIN_TRIES; tries += 1u) {
            if tries % CHAIN_LOOKS == 0u && atomicLoad(&chain[0]) != 0u {
                break;
            }
            counted = atomicLoad(&chain[at]);
        }
        if counted < p.chain_wanted {
            // Records the fault, which fails the run, and sets the counter so that later waits end
            // at once.
            atomicStore(&chain[0], p.chain_waits + 1u);
            atomicMax(&chain[at], 0x80000000u);
        }
    }
    storageBarrier();
    workgroupBarrier();
}

// Counts this workgroup as finished. All threads of the workgroup must call this function last.
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
