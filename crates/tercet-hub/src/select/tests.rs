use super::*;

const GIB: u64 = 1 << 30;

fn listing(files: &[(&str, u64)]) -> RepoListing {
    let file = |(path, bytes): &(&str, u64)| RepoFile {
        bytes: Some(*bytes),
        ..RepoFile::new(*path)
    };
    RepoListing {
        repo: "a/m".into(),
        commit: "0".repeat(40),
        files: files.iter().map(file).collect(),
    }
}

fn choose(files: &[(&str, u64)], name: &str, free: Option<u64>) -> Result<FileSet, HubError> {
    FileSet::choose(&listing(files), &name.parse().unwrap(), free)
}

fn paths(set: &FileSet) -> Vec<&str> {
    set.files.iter().map(|file| file.path.as_str()).collect()
}

const QUANTS: [(&str, u64); 8] = [
    ("README.md", 1),
    ("m-F16.gguf", 16 * GIB),
    ("m-Q8_0.gguf", 8 * GIB),
    ("m-Q4_K_M.gguf", 5 * GIB),
    ("m-Q3_K_S.gguf", 4 * GIB),
    ("m-IQ2_XS.gguf", 2 * GIB),
    ("mmproj-m-f16.gguf", GIB),
    ("m.imatrix.gguf", 1),
];

#[test]
fn the_quantization_fits_the_memory() {
    let of = |free| {
        let set = choose(&QUANTS, "a/m", free)?;
        assert_eq!(
            set.projector.as_ref().map(|f| &*f.path),
            Some("mmproj-m-f16.gguf")
        );
        Ok::<_, HubError>(set.open)
    };
    assert_eq!(of(None).unwrap(), "m-Q4_K_M.gguf");
    assert_eq!(of(Some(100 * GIB)).unwrap(), "m-Q4_K_M.gguf");
    assert_eq!(of(Some(6 * GIB)).unwrap(), "m-Q4_K_M.gguf");
    assert_eq!(of(Some(5 * GIB)).unwrap(), "m-Q3_K_S.gguf");
    assert_eq!(of(Some(3 * GIB)).unwrap(), "m-IQ2_XS.gguf");
    let error = of(Some(GIB)).unwrap_err();
    assert!(matches!(&error, HubError::Memory { quant, .. } if quant == "IQ2_XS"));
    assert!(error.to_string().contains("1.0 GiB free"), "{error}");
    // Without Q4_K_M: four bits before eight, and what fits before what does not.
    let files = [
        ("m-Q8_0.gguf", 8 * GIB),
        ("m-Q5_K_M.gguf", 6 * GIB),
        ("m-BF16.gguf", 16 * GIB),
    ];
    assert_eq!(choose(&files, "a/m", None).unwrap().open, "m-Q5_K_M.gguf");
    // The only model is taken: the command that runs it reports its memory.
    let only = [("m-BF16.gguf", 16 * GIB)];
    assert_eq!(choose(&only, "a/m", Some(GIB)).unwrap().open, "m-BF16.gguf");
}

#[test]
fn a_quantization_is_named_in_any_case_or_by_its_file() {
    let files = [
        ("m-Q4_K_M.gguf", 1),
        ("m-UD-Q4_K_M.gguf", 1),
        ("m-UD-Q2_K_XL.gguf", 1),
        ("m-special.gguf", 1),
    ];
    for (quant, open) in [
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("UD-Q4_K_M", "m-UD-Q4_K_M.gguf"),
        ("Q2_K_XL", "m-UD-Q2_K_XL.gguf"),
        ("special", "m-special.gguf"),
    ] {
        let set = choose(&files, &format!("a/m:{quant}"), Some(0)).unwrap();
        assert_eq!(set.open, open);
    }
    let error = choose(&files, "a/m:Q8_0", None).unwrap_err().to_string();
    assert!(
        error.contains("Q8_0") && error.contains("UD-Q2_K_XL"),
        "{error}"
    );
    let twice = [("x-Q8_0.gguf", 1), ("y-Q8_0.gguf", 1)];
    for name in ["a/m", "a/m:Q8_0"] {
        let error = choose(&twice, name, None).unwrap_err();
        assert!(matches!(&error, HubError::SeveralModels { .. }), "{error}");
        assert!(
            error.to_string().contains("x-Q8_0.gguf, y-Q8_0.gguf"),
            "{error}"
        );
    }
    assert_eq!(
        paths(&choose(&twice, "a/m/y-Q8_0.gguf", None).unwrap()),
        ["y-Q8_0.gguf"]
    );
}

#[test]
fn parts_of_a_split_model_belong_together() {
    let files = [
        ("Q8_0/m-Q8_0-00002-of-00002.gguf", 4),
        ("Q8_0/m-Q8_0-00001-of-00002.gguf", 3),
        ("BF16/m-BF16-00001-of-00003.gguf", 9),
    ];
    for name in ["a/m", "a/m:Q8_0", "a/m/Q8_0/m-Q8_0-00002-of-00002.gguf"] {
        let set = choose(&files, name, None).unwrap();
        let both = [
            "Q8_0/m-Q8_0-00001-of-00002.gguf",
            "Q8_0/m-Q8_0-00002-of-00002.gguf",
        ];
        assert_eq!(paths(&set), both, "{name}");
        assert_eq!((set.bytes(), &*set.open), (7, both[0]));
    }
    let error = choose(&files[2..], "a/m", None).unwrap_err();
    let is_missing = matches!(
        error,
        HubError::MissingParts {
            found: 1,
            expected: 3,
            ..
        }
    );
    assert!(is_missing, "{error}");
}

#[test]
fn folders_have_weights_and_the_files_around_them() {
    let files = [
        ("config.json", 1),
        ("generation_config.json", 1),
        ("model-00001-of-00002.safetensors", 1),
        ("model-00002-of-00002.safetensors", 1),
        ("model.safetensors.index.json", 1),
        ("consolidated.safetensors", 1),
        ("pytorch_model.bin", 1),
        ("pytorch_model.bin.index.json", 1),
        ("tokenizer.model", 1),
        ("vocab.txt", 1),
        ("1_Pooling/config.json", 1),
        ("2_Dense/model.safetensors", 1),
        ("onnx/model.onnx", 1),
        ("onnx/config.json", 1),
        ("README.md", 1),
        ("original/params.json", 1),
    ];
    let set = choose(&files, "a/m", None).unwrap();
    assert_eq!((set.format, &*set.open), (ModelFormat::Safetensors, ""));
    let expected = [
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.model",
        "vocab.txt",
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
    ];
    assert_eq!(paths(&set), expected);
    // Variants of the same weights are left out.
    let variants = [
        ("config.json", 1),
        ("model.safetensors", 1),
        ("model.fp16.safetensors", 1),
    ];
    let set = choose(&variants, "a/m", None).unwrap();
    assert_eq!(paths(&set), ["config.json", "model.safetensors"]);
    // GGUF wins, because it is quantized.
    let both = [
        ("config.json", 1),
        ("model.safetensors", 1),
        ("m-Q8_0.gguf", 1),
    ];
    assert_eq!(
        choose(&both, "a/m", None).unwrap().format,
        ModelFormat::Gguf
    );
}

#[test]
fn onnx_models_have_external_data_and_adapters_a_configuration() {
    let files = [
        ("onnx/model.onnx", 1),
        ("onnx/model.onnx_data", 1),
        ("onnx/model_q4.onnx", 1),
        ("tokenizer.json", 1),
    ];
    let set = choose(&files, "a/m", None).unwrap();
    assert_eq!(
        paths(&set),
        ["onnx/model.onnx", "onnx/model.onnx_data", "tokenizer.json"]
    );
    assert_eq!(
        choose(&files, "a/m/onnx/model_q4.onnx", None).unwrap().open,
        "onnx/model_q4.onnx"
    );
    let adapter = [
        ("adapter_config.json", 1),
        ("adapter_model.safetensors", 1),
        ("checkpoint-9/adapter_model.safetensors", 1),
    ];
    let set = choose(&adapter, "a/m", None).unwrap();
    assert_eq!(set.format, ModelFormat::Adapter);
    assert_eq!(
        paths(&set),
        ["adapter_config.json", "adapter_model.safetensors"]
    );
}

#[test]
fn repositories_without_a_model_list_their_weights() {
    let files = [
        ("config.json", 1),
        ("pytorch_model.bin", 1),
        ("README.md", 1),
    ];
    let error = choose(&files, "a/m", None).unwrap_err().to_string();
    assert!(
        error.contains("pytorch_model.bin") && !error.contains("README"),
        "{error}"
    );
    let error = choose(&QUANTS, "a/m/m-Q5_0.gguf", None).unwrap_err();
    assert!(matches!(&error, HubError::NoFile { .. }));
    assert!(error.to_string().contains("m-Q8_0.gguf"), "{error}");
}
