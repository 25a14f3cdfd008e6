//! Tests of measuring kernel variants.

use tercet_ir::{DType, Scheme};
use tercet_wgpu::tune::{self, CandidateOutcome, StateScan, TuneTask};
use tercet_wgpu::{TuningEntry, TuningTable, WeightLayout, WgpuBackend, WgpuOptions};

use super::{Done, Test};

pub(crate) const TESTS: &[(&str, Test)] = &[("variants_are_measured", variants_are_measured)];

fn variants_are_measured(_: &WgpuBackend) -> Done {
    let backend = WgpuBackend::new(&WgpuOptions {
        timings: true,
        ..WgpuOptions::new()
    })?;
    let tasks = [
        TuneTask::product(DType::F32, WeightLayout::Packed(Scheme::Q4_0), [1, 24, 256])?,
        TuneTask::product(DType::F32, WeightLayout::NMajor(DType::F32), [20, 24, 32])?,
        TuneTask::conv(DType::F32, [1, 5, 9, 6, 1])?,
        TuneTask::scan(StateScan::Selective, DType::F32, [4, 20, 4096, 1, 16])?,
    ];
    for mut task in tasks {
        let mut names = tune::candidates(backend.caps(), &task);
        assert!(names.len() > 1, "{}: {names:?}", task.key);
        names.push("no such variant".to_string());
        let measured = tune::measure(&backend, &task, &names);
        for (name, outcome) in &measured.candidates {
            match outcome {
                CandidateOutcome::Seconds(seconds) => assert!(*seconds > 0.0, "{name}"),
                // A device may have no timestamps.
                CandidateOutcome::Failed(why) => assert!(
                    name == "no such variant" || why.contains("measures no times"),
                    "{} {name}: {why}",
                    task.key
                ),
            }
        }
        // The measured best variant is the selected one.
        if let Some(best) = measured.best() {
            let entry = TuningEntry {
                key: task.key.clone(),
                variant: best.to_string(),
            };
            let tuned = backend.tuned(TuningTable::new(vec![entry]));
            assert_eq!(tuned.caps().device.tuning.entries().len(), 1);
        }
        task.corrupt_expected();
        assert_eq!(tune::measure(&backend, &task, &names).best(), None);
    }
    Ok(())
}
