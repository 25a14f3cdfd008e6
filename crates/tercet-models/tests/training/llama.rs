//! Tests of losses and gradients of the llama family.

use tercet::{CompileOptions, DType, Device, Tensor};
use tercet_models::config::DecoderBiases;
use tercet_models::training::{
    DecoderTrainingOptions, FineTuneMode, IGNORED, LoraOptions, TrainingGraph,
};
use tercet_models::{
    AdapterError, DecoderDims, DecoderOptions, DecoderSpec, DummyWeights, ModelError, ModelFiles,
    RopeLayout, Weights,
};

use crate::gradients::{agree_with_differences, gradients, stir};
use crate::rows::{
    FOLDER, HALVES, PACKED, Rows, TEXTS, cross_entropy, logits, losses, model, near, training,
    try_losses,
};

fn lora() -> FineTuneMode {
    FineTuneMode::Lora(LoraOptions::new(4))
}

/// The reference from the generating graph: the sum of the losses of both texts, and their number
/// of labels.
fn expected(files: &ModelFiles) -> (f64, f64) {
    let of = |text: &&[i32]| cross_entropy(&logits(files, DecoderOptions::new, text), text);
    let labels: usize = TEXTS.iter().map(|text| text.len() - 1).sum();
    (TEXTS.iter().map(of).sum(), labels as f64)
}

fn expect_losses(what: &str, got: [f32; 3], (sum, count): (f64, f64), tolerance: f64) {
    let [loss, loss_sum, tokens] = got.map(f64::from);
    assert_eq!(tokens, count, "{what}");
    assert!(
        near(loss_sum, sum, tolerance),
        "{what}: {loss_sum}, want {sum}"
    );
    assert!(
        near(loss, sum / count, tolerance),
        "{what}: {loss}, want {}",
        sum / count
    );
}

#[test]
fn the_loss_is_that_of_the_generating_graph() {
    let packed = Rows::of(&[&TEXTS], 18);
    let apart = Rows::of(&[&[TEXTS[0]], &[TEXTS[1]]], 10);
    for file in [FOLDER, HALVES, PACKED] {
        let files = model(file);
        let want = expected(&files);
        for (how, tuning) in [("full", FineTuneMode::Full), ("lora", lora())] {
            for (rows, name) in [(&packed, "packed"), (&apart, "apart")] {
                let own = training(&files, rows.shape, tuning.clone());
                let what = format!("{file} {how} {name}");
                expect_losses(&what, losses(&own, rows), want, 2e-5);
            }
        }
    }
}

#[test]
fn options_do_not_change_the_loss() {
    let files = model(FOLDER);
    let (config, weights) = (files.decoder_spec().unwrap(), files.weights());
    let want = expected(&files);
    let rows = Rows::of(&[&[TEXTS[0]], &[TEXTS[1]]], 9);
    type Change = fn(&mut DecoderTrainingOptions);
    let changes: [(&str, Change, f64); 6] = [
        ("not packed", |o| o.packed = false, 2e-5),
        ("checkpoints", |o| o.checkpoints = true, 2e-5),
        ("parts", |o| o.loss_parts = 4, 2e-5),
        ("f16", |o| o.dtype = DType::F16, 2e-3),
        ("bf16", |o| o.dtype = DType::BF16, 2e-2),
        (
            "all",
            |o| (o.checkpoints, o.loss_parts, o.dtype) = (true, 18, DType::F16),
            2e-3,
        ),
    ];
    for tuning in [FineTuneMode::Full, lora()] {
        for (what, change, tolerance) in changes {
            let mut options = DecoderTrainingOptions::new(2, 9, tuning.clone());
            change(&mut options);
            let own = TrainingGraph::decoder(&config, &weights, &options).unwrap();
            expect_losses(what, losses(&own, &rows), want, tolerance);
        }
    }
    let mut options =
        DecoderTrainingOptions::new(tercet::Dim::sym("b"), tercet::Dim::sym("s"), lora());
    options.checkpoints = true;
    let own = TrainingGraph::decoder(&config, &weights, &options).unwrap();
    let bounds = CompileOptions::new().bound("b", 3).bound("s", 20);
    let mut exe = own.compile(&Device::cpu(), &bounds).unwrap();
    for rows in [Rows::of(&[&TEXTS], 18), rows] {
        expect_losses("symbols", try_losses(&mut *exe, &rows).unwrap(), want, 2e-5);
    }
}

#[test]
fn smoothing_and_z_loss_follow_their_formulas() {
    let files = model(FOLDER);
    let (config, weights) = (files.decoder_spec().unwrap(), files.weights());
    let text = TEXTS[0];
    let rows = Rows::of(&[&[text]], text.len());
    let (smoothing, z_loss) = (0.1, 1e-2);
    let mut options = DecoderTrainingOptions::new(1, text.len(), lora());
    (options.label_smoothing, options.z_loss) = (smoothing, z_loss);
    let own = TrainingGraph::decoder(&config, &weights, &options).unwrap();
    let all = logits(&files, DecoderOptions::new, text);
    let want: f64 = all
        .iter()
        .zip(&text[1..])
        .map(|(row, next)| {
            let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let log_sum = row.iter().map(|x| x.exp()).sum::<f64>().ln();
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let own = log_sum - row[*next as usize];
            (1.0 - smoothing) * own + smoothing * (log_sum - mean) + z_loss * log_sum * log_sum
        })
        .sum();
    let count = (text.len() - 1) as f64;
    expect_losses("smoothed", losses(&own, &rows), (want, count), 2e-5);
}

#[test]
fn indices_outside_their_range_end_the_run() {
    let files = model(FOLDER);
    let rows = || Rows::of(&[&TEXTS], 16);
    let own = training(&files, rows().shape, lora());
    let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
    let good = try_losses(&mut *exe, &rows()).unwrap();
    type Change = fn(&mut Rows);
    let changes: [(&str, Change); 6] = [
        ("a label of the vocabulary's size", |r| r.labels[2] = 2048),
        ("a negative label", |r| r.labels[2] = -1),
        ("a token of the vocabulary's size", |r| r.tokens[2] = 2048),
        ("a negative token", |r| r.tokens[2] = -1),
        ("a position beyond the context", |r| r.positions[2] = 512),
        ("a negative position", |r| r.positions[2] = -2),
    ];
    for (what, change) in changes {
        let mut rows = rows();
        change(&mut rows);
        let error = try_losses(&mut *exe, &rows).expect_err(what);
        assert!(error.contains("Index {"), "{what}: {error}");
    }
    assert_eq!(
        try_losses(&mut *exe, &rows()).unwrap(),
        good,
        "after the faults"
    );
    let mut none = rows();
    none.labels.fill(IGNORED);
    assert_eq!(try_losses(&mut *exe, &none).unwrap(), [0.0; 3], "no labels");
}

/// A model small enough for finite differences: two layers, grouped queries, biases, an untied
/// output projection.
pub(crate) fn small(tied_embeddings: bool) -> (DecoderSpec, Weights) {
    let dims = DecoderDims {
        hidden: 16,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        ffn: 24,
        vocab: 40,
        context: 16,
    };
    let config = DecoderSpec {
        rope_layout: RopeLayout::Pairs,
        tied_embeddings,
        biases: DecoderBiases {
            qkv: true,
            output: true,
            mlp: true,
            head: false,
        },
        ..DecoderSpec::llama(dims)
    };
    (config, Weights::Dummy(DummyWeights::dense()))
}

/// The same batch with every token within the vocabulary of the small model.
fn small_rows() -> Rows {
    let [a, b] = TEXTS.map(|text| text.iter().map(|t| t % 40).collect::<Vec<i32>>());
    Rows::of(&[&[&a, &b[..3]], &[&b]], 12)
}

#[test]
fn gradients_agree_with_differences() {
    let rows = small_rows();
    let changed = |options: &mut DecoderTrainingOptions| {
        (options.checkpoints, options.loss_parts) = (true, 3);
        (options.label_smoothing, options.z_loss) = (0.05, 1e-3);
    };
    for (tuning, tied, altered) in [
        (FineTuneMode::Full, false, false),
        (FineTuneMode::Full, true, true),
        (lora(), false, true),
        (lora(), true, false),
    ] {
        let (config, weights) = small(tied);
        let mut options = DecoderTrainingOptions::new(rows.shape[0], rows.shape[1], tuning.clone());
        if altered {
            changed(&mut options);
        }
        let mut own = TrainingGraph::decoder(&config, &weights, &options).unwrap();
        stir(&mut own);
        let tensors = rows.tensors();
        let inputs: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, t)).collect();
        let what = format!("{tuning:?}");
        agree_with_differences(&what, &mut own, &inputs, |_| false);
    }
}

/// A vocabulary of odd length. With full training, the logits have padding columns, which must not
/// affect the loss.
#[test]
fn columns_that_make_rows_whole_do_not_count() {
    let rows = small_rows();
    for tied in [false, true] {
        let (mut config, weights) = small(tied);
        (config.biases.output, config.vocab) = (false, 41);
        let of = |tuning: FineTuneMode, altered: bool| {
            let mut options = DecoderTrainingOptions::new(rows.shape[0], rows.shape[1], tuning);
            if altered {
                (options.checkpoints, options.loss_parts) = (true, 3);
                (options.label_smoothing, options.z_loss) = (0.05, 1e-3);
            }
            TrainingGraph::decoder(&config, &weights, &options).unwrap()
        };
        for altered in [false, true] {
            // Adapters with zero `B` change nothing and do not pad the output projection.
            let plain = losses(&of(lora(), altered), &rows);
            let mut own = of(FineTuneMode::Full, altered);
            let found = losses(&own, &rows);
            for (a, b) in plain.into_iter().zip(found) {
                assert!(near(a.into(), b.into(), 1e-6), "{plain:?}, {found:?}");
            }
            let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
            for label in [41, 63, 64, -1] {
                let mut bad = small_rows();
                bad.labels[2] = label;
                let error = try_losses(&mut *exe, &bad).expect_err("no such class");
                assert!(error.contains("Index {"), "{label}: {error}");
            }
            stir(&mut own);
            let tensors = rows.tensors();
            let inputs: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, t)).collect();
            agree_with_differences("41 tokens", &mut own, &inputs, |_| false);
        }
    }
}

#[test]
fn steps_along_the_gradient_lower_the_loss() {
    for (file, tuning, dtype, rate) in [
        (FOLDER, FineTuneMode::Full, DType::F32, 2e-3),
        (FOLDER, FineTuneMode::Full, DType::BF16, 2e-3),
        (HALVES, lora(), DType::F16, 0.02),
        (PACKED, lora(), DType::F32, 0.02),
    ] {
        let files = model(file);
        let rows = Rows::of(&[&TEXTS], 16);
        let mut options = DecoderTrainingOptions::new(1, 16, tuning);
        (options.dtype, options.checkpoints) = (dtype, true);
        let config = files.decoder_spec().unwrap();
        let mut own = TrainingGraph::decoder(&config, &files.weights(), &options).unwrap();
        let found = gradients(&mut own);
        let g = &mut own.graph;
        for (state, gradient) in found {
            let rate = g.scalar(DType::F32, rate).unwrap();
            let step = g.mul(gradient, rate).unwrap();
            let next = g.sub(state, step).unwrap();
            g.assign(state, next).unwrap();
        }
        let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
        let losses: Vec<f32> = (0..6)
            .map(|_| try_losses(&mut *exe, &rows).unwrap()[0])
            .collect();
        assert!(losses.windows(2).all(|w| w[1] < w[0]), "{file}: {losses:?}");
        assert!(losses[5] < 0.95 * losses[0], "{file}: {losses:?}");
        for (name, start) in &own.trainables {
            let now = exe.read_state(name).unwrap();
            assert_ne!(now.bytes(), start.bytes(), "{file}: {name} moved");
        }
    }
}

#[test]
fn what_is_trained_is_what_was_asked_for() {
    let files = model(PACKED);
    let full = training(&files, [1, 8], FineTuneMode::Full);
    assert!(full.params.is_empty());
    assert_eq!(
        full.trainables.len(),
        2 + 4 * 9,
        "tied embeddings are trained once"
    );
    let mut of = LoraOptions::new(3);
    of.targets = vec!["q_proj".into(), "mlp.down_proj".into()];
    let some = training(&files, [1, 8], FineTuneMode::Lora(of.clone()));
    let mut names: Vec<&str> = some.trainables.iter().map(|(n, _)| n.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names.len(), 4 * 4);
    assert_eq!(names[0], "model.layers.0.mlp.down_proj.lora_A");
    assert_eq!(some.trained_numbers(), 4 * 3 * (256 + 256 + 768 + 256));
    let again = training(&files, [1, 8], FineTuneMode::Lora(of.clone()));
    for ((name, a), (_, b)) in some.trainables.iter().zip(&again.trainables) {
        assert_eq!(a.bytes(), b.bytes(), "{name}");
        let zeros = a.bytes().iter().all(|x| *x == 0);
        assert_eq!(zeros, name.ends_with("lora_B"), "{name}");
    }
    assert_eq!(training(&files, [1, 8], lora()).trainables.len(), 2 * 7 * 4);

    let (config, weights) = (files.decoder_spec().unwrap(), files.weights());
    let refused = |tuning, change: fn(&mut DecoderTrainingOptions)| {
        let mut options = DecoderTrainingOptions::new(1, 8, tuning);
        change(&mut options);
        TrainingGraph::decoder(&config, &weights, &options).expect_err("refused")
    };
    of.targets.push("c_attn".into());
    let error = refused(FineTuneMode::Lora(of), |_| {});
    assert!(
        matches!(&error, ModelError::Adapter(AdapterError::NoTarget { target, known })
        if target == "c_attn" && known.contains("gate_proj")),
        "{error}"
    );
    for rank in [0, 65] {
        let error = refused(FineTuneMode::Lora(LoraOptions::new(rank)), |_| {});
        let bad = matches!(error, ModelError::Adapter(AdapterError::BadRank { .. }));
        assert!(bad, "{error}");
    }
    let error = refused(lora(), |o| o.len = 513.into());
    assert!(matches!(error, ModelError::Context { .. }), "{error}");
    for change in [
        (|o| o.loss_parts = 0) as fn(&mut DecoderTrainingOptions),
        |o| o.loss_parts = 9,
        |o| o.label_smoothing = 1.0,
        |o| o.z_loss = f64::NAN,
    ] {
        let error = refused(lora(), change);
        assert!(matches!(error, ModelError::Unsupported(_)), "{error}");
    }
    let error = refused(lora(), |o| o.dtype = DType::I32);
    assert!(matches!(error, ModelError::Compile(_)), "{error}");
}
