//! Tests of the SPIR-V modules and the division of work of skinny GEMM with prepacked rows.

use tercet_plan::DeviceCaps;
use tercet_plan::internals::matmul::{
    PrepackedAShape, PrepackedASplit, ROW_BLOCKS, SLICE, SUBGROUP,
};

use super::spirv_interface::all_agree;

#[test]
fn the_modules_declare_the_block_the_arguments_and_the_constants() {
    all_agree(&[
        "few_rows_laid_q4_0",
        "few_rows_laid_q8_0",
        "few_rows_laid_q4_k",
        "few_rows_laid_q6_k",
    ]);
}

#[test]
fn all_blocks_have_the_same_parts_of_k() {
    let caps = DeviceCaps::h200();
    for (n, k) in [
        (4_096, 14_336),
        (6_144, 4_096),
        (28_672, 4_096),
        (768, 3_072),
    ] {
        let parts = |rows| {
            let shape = PrepackedAShape {
                n,
                k,
                rows,
                numbers: 1,
                can_split: true,
            };
            let split = PrepackedASplit::new(&caps, shape).unwrap();
            (split.parts * split.splits, split.rounds)
        };
        for rows in ROW_BLOCKS {
            assert_eq!(parts(rows), parts(8), "{rows} {n} {k}");
        }
    }
}

#[test]
fn all_of_k_is_taken_and_sums_fit() {
    let caps = DeviceCaps::h200();
    for rows in ROW_BLOCKS {
        for (n, numbers) in [(16, 1), (1_000, 2), (4_096, 1), (28_672, 2), (151_936, 1)] {
            for k in [32, 1_000, 4_096, 14_336] {
                for can_split in [false, true] {
                    let shape = PrepackedAShape {
                        n,
                        k,
                        rows,
                        numbers,
                        can_split,
                    };
                    let split = PrepackedASplit::new(&caps, shape).unwrap();
                    let parts = (split.parts * split.splits) as usize;
                    let covered = parts * split.rounds as usize * SLICE;
                    assert!((k..k + parts * SLICE).contains(&covered), "{split:?}");
                    let subgroups = split.tiles * split.parts;
                    assert!(subgroups * SUBGROUP <= caps.max_workgroup, "{split:?}");
                    let bytes = 8 * (split.pool(rows, numbers) + split.parts * rows);
                    assert!(bytes <= caps.workgroup_bytes, "{split:?}");
                    let groups = rows / 8;
                    assert!(groups.is_multiple_of(split.pass));
                    assert!(can_split || split.splits == 1);
                    assert_eq!(split.is_whole, covered == k);
                }
            }
        }
    }
}
