//! Tests of writing fully trained models and reading them again.

use tercet::{CompileOptions, DType, Device, Tensor};
use tercet_models::save::{RepackFormat, save_model};
use tercet_models::training::FineTuneMode;
use tercet_models::{DecoderOptions, ModelError, ModelFiles, ModelWeight, SaveError, SaveOptions};

use crate::adapters::drawn;
use crate::common::temp_dir;
use crate::gradients::stir;
use crate::rows::{
    FOLDER, HALVES, PACKED, Rows, TEXTS, cross_entropy, logits, model, near, training, try_losses,
};

#[test]
fn a_trained_model_is_read_again_as_it_was() {
    let dir = temp_dir("files-trained");
    let text = TEXTS[0];
    let rows = Rows::of(&[&[text]], text.len());
    let as_f32 = SaveOptions {
        floats: Some(DType::F32),
        packed: RepackFormat::F16,
    };
    for (i, (file, options, tolerance)) in [
        (FOLDER, as_f32, 2e-5),
        (FOLDER, SaveOptions::default(), 2e-3),
        (HALVES, as_f32, 2e-5),
        (PACKED, SaveOptions::default(), 2e-3),
    ]
    .into_iter()
    .enumerate()
    {
        let files = model(file);
        let mut own = training(&files, rows.shape, FineTuneMode::Full);
        stir(&mut own);
        let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
        let [_, sum, _] = try_losses(&mut *exe, &rows).unwrap();
        let weights = own
            .weights(|name| exe.read_state(name).map_err(ModelError::from))
            .unwrap();
        let to = dir.join(i.to_string());
        let saved = save_model(&files, &weights, &to, &options).unwrap();
        assert_eq!(saved.changed.len(), 2 + 4 * 9);
        let again = ModelFiles::open(&to).unwrap();
        assert_eq!(again.decoder_spec().unwrap(), files.decoder_spec().unwrap());
        again.tokenizer().unwrap();
        let want = cross_entropy(&logits(&again, DecoderOptions::new, text), text);
        assert!(
            near(f64::from(sum), want, tolerance),
            "{file}: {sum}, want {want}"
        );
        if options.floats == Some(DType::F32) {
            for (name, tensor) in &weights {
                let ModelWeight::Dense(found) = again.weights().get(name).unwrap() else {
                    panic!("{name} is packed");
                };
                assert_eq!(found.bytes(), tensor.bytes(), "{name}");
            }
        }
        let error = own.adapter(|_| -> Result<Tensor, ModelError> { panic!("not asked") });
        assert!(error.is_err());
    }
}

#[test]
fn nothing_is_written_where_it_should_not_be() {
    let dir = temp_dir("files-refused");
    for file in [FOLDER, PACKED] {
        let files = model(file);
        let norm = match file {
            FOLDER => "model.norm.weight",
            _ => "output_norm.weight",
        };
        let save = |name: &str, len: usize, to: &std::path::Path, options: &SaveOptions| {
            let weights = [(name.to_string(), drawn("x", &[len], 1.0))].into();
            save_model(&files, &weights, to, options)
        };
        let (to, plain) = (
            dir.join(format!("to{}", file.len())),
            SaveOptions::default(),
        );
        let error = save("no.such.weight", 256, &to, &plain).unwrap_err();
        assert!(error.to_string().contains("no.such.weight"), "{error}");
        let error = save(norm, 255, &to, &plain).unwrap_err();
        assert!(error.to_string().contains(norm), "{error}");
        let integers = SaveOptions {
            floats: Some(DType::I32),
            packed: RepackFormat::F16,
        };
        let error = save(norm, 256, &to, &integers).unwrap_err();
        assert!(matches!(error, SaveError::Unsupported(_)), "{error}");
        assert!(!to.is_file() && !to.join("model.safetensors").exists());

        // Use a copy of the model, because the test overwrites files.
        let source = crate::common::data("tiny-rust-llama");
        let copy = dir.join(format!("copy{}", file.len()));
        let own = match file {
            FOLDER => {
                std::fs::create_dir_all(&copy).unwrap();
                for name in ["config.json", "model.safetensors", "tokenizer.json"] {
                    std::fs::copy(source.join(name), copy.join(name)).unwrap();
                }
                copy
            }
            _ => {
                std::fs::copy(source.join(file), &copy).unwrap();
                copy
            }
        };
        let files = ModelFiles::open(&own).unwrap();
        let weights = [(norm.to_string(), drawn("x", &[256], 1.0))].into();
        let error = save_model(&files, &weights, &own, &plain).unwrap_err();
        assert!(matches!(error, SaveError::OverModel { .. }), "{error}");

        let nowhere = dir.join("no/such/folder/model.gguf");
        if file == PACKED {
            let error = save(norm, 256, &nowhere, &plain).unwrap_err();
            assert!(matches!(error, SaveError::Io { .. }), "{error}");
        }
    }
    let partial = |e: std::io::Result<std::fs::DirEntry>| {
        e.unwrap().file_name().to_string_lossy().contains("partial")
    };
    assert!(!std::fs::read_dir(&dir).unwrap().any(partial));
}
