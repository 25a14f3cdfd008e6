//! Tests that damaged or unsupported adapters are errors with the name of the field or tensor.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tercet_models::{Adapter, AdapterError};

use crate::adapters::adapter;
use crate::common::{GgufWriter, safetensors, temp_dir};
use crate::rows::{FOLDER, model, near};

/// The folder of an adapter with a changed configuration.
fn damaged(dir: &Path, name: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let to = dir.join(name);
    let config = model(FOLDER).decoder_spec().unwrap();
    adapter(&config, "own", 2, 0.1).write_peft(&to).unwrap();
    let path = to.join("adapter_config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(path, json.to_string()).unwrap();
    to
}

/// The messages of an error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        None => error.to_string(),
        Some(source) => format!("{error}: {}", chain(source)),
    }
}

#[test]
fn configurations_that_ask_for_more_are_refused() {
    let dir = temp_dir("adapters-configurations");
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 11] = [
        ("`peft_type`", |j| j["peft_type"] = json!("LOHA")),
        ("`use_dora`", |j| j["use_dora"] = json!(true)),
        ("`bias`", |j| j["bias"] = json!("all")),
        ("`r`", |j| j["r"] = json!(0)),
        ("rank 2; expected 3", |j| j["r"] = json!(3)),
        ("`lora_alpha`", |j| j["lora_alpha"] = json!("16")),
        ("`alpha_pattern`", |j| {
            j["alpha_pattern"] = json!({".*q_proj": 4.0})
        }),
        ("`rank_pattern`", |j| {
            j["rank_pattern"] = json!({"q_proj": 0})
        }),
        ("`init_lora_weights`", |j| {
            j["init_lora_weights"] = json!("pissa")
        }),
        ("`layer_replication`", |j| {
            j["layer_replication"] = json!([[0, 2]])
        }),
        ("`monteclora_config`", |j| {
            j["monteclora_config"] = json!({"a": 1})
        }),
    ];
    for (i, (expected, change)) in changes.into_iter().enumerate() {
        let folder = damaged(&dir, &i.to_string(), change);
        let text = chain(&Adapter::from_peft(folder).expect_err(expected));
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let root = damaged(&dir, "root", |j| j["use_rslora"] = json!(true));
    let root = Adapter::from_peft(root).unwrap();
    let low = &root.modules()["model.layers.0.mlp.up_proj"];
    assert!(near(low.scale(), 8.0 / 2f64.sqrt(), 1e-12));
    let patterns = damaged(&dir, "patterns", |j| {
        j["alpha_pattern"] = json!({"mlp.up_proj": 5.0});
        j["lora_alpha"] = json!(2);
    });
    let patterns = Adapter::from_peft(patterns).unwrap();
    assert_eq!(
        patterns.modules()["model.layers.0.mlp.up_proj"].alpha(),
        5.0
    );
    assert_eq!(
        patterns.modules()["model.layers.0.mlp.down_proj"].alpha(),
        2.0
    );
}

#[test]
fn damaged_folders_are_refused_by_name() {
    let dir = temp_dir("adapters-damaged");
    let folder = damaged(&dir, "cut", |_| {});
    let path = folder.join("adapter_model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for len in [0, 1, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = Adapter::from_peft(&folder).expect_err("cut");
        assert!(
            chain(&error).contains("adapter_model.safetensors"),
            "{len}: {error}"
        );
    }
    let prefix = "base_model.model.model.layers.0.mlp.up_proj";
    let file = |tensors: &[(&str, [usize; 2])]| {
        let (mut header, mut at) = (Vec::new(), 0);
        for (name, [rows, cols]) in tensors {
            let end = at + rows * cols * 4;
            header.push(format!(
                r#""{name}":{{"dtype":"F32","shape":[{rows},{cols}],"data_offsets":[{at},{end}]}}"#
            ));
            at = end;
        }
        std::fs::write(
            &path,
            safetensors(&format!("{{{}}}", header.join(",")), &vec![0; at]),
        )
        .unwrap();
        chain(&Adapter::from_peft(&folder).expect_err("refused"))
    };
    let (a, b) = (
        format!("{prefix}.lora_A.weight"),
        format!("{prefix}.lora_B.weight"),
    );
    let text = file(&[(&a, [2, 8])]);
    assert!(
        text.contains("up_proj.lora_A") && text.contains("not `model.layers.0.mlp.up_proj.lora_B"),
        "{text}"
    );
    let text = file(&[(&b, [8, 2])]);
    assert!(
        text.contains("not `model.layers.0.mlp.up_proj.lora_A"),
        "{text}"
    );
    let text = file(&[(&a, [2, 8]), (&b, [8, 3])]);
    assert!(
        text.contains("up_proj.lora_B") && text.contains("rank 3; expected 2"),
        "{text}"
    );
    let text = file(&[(&a, [3, 8]), (&b, [8, 3])]);
    assert!(text.contains("rank 3; expected 2"), "{text}");
    for stray in [
        "model.layers.0.mlp.up_proj.lora_A.weight".to_string(),
        format!("{prefix}.lora_magnitude_vector.weight"),
        "base_model.model.model.embed_tokens.lora_embedding_A".to_string(),
        "base_model.model.lm_head.weight".to_string(),
        format!("{prefix}.lora_A.other.weight"),
    ] {
        let text = file(&[(&a, [2, 8]), (&b, [8, 2]), (&stray, [2, 8])]);
        assert!(text.contains(&format!("`{stray}`")), "{text}");
    }
    assert!(file(&[]).contains("no low-rank matrices"));
    std::fs::write(folder.join("adapter_config.json"), "{").unwrap();
    let error = Adapter::from_peft(&folder).expect_err("no JSON");
    assert!(matches!(error, AdapterError::Json { .. }), "{error}");
    let error = Adapter::from_peft(dir.join("nowhere")).expect_err("nothing there");
    assert!(matches!(error, AdapterError::File(_)), "{error}");
}

#[test]
fn damaged_gguf_files_are_refused_by_name() {
    let dir = temp_dir("adapters-damaged-gguf");
    let config = model(FOLDER).decoder_spec().unwrap();
    let path = dir.join("own.gguf");
    adapter(&config, "own", 2, 0.1)
        .write_gguf(&path, &config)
        .unwrap();
    let whole = std::fs::read(&path).unwrap();
    for len in [1, 10, 100, whole.len() / 2, whole.len() - 1000] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = Adapter::from_gguf(&path, &config).expect_err("cut");
        assert!(matches!(error, AdapterError::Gguf { .. }), "{len}: {error}");
    }
    let good = || {
        GgufWriter::default()
            .str("general.type", "adapter")
            .str("general.architecture", "llama")
            .str("adapter.type", "lora")
            .f32("adapter.lora.alpha", 0.0)
    };
    let read = |file: GgufWriter| {
        std::fs::write(&path, file.bytes()).unwrap();
        Adapter::from_gguf(&path, &config)
    };
    let text = |file| chain(&read(file).expect_err("refused"));
    let (a, b) = ("blk.0.ffn_up.weight.lora_a", "blk.0.ffn_up.weight.lora_b");
    let matrix = |file: GgufWriter, name: &str, dims: [u64; 2]| {
        file.tensor(name, &dims, 0, &vec![0; (dims[0] * dims[1] * 4) as usize])
    };
    let both = |file| matrix(matrix(file, a, [256, 2]), b, [2, 768]);
    let sound = read(both(good())).unwrap();
    assert_eq!(
        sound.modules()["model.layers.0.mlp.up_proj"].scale(),
        1.0,
        "no alpha"
    );
    assert!(text(matrix(good(), a, [256, 2])).contains(&format!("not `{b}`")));
    assert!(
        text(matrix(matrix(good(), a, [2, 256]), b, [2, 768])).contains(b),
        "transposed"
    );
    let odd = matrix(matrix(good(), a, [128, 2]), b, [2, 768]);
    assert!(text(odd).contains(a), "another base");
    let text_of = |name: &str| text(matrix(both(good()), name, [2, 2]));
    assert!(text_of("blk.9.ffn_up.weight.lora_a").contains("blk.9.ffn_up.weight"));
    assert!(text_of("output_norm.weight").contains("`output_norm.weight`"));
    assert!(text_of("token_embd.weight.lora_a").contains("token_embd.weight"));
    let packed = good().tensor(a, &[32, 2], 8, &[0; 68]);
    assert!(text(packed).contains(a));
    assert!(text(good()).contains("no low-rank matrices"));
    let nan = GgufWriter {
        entries: good().entries[..3].to_vec(),
        ..GgufWriter::default()
    };
    assert!(text(both(nan.clone())).contains("adapter.lora.alpha"));
    assert!(text(both(nan.f32("adapter.lora.alpha", f32::NAN))).contains("adapter.lora.alpha"));
    let model_file = GgufWriter::default().str("general.type", "model");
    assert!(text(both(model_file)).contains("general.type"));
    let alora = good().i32s("adapter.alora.invocation_tokens", &[1]);
    assert!(text(both(alora)).contains("invocation_tokens"));
}
