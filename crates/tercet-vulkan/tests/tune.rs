//! Measuring tilings: what is right is timed, what does not apply is never the best, tables are kept.
//!
//! A device without cooperative matrices is passed over with a printed reason.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod common;

use common::open_validated;
use tercet_ir::DType;
use tercet_vulkan::tune::{Outcome, candidates, measure, prepare};
use tercet_vulkan::{Entry, Problem, Tuning, VulkanOptions};

#[test]
fn candidates_are_measured_and_the_table_is_kept() {
    let folder = std::env::temp_dir().join(format!("tercet-tune-{}", std::process::id()));
    let options = VulkanOptions {
        timestamps: true,
        cache_dir: Some(folder.clone()),
        ..VulkanOptions::default()
    };
    let Some(backend) = open_validated(options.clone()) else {
        return;
    };
    let problem = Problem {
        dtype: DType::F16,
        b_transposed: true,
        m: 72,
        n: 88,
        k: 48,
    };
    let all = candidates(&backend, &problem);
    if all.is_empty() {
        eprintln!(
            "ignored: {} has no cooperative matrices",
            backend.device().name
        );
        return;
    }
    // Small ones, which a device on the processor compiles soonest.
    let mut names: Vec<String> = all.into_iter().rev().take(2).collect();
    names.push("no such tiling".to_string());
    let ways = names.iter().map(|name| (name.clone(), DType::F16, true));
    prepare(&backend, &Vec::from_iter(ways));
    let measured = measure(&backend, &problem, &names).unwrap();
    let (last, rest) = measured.candidates.split_last().unwrap();
    for (name, outcome) in rest {
        assert!(
            matches!(outcome, Outcome::Seconds(s) if *s > 0.0),
            "{name}: {outcome:?}"
        );
    }
    assert_eq!(last.0, "no such tiling");
    assert!(matches!(last.1, Outcome::Failed(_)), "{:?}", last.1);

    let way = measured.best().unwrap().to_string();
    let table = Tuning::new(vec![Entry { problem, way }]);
    let file = backend.store_tuning(&table).unwrap();
    assert!(file.starts_with(&folder));
    drop(backend);
    let again = open_validated(options).unwrap();
    assert_eq!(again.caps().tuning, table);
    std::fs::remove_dir_all(folder).unwrap();
}
