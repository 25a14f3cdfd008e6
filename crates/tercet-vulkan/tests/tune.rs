//! Tests of tuning: correct candidates are timed, wrong or inapplicable ones never win, and tuning
//! tables persist.

#![allow(clippy::unwrap_used, reason = "helper failures fail the test")]

mod common;

use common::open_validated;
use tercet_ir::{DType, Scheme};
use tercet_vulkan::tune::{
    CandidateOutcome, ProblemMeasurement, StateScan, TuneTask, candidates, measure, prepare,
};
use tercet_vulkan::{
    GemmProblem, TuningEntry, TuningTable, VulkanBackend, VulkanOptions, WeightLayout,
};

/// Measures several candidates of a task, the fastest of which is correct, and one nonexistent
/// candidate.
fn measured(backend: &VulkanBackend, task: &TuneTask, names: Vec<String>) -> ProblemMeasurement {
    let names = [names, vec!["no such variant".to_string()]].concat();
    prepare(backend, task, &names);
    let measured = measure(backend, task, &names);
    let (last, rest) = measured.candidates.split_last().unwrap();
    for (name, outcome) in rest {
        assert!(
            matches!(outcome, CandidateOutcome::Seconds(s) if *s > 0.0),
            "{} {name}: {outcome:?}",
            task.key
        );
    }
    assert_eq!(last.0, "no such variant");
    assert!(
        matches!(last.1, CandidateOutcome::Failed(_)),
        "{:?}",
        last.1
    );
    measured
}

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
    let tasks = [
        TuneTask::product(DType::F32, WeightLayout::Packed(Scheme::Q4_0), [1, 24, 256]),
        TuneTask::product(DType::F32, WeightLayout::KMajor(DType::F32), [3, 20, 64]),
        TuneTask::product(DType::F32, WeightLayout::NMajor(DType::F32), [20, 24, 32]),
        TuneTask::attention(DType::F32, [2, 2, 1, 70, 64]),
        TuneTask::conv(DType::F32, [1, 5, 9, 6, 1]),
        TuneTask::scan(StateScan::Selective, DType::F32, [4, 20, 4096, 1, 16]),
    ];
    let mut entries = Vec::new();
    for task in tasks {
        let task = task.unwrap();
        let names = candidates(backend.caps(), &task);
        assert!(names.len() > 1, "{}: {names:?}", task.key);
        let best = measured(&backend, &task, names).best().unwrap().to_string();
        entries.push(TuningEntry {
            key: task.key,
            variant: best,
        });
    }
    // Matmul tilings, if the device has matrices; small ones compile fastest on a CPU device.
    let task = TuneTask::tilings(&GemmProblem {
        dtype: DType::F16,
        b_transposed: true,
        m: 72,
        n: 88,
        k: 48,
    });
    let task = task.unwrap();
    let tilings = candidates(backend.caps(), &task);
    match tilings.is_empty() {
        true => eprintln!("{} has no cooperative matrices", backend.device().name),
        false => drop(measured(
            &backend,
            &task,
            tilings.into_iter().rev().take(2).collect(),
        )),
    }

    let table = TuningTable::new(entries);
    let file = backend.store_tuning(&table).unwrap();
    assert!(file.starts_with(&folder));
    drop(backend);
    let again = open_validated(options).unwrap();
    assert_eq!(again.caps().device.tuning, table);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Checks all scan variants. Without cooperative matrices most tasks have only one variant.
#[test]
fn scans_compute_what_their_tasks_expect() {
    let options = VulkanOptions {
        timestamps: true,
        ..VulkanOptions::default()
    };
    let Some(backend) = open_validated(options) else {
        return;
    };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (op, sizes) in [
            (StateScan::Selective, [2, 300, 6, 1, 16]),
            (StateScan::Mamba2, [2, 300, 4, 32, 64]),
            (StateScan::GatedDelta, [2, 300, 3, 32, 64]),
        ] {
            let mut task = TuneTask::scan(op, dtype, sizes).unwrap();
            let mut names = candidates(backend.caps(), &task);
            if names.is_empty() {
                let only = match op {
                    StateScan::Selective => "few_channels",
                    StateScan::Mamba2 | StateScan::GatedDelta => "steps",
                };
                names.push(only.to_string());
            }
            let measured = measure(&backend, &task, &names);
            let is_right = |(_, outcome): &(String, CandidateOutcome)| {
                matches!(outcome, CandidateOutcome::Seconds(_))
            };
            assert!(
                measured.candidates.iter().all(is_right),
                "{}: {measured:?}",
                task.key
            );
            task.corrupt_expected();
            assert_eq!(measure(&backend, &task, &names).best(), None);
        }
    }
}

#[test]
fn wrong_results_are_never_the_best() {
    let options = VulkanOptions {
        timestamps: true,
        ..VulkanOptions::default()
    };
    let Some(backend) = open_validated(options) else {
        return;
    };
    let task = TuneTask::product(DType::F32, WeightLayout::NMajor(DType::F32), [20, 24, 32]);
    let mut task = task.unwrap();
    task.corrupt_expected();
    let names = candidates(backend.caps(), &task);
    let measured = measure(&backend, &task, &names);
    assert_eq!(measured.best(), None);
    for (name, outcome) in measured.candidates {
        let is_wrong = |why: &str| why.contains("instead of");
        assert!(
            matches!(&outcome, CandidateOutcome::Failed(why) if is_wrong(why)),
            "{name}: {outcome:?}"
        );
    }
}
