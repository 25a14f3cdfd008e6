//! Tests of the selection of tiles without cooperative matrices.

use tercet_plan::DeviceCaps;
use tercet_plan::internals::cost_model::TileRate;
use tercet_plan::internals::matmul::{TileChoice, TileProblem, WorkgroupTile};

fn sizes() -> [WorkgroupTile; 2] {
    [([16, 16], 1.0), ([8, 8], 0.85)]
        .map(|(sides, rate)| WorkgroupTile::from_rate(&TileRate { sides, rate }))
}

fn solve(rows: usize, columns: usize, k: usize) -> TileChoice {
    let device = DeviceCaps::h200().device;
    let problem = TileProblem {
        rows,
        columns,
        k,
        products: 1,
        device: &device,
        saturating_threads: 256.0,
        max_bytes: 1 << 30,
    };
    problem.best(&sizes()).unwrap()
}

#[test]
fn few_tiles_are_summed_in_parts() {
    let few = solve(128, 768, 3072);
    assert!(few.parts > 1, "{few:?}");
    let many = solve(4096, 4096, 4096);
    assert_eq!((many.parts, many.size), (1, sizes()[0]));
    let short = solve(128, 768, 64);
    assert_eq!(short.parts, 1);
}

#[test]
fn long_chains_are_summed_in_parts() {
    assert_eq!(solve(4096, 4096, 8192).parts, 1);
    assert_eq!(solve(4096, 4096, 14336).parts, 2);
    let many = solve(4096, 4096, 1 << 20);
    assert_eq!(many.parts, 16, "the most there are");
}

#[test]
fn sums_of_parts_fit_where_they_may_lie() {
    let device = DeviceCaps::h200().device;
    let problem = TileProblem {
        rows: 128,
        columns: 768,
        k: 3072,
        products: 1,
        device: &device,
        saturating_threads: 256.0,
        max_bytes: 2 * 4 * 128 * 768,
    };
    assert_eq!(problem.best(&sizes()).unwrap().parts, 2);
    let nowhere = TileProblem {
        k: 1 << 16,
        max_bytes: 0,
        ..problem
    };
    assert_eq!(nowhere.best(&sizes()).unwrap().parts, 1);
}
