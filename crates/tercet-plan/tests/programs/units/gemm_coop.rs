//! Tests that SPIR-V modules match their Rust declarations, and that tilings satisfy the
//! constraints of the shader.

use tercet_ir::DType;
use tercet_plan::gemm_coop::{CoopGemmTiling, CoopScope, kernel};
use tercet_plan::internals::matmul::ImplicitGemm;
use tercet_plan::{
    CoopShape, CoopType, DeviceCaps, ExprArena, GemmProblem, SymInt, TuningEntry, TuningTable,
};

use super::spirv_interface::{agrees, all_agree};

#[test]
fn modules_declare_the_block_the_arguments_and_the_constants() {
    let types = [CoopType::F16, CoopType::BF16];
    let scopes = [CoopScope::Subgroup, CoopScope::Workgroup];
    for (ty, scope) in types.into_iter().flat_map(|ty| scopes.map(|s| (ty, s))) {
        agrees(&kernel(ty, scope).def);
    }
    all_agree(&["gemm_laid_f16"]);
}

#[test]
fn tilings_keep_the_constraints_of_the_shader() {
    let mut software = DeviceCaps::h200();
    software.subgroup = Some(8);
    software.workgroup_bytes = 32 << 10;
    software.coop = vec![CoopShape {
        ty: CoopType::F16,
        m: 8,
        n: 8,
        k: 8,
        narrow_accumulators: true,
    }];
    let others = [
        DeviceCaps::rdna3(32),
        DeviceCaps::rdna3(64),
        DeviceCaps::arc(),
    ];
    for caps in [DeviceCaps::h200(), software].into_iter().chain(others) {
        let all = CoopGemmTiling::candidates(&caps, CoopType::F16);
        assert!(all.len() > 4, "{all:?}");
        let registers = caps.device.registers_of(caps.subgroup.unwrap());
        for t in all.iter().filter(|t| t.scope == CoopScope::Subgroup) {
            let ([fm, fn_, fk], [bm, bn, bk], [wm, wn]) = (t.fragment, t.tile, t.subgroup_tile);
            assert!(fk % 8 == 0 && fn_ % 4 == 0 && bn % 8 == 0, "{t:?}");
            assert!(bm % wm == 0 && bn % wn == 0 && bk % fk == 0, "{t:?}");
            assert!(wm % fm == 0 && wn % fn_ == 0 && wn % 8 == 0, "{t:?}");
            assert!(t.shared_bytes(false) <= caps.workgroup_bytes, "{t:?}");
            assert!(2 * wm * wn / t.subgroup <= registers + 1, "{t:?}");
            assert_eq!(t.splits, 1, "{t:?}");
        }
        let names: std::collections::HashSet<String> =
            all.iter().map(CoopGemmTiling::to_string).collect();
        assert_eq!(names.len(), all.len(), "names tell candidates apart");
    }
}

fn problem(m: usize, n: usize, k: usize) -> GemmProblem {
    GemmProblem {
        dtype: DType::F16,
        b_transposed: false,
        m,
        n,
        k,
    }
}

/// With few tiles and a long reduction, the selected tiling uses split-K to occupy idle compute
/// units.
#[test]
fn few_tiles_sum_k_in_parts() {
    let caps = DeviceCaps::h200();
    let choose = |p: &GemmProblem| CoopGemmTiling::choose(&caps, CoopType::F16, p, true).unwrap();
    let long = choose(&problem(128, 768, 8192));
    assert!(long.splits > 1, "{long}");
    // At least half of the compute units have a workgroup.
    let groups = long.groups(128, 768) * long.splits as usize;
    assert!((66..400).contains(&groups), "{long}");
    for whole in [
        problem(4096, 4096, 8192),
        problem(64, 64, 64),
        // No split-K for a column count that is not a multiple of four, because the kernel that
        // adds partial sums processes four columns at once.
        problem(128, 766, 8192),
    ] {
        assert_eq!(choose(&whole).splits, 1, "{whole:?}");
    }
    for k in [1, 63, 64, 65, 8192, 8200] {
        let mut tape = ExprArena::default();
        let part = long.split_k(&mut tape, SymInt::Const(k)).known().unwrap();
        assert!(part * i64::from(long.splits) >= k, "{k}: {part}");
        assert_eq!(part % i64::from(long.tile[2]), 0, "{k}: {part}");
    }
}

/// The selected tiling of an implicit GEMM uses split-K if there are few tiles and a slot can hold
/// the partial sums. The selected tiling has long `k` steps only if each step stays within the
/// channels of one tap.
#[test]
fn windows_are_gathered_in_parts_and_within_taps() {
    let caps = DeviceCaps::h200();
    let choose = |[m, n, k]: [usize; 3], channels, max_parts| {
        let gathering = ImplicitGemm {
            products: 1,
            channels,
            max_parts,
        };
        let p = problem(m, n, k);
        CoopGemmTiling::choose_for_windows(&caps, CoopType::F16, &p, &gathering).unwrap()
    };
    let deep = [512, 1568, 4608];
    assert!(choose(deep, Some(512), 16).splits > 1);
    assert_eq!(choose(deep, Some(512), 1).splits, 1);
    assert_eq!(choose([64, 100_352, 576], Some(64), 16).splits, 1);
    for channels in [None, Some(3), Some(48)] {
        for sizes in [deep, [64, 3136, 576], [64, 401_408, 147], [16, 18, 1728]] {
            let tiling = choose(sizes, channels, 16);
            assert!(tiling.tile[2] <= 32, "{tiling} for {channels:?}");
            let shared = tiling.shared_bytes(true) + 256;
            assert!(shared <= caps.workgroup_bytes, "{tiling}");
        }
    }
}

#[test]
fn tilings_follow_the_size_and_the_measurements() {
    let caps = DeviceCaps::h200();
    let choose = |caps: &DeviceCaps, p: &GemmProblem, aligned| {
        let tiling = CoopGemmTiling::choose(caps, CoopType::F16, p, aligned)?;
        Some(tiling.to_string())
    };
    let large =
        CoopGemmTiling::choose(&caps, CoopType::F16, &problem(8192, 8192, 8192), true).unwrap();
    let small =
        CoopGemmTiling::choose(&caps, CoopType::F16, &problem(256, 256, 256), true).unwrap();
    let area = |t: &CoopGemmTiling| t.tile[0] * t.tile[1];
    assert!(
        area(&large) >= 128 * 128 && area(&small) <= 64 * 64,
        "{large} {small}"
    );
    assert_eq!(large.scope, CoopScope::Subgroup);
    // The fastest of all tilings in measurements.
    for (m, n, k, best) in [
        (4096, 4096, 4096, "128x256x16/64x64:2"),
        (2048, 2048, 2048, "128x256x16/64x64:2"),
        (1024, 1024, 1024, "64x128x64/32x32"),
        (512, 4096, 4096, "128x128x64/64x64"),
        (4096, 2304, 768, "96x128x32/48x64"),
        (4096, 768, 768, "96x128x32/48x64"),
        (128, 2304, 768, "64x64x64/32x32"),
        (128, 768, 3072, "64x64x64/32x32:split4"),
    ] {
        assert_eq!(choose(&caps, &problem(m, n, k), true).unwrap(), best);
    }
    assert_eq!(
        choose(&DeviceCaps::browser(), &problem(256, 256, 256), true),
        None
    );

    let entries = [("128x256x64/block256", 4096), ("no such way", 512)];
    let entries = entries.map(|(way, size)| TuningEntry {
        key: problem(size, size, size).key(),
        variant: way.to_string(),
    });
    let tuned = caps.clone().tuned(TuningTable::new(entries.to_vec()));
    let p = problem(4000, 4096, 4096);
    assert_eq!(
        choose(&tuned, &p, true).as_deref(),
        Some("128x256x64/block256")
    );
    // In an autotuning entry, the split-K factor follows the name of a tiling.
    let of = |way| caps.clone().tuned(TuningTable::always(way));
    let way = "64x64x64/32x32:split4";
    assert_eq!(choose(&of(way), &p, true).as_deref(), Some(way));
    for wrong in [
        "64x64x64/32x32:split5",
        "64x64x64/32x32:split",
        "128x256x64/block256:split2",
    ] {
        assert_eq!(choose(&of(wrong), &p, true), choose(&caps, &p, true));
    }
    // Autotuning entries that the problem or the device does not support are ignored.
    assert_eq!(choose(&tuned, &p, false), choose(&caps, &p, false));
    let p = problem(512, 512, 512);
    assert_eq!(choose(&tuned, &p, true), choose(&caps, &p, true));
}

/// A prepacked tiling is selected if the device supports it and its measured rate is higher.
#[test]
fn weights_are_laid_out_where_it_pays() {
    let caps = DeviceCaps::h200();
    let choose = |caps: &DeviceCaps, p: &GemmProblem| {
        let tiling = CoopGemmTiling::choose_prepacked(caps, CoopType::F16, p, true);
        tiling.map(|t| t.to_string())
    };
    for (m, n, k, best) in [
        (4096, 3072, 768, "96x128x32/laid48"),
        (4096, 2304, 768, "96x128x32/laid48"),
        (4096, 768, 768, "96x128x32/laid48"),
        (4096, 768, 3072, "96x128x32/laid48"),
        (128, 768, 768, "16x64x32/laid16:slices4"),
        (128, 2304, 768, "16x64x32/laid16:slices4"),
        (197, 2304, 768, "16x64x32/laid16:slices2"),
        (128, 768, 3072, "16x64x32/laid16:slices8"),
        (2048, 2048, 2048, "160x128x32/laid40"),
        (4096, 4096, 4096, "128x256x16/64x64:2"),
        (8192, 8192, 8192, "128x256x16/64x64:2"),
    ] {
        let p = problem(m, n, k);
        assert_eq!(choose(&caps, &p).unwrap(), best, "{p:?}");
    }
    let unknown = DeviceCaps {
        coop_fragment_layout: false,
        ..caps.clone()
    };
    let other = problem(4096, 2304 + 8, 768);
    let short = problem(4096, 2304, 768 + 32);
    let is_laid = |way: Option<String>| way.unwrap().contains("laid");
    assert!(!is_laid(choose(&unknown, &problem(4096, 2304, 768))));
    assert!(!is_laid(choose(&caps, &other)) && !is_laid(choose(&caps, &short)));
    // Autotuning entries that name tilings without prepacking do not apply to prepacked weights;
    // entries that name prepacked tilings do.
    let tuned = |way| caps.clone().tuned(TuningTable::always(way));
    let p = problem(4096, 2304, 768);
    assert!(is_laid(choose(&tuned("128x128x32/64x64"), &p)));
    let small = "16x64x32/laid16";
    assert_eq!(choose(&tuned(small), &p).as_deref(), Some(small));
}

/// If the last wave of tiles would be nearly empty, the last tile columns use split-K, which saves
/// time.
#[test]
fn a_last_turn_that_is_nearly_empty_is_in_parts() {
    let caps = DeviceCaps::h200();
    let tail = |p: &GemmProblem| {
        let tiling = CoopGemmTiling::choose(&caps, CoopType::F16, p, true).unwrap();
        let turn = caps.device.units_or_typical() * tiling.groups_at_once(&caps).unwrap() as usize
            / caps.device.units_or_typical();
        tiling.tail(&caps, CoopType::F16, p).map(|tail| {
            let across = p.n.div_ceil(tiling.tile[1] as usize);
            let whole = tiling.groups(p.m, p.n) / across * (across - tail.columns as usize);
            (whole, turn, tail)
        })
    };
    // The GEMM has 896 tiles, of which 264 run concurrently.
    let (whole, turn, found) = tail(&problem(512, 28_672, 4096)).unwrap();
    assert!(whole <= 3 * turn && whole + 4 > 3 * turn, "{whole} {turn}");
    assert!(found.splits > 1, "{found:?}");
    // No split-K tail if tiles fill whole waves, if there are fewer tiles than compute units, or if
    // the column count is not a multiple of four.
    for whole in [
        problem(8192, 8192, 8192),
        problem(64, 64, 64),
        problem(512, 28_670, 4096),
    ] {
        assert_eq!(tail(&whole), None, "{whole:?}");
    }
}
