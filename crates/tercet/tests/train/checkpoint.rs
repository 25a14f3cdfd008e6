//! Checkpoints: bitwise identical resumed runs, and damaged or unrelated files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tercet::train::{
    AdamW, LearningRateSchedule, LossScale, Optimizer, Sgd, StepOptions, TrainError, TrainStep,
    Trainer, checkpoint_info,
};
use tercet::{DType, Graph, Type, Value};

use crate::common::{f32s, tensor, trainer_of};

/// A temporary folder, deleted when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = format!("tercet-train-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An F16 model with dropout and a state that is not trained.
fn model(width: usize) -> (Graph, Value) {
    let mut g = Graph::new();
    let x = g.input("x", f32s([4, width])).unwrap();
    let w = g.state("w", f32s([width, 3])).unwrap();
    let scale = g.state("norm.weight", f32s([3])).unwrap();
    let seen = g.state("seen", Type::new(DType::Bool, [3])).unwrap();
    let half = g.scalar(DType::F32, 0.3).unwrap();
    let unit = g.rng_uniform([4, width], DType::F32, 0.0, 1.0, 1).unwrap();
    let keep = g.ge(unit, half).unwrap();
    let zero = g.scalar(DType::F32, 0.0).unwrap();
    let x = g.where_(keep, x, zero).unwrap();
    let [x, w, scale] = [x, w, scale].map(|v| g.cast(v, DType::F16).unwrap());
    let y = g.matmul(x, w).unwrap();
    let y = g.mul(y, scale).unwrap();
    let y = g.cast(y, DType::F32).unwrap();
    let noise = g.rng_normal([4usize, 3], DType::F32, 0.0, 0.1, 2).unwrap();
    let y = g.plus(y, noise).unwrap();
    let zero = g.scalar(DType::F32, 0.0).unwrap();
    let first = g.reduce_sum(y, &[0], false).unwrap();
    let positive = g.gt(first, zero).unwrap();
    g.assign(seen, positive).unwrap();
    let one = g.scalar(DType::F32, 1.0).unwrap();
    let error = g.sub(y, one).unwrap();
    let square = g.mul(error, error).unwrap();
    let loss = g.reduce_mean(square, &[0, 1], false).unwrap();
    (g, loss)
}

fn waves(shape: &[usize], by: f64) -> tercet::Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| (by * (i as f64 + 1.0)).sin()).collect();
    tensor(shape, &values)
}

fn trainer(width: usize, optimizer: &dyn Optimizer) -> Trainer {
    let (g, loss) = model(width);
    let options = StepOptions {
        microbatches: 2,
        clip_norm: Some(1.0),
        ema_decay: Some(0.9),
        loss_scale: Some(LossScale {
            interval: 3,
            ..LossScale::default()
        }),
        ..StepOptions::default()
    };
    let names = ["w", "norm.weight"].map(Into::into);
    let step = TrainStep::build(&g, loss, &names, optimizer, &options).unwrap();
    trainer_of(step, LearningRateSchedule::cosine(0.05, 2, 12))
}

fn set(trainer: &mut Trainer, width: usize) {
    trainer.set_state("w", &waves(&[width, 3], 0.7)).unwrap();
    trainer
        .set_state("norm.weight", &tensor(&[3], &[1.0, 1.0, 1.0]))
        .unwrap();
    trainer.set_seed(77);
}

/// Runs steps. Returns the bits of their losses and gradient norms.
fn steps(trainer: &mut Trainer, count: u64) -> Vec<(u32, u32, bool)> {
    let one = |_| {
        let x = waves(&[2, 4, 5], 0.1 + trainer.steps() as f64);
        let r = trainer.step(&[("x", &x)]).unwrap();
        (r.loss.to_bits(), r.gradient_norm.to_bits(), r.skipped)
    };
    (0..count).map(one).collect()
}

fn bits(trainer: &Trainer) -> BTreeMap<String, Vec<u8>> {
    let states = trainer.step_graph().states().iter();
    let bytes = |name: &str| trainer.state(name).unwrap().bytes().to_vec();
    states.map(|s| (s.name.clone(), bytes(&s.name))).collect()
}

fn place(at: &str) -> BTreeMap<String, String> {
    [("position".to_string(), at.to_string())].into()
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    let folder = Folder::new("resume");
    let file = folder.file("run.safetensors");
    let [mut whole, mut again, mut first] = [0; 3].map(|_| trainer(5, &AdamW::default()));
    for trainer in [&mut whole, &mut again, &mut first] {
        set(trainer, 5);
    }
    let losses = steps(&mut whole, 10);
    assert_eq!(steps(&mut again, 10), losses);
    assert_eq!(bits(&again), bits(&whole));
    // Dropout differs from step to step, so the random number state must be restored too.
    assert_ne!(losses[0], losses[1]);
    assert_eq!(steps(&mut first, 4), losses[..4]);
    first.save(&file, &place("batch 4")).unwrap();
    let saved = bits(&first);
    drop(first);
    let mut resumed = trainer(5, &AdamW::default());
    let info = resumed.restore(&file).unwrap();
    assert_eq!((info.steps, info.seed, info.counter), (4, Some(77), 4));
    assert_eq!(info.user, place("batch 4"));
    assert_eq!(info, checkpoint_info(&file).unwrap());
    assert_eq!(bits(&resumed), saved);
    assert_eq!(steps(&mut resumed, 6), losses[4..]);
    assert_eq!(bits(&resumed), bits(&whole));
    assert_eq!(
        resumed.unchanged_trainables().unwrap(),
        Vec::<String>::new()
    );
    // Equal states give equal files.
    let (a, b) = (folder.file("a"), folder.file("b"));
    resumed.save(&a, &place("end")).unwrap();
    whole.save(&b, &place("end")).unwrap();
    assert_eq!(std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
}

/// Error message of a checkpoint; the failed restore leaves the states unchanged.
#[track_caller]
fn refused(trainer: &mut Trainer, file: &Path) -> String {
    let (before, done) = (bits(trainer), trainer.steps());
    let e = trainer.restore(file).unwrap_err();
    assert_eq!((bits(trainer), trainer.steps()), (before, done));
    let TrainError::Checkpoint { path, source } = e else {
        panic!("{e}")
    };
    assert_eq!(path, file);
    source.to_string()
}

#[test]
fn files_that_are_not_whole_are_refused() {
    let folder = Folder::new("whole");
    let (good, bad) = (folder.file("good"), folder.file("bad"));
    let mut trainer = trainer(5, &AdamW::default());
    set(&mut trainer, 5);
    steps(&mut trainer, 1);
    trainer.save(&good, &BTreeMap::new()).unwrap();
    let bytes = std::fs::read(&good).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    steps(&mut trainer, 1);
    for length in [0, 5, 8, 30, header - 1, header, header + 1, bytes.len() - 1] {
        std::fs::write(&bad, &bytes[..length]).unwrap();
        let e = refused(&mut trainer, &bad);
        let ends = e.contains(&format!("it has {length} bytes, its header says"))
            && e.ends_with("it is truncated");
        assert!(ends, "{length}: {e}");
    }
    std::fs::write(&bad, [&bytes[..], b"junk"].concat()).unwrap();
    let e = refused(&mut trainer, &bad);
    assert!(e.ends_with("it has trailing data"), "{e}");
    let mut garbage = bytes.clone();
    garbage[8..header].fill(b'x');
    std::fs::write(&bad, &garbage).unwrap();
    assert!(refused(&mut trainer, &bad).starts_with("it is not a safetensors file"));
    garbage[..8].fill(0xff);
    std::fs::write(&bad, &garbage).unwrap();
    assert!(refused(&mut trainer, &bad).contains("at most 100000000 bytes are supported"));
    let edited = |from: &str, to: &str| {
        let text = String::from_utf8(bytes[8..header].to_vec()).unwrap();
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to);
        assert_eq!(text.len() + 8, header);
        let parts = [&bytes[..8], text.as_bytes(), &bytes[header..]];
        std::fs::write(&bad, parts.concat()).unwrap();
    };
    edited("tercet.train", "another.tool");
    assert!(refused(&mut trainer, &bad).starts_with("it is not a checkpoint of a training run"));
    edited(r#"\"format\":1"#, r#"\"format\":9"#);
    assert_eq!(
        refused(&mut trainer, &bad),
        "its format version is 9; expected 1"
    );
    edited("adamw.m.w", "adamw.m.x");
    assert!(refused(&mut trainer, &bad).starts_with("its fingerprint is "));
    let missing = folder.file("missing");
    assert_eq!(refused(&mut trainer, &missing), "cannot open");
    trainer.restore(&good).unwrap();
    assert_eq!(trainer.steps(), 1);
}

#[test]
fn files_of_something_else_are_refused_by_the_first_difference() {
    let folder = Folder::new("else");
    let file = folder.file("run");
    let mut small = trainer(5, &AdamW::default());
    set(&mut small, 5);
    small.save(&file, &BTreeMap::new()).unwrap();
    let mut wide = trainer(6, &AdamW::default());
    assert_eq!(
        refused(&mut wide, &file),
        "its state `w` is f32[5, 3], expected f32[6, 3]: it belongs to another model"
    );
    let momentum = Sgd {
        momentum: 0.9,
        ..Sgd::default()
    };
    assert_eq!(
        refused(&mut trainer(5, &momentum), &file),
        "it has no state `sgd.momentum.w`, expected f32[5, 3]: it belongs to another model or optimizer"
    );
    assert_eq!(
        refused(&mut trainer(5, &Sgd::default()), &file),
        "it has an unexpected state `adamw.m.norm.weight`: it belongs to another model or optimizer"
    );
    assert_ne!(
        small.step_graph().fingerprint(),
        wide.step_graph().fingerprint()
    );
}

#[test]
fn a_write_that_fails_leaves_the_last_checkpoint() {
    let folder = Folder::new("write");
    let file = folder.file("run");
    let mut trainer = trainer(5, &AdamW::default());
    set(&mut trainer, 5);
    steps(&mut trainer, 1);
    trainer.save(&file, &place("1")).unwrap();
    let good = std::fs::read(&file).unwrap();
    steps(&mut trainer, 1);
    // A leftover file of an interrupted write does not prevent saving.
    let partial = folder.file("run.partial");
    std::fs::write(&partial, &good[..100]).unwrap();
    assert_eq!(checkpoint_info(&file).unwrap().steps, 1);
    trainer.save(&file, &place("2")).unwrap();
    assert!(!partial.exists());
    assert_eq!(checkpoint_info(&file).unwrap().steps, 2);
    // A folder with the temporary name prevents writing.
    std::fs::create_dir_all(partial.join("inside")).unwrap();
    let e = trainer.save(&file, &place("3")).unwrap_err();
    assert!(matches!(e, TrainError::Checkpoint { .. }), "{e}");
    assert_eq!(checkpoint_info(&file).unwrap().user, place("2"));
    let nowhere = folder.file("no such folder").join("run");
    assert!(trainer.save(&nowhere, &place("4")).is_err());
}
