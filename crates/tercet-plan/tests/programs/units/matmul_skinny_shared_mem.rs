//! Tests of the pipeline of skinny GEMM through shared memory.

use tercet_plan::DeviceCaps;
use tercet_plan::internals::matmul::{
    REGISTERS, SLICE, STEP_ROW, SUBGROUP, SharedMemPipeline, max_subgroups,
};

/// The partial sums of a workgroup fit into the shared memory of the activation rows, and the
/// rows of two chunks fit into shared memory.
#[test]
fn what_is_shared_fits() {
    let caps = DeviceCaps::h200();
    for rows in [4, 8] {
        for n in [16, 5_000, 8_192, 14_336, 32_000, 151_936] {
            for k in [256, 1_000, 1_024, 4_096, 14_336] {
                let Some(stream) = SharedMemPipeline::new(&caps, [n, k], rows) else {
                    continue;
                };
                let shared = stream.shared_bytes(rows / 4);
                assert!(shared <= caps.workgroup_bytes, "{stream:?}");
                let stages = 2 * stream.parts * stream.chunk() * STEP_ROW;
                let shares = stream.tiles * stream.parts * SUBGROUP;
                assert!(shares <= stages, "{stream:?}");
                let most = max_subgroups(&caps, REGISTERS);
                assert!(stream.subgroups <= most, "{stream:?}");
                let covered = (stream.parts * stream.rounds) as usize * SLICE;
                assert!(covered >= k, "{stream:?}");
            }
        }
    }
}
