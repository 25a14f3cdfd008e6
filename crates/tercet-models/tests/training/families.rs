//! Test that every decoder family trains. The loss equals that of the generating graph, including
//! windows and packed texts, and every low-rank pair gets a gradient.

use tercet_models::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
use tercet_models::{DecoderOptions, ModelError, ModelFiles};

use crate::common::data;
use crate::rows::{Rows, cross_entropy, logits, losses, near};

/// Numbers of tokens per text: longer than the windows of most models, and below the vocabulary
/// size of all.
const LENGTHS: [usize; 2] = [19, 14];

#[test]
fn the_loss_is_that_of_the_generating_graph() {
    let texts = LENGTHS.map(|len| (0..len).map(|i| (7 * i + i * i) as i32 % 32).collect());
    let [a, b]: [Vec<i32>; 2] = texts;
    let packed = Rows::of(&[&[&a, &b]], 40);
    let apart = Rows::of(&[&[&a], &[&b]], 20);
    let mut windows = 0;
    let entries = std::fs::read_dir(data("decoders")).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if !path.join("config.json").is_file() {
            continue;
        }
        let both = [path.clone(), path.join("model.gguf")];
        for file in both.into_iter().filter(|file| file.exists()) {
            let files = ModelFiles::open(&file).unwrap();
            let of = |text: &[i32]| cross_entropy(&logits(&files, DecoderOptions::new, text), text);
            let want = of(&a) + of(&b);
            let spec = files.decoder_spec().unwrap();
            let mut tunings = vec![FineTuneMode::Lora(LoraOptions::new(2))];
            match spec.experts {
                None => tunings.push(FineTuneMode::Full),
                Some(_) => {
                    let options = DecoderTrainingOptions::new(1, 4, FineTuneMode::Full);
                    let refused = TrainingGraph::decoder(&spec, &files.weights(), &options);
                    assert!(matches!(refused, Err(ModelError::Unsupported(_))));
                }
            }
            // Models with recurrent states are trained with one text per row.
            let rows = match spec.has_states() {
                true => &apart,
                false => &packed,
            };
            for tuning in tunings {
                let [batch, len] = rows.shape;
                let mut options = DecoderTrainingOptions::new(batch, len, tuning);
                if spec.has_states() {
                    let refused = TrainingGraph::decoder(&spec, &files.weights(), &options);
                    assert!(matches!(refused, Err(ModelError::Unsupported(_))));
                    options.packed = false;
                }
                let own = TrainingGraph::decoder(&spec, &files.weights(), &options).unwrap();
                let [_, sum, count] = losses(&own, rows).map(f64::from);
                assert_eq!(count, (a.len() + b.len() - 2) as f64);
                assert!(
                    near(sum, want, 1e-4),
                    "{}: {sum}, want {want}",
                    file.display()
                );
            }
        }
        let spec = ModelFiles::open(&path).unwrap().decoder_spec().unwrap();
        let window = spec.layers.iter().filter_map(|layer| layer.window).min();
        windows += usize::from(window.is_some_and(|window| window < a.len()));
    }
    assert!(windows >= 6, "{windows} models have a window that counts");
}
