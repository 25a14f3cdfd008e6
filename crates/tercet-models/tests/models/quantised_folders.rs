//! Tests that inconsistent folders of quantized weights are errors with the name of the weight.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tercet_models::{DecoderOptions, ModelFiles};

const Q_PROJ: &str = "model.layers.0.self_attn.q_proj";

/// A copy of a tiny model that is removed on drop.
struct Copy(PathBuf);

impl Copy {
    fn of(model: &str, name: &str) -> Copy {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/decoders");
        let id = std::process::id();
        let dir = std::env::temp_dir().join(format!("tercet-quantised-{id}-{name}"));
        fs::create_dir_all(&dir).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(data.join(model).join(file), dir.join(file)).unwrap();
        }
        Copy(dir)
    }

    /// Calls `change` with the header of the weights file and the bytes after it.
    fn change(&self, change: impl FnOnce(&mut Value, &mut [u8])) {
        let path = self.0.join("model.safetensors");
        let file = fs::read(&path).unwrap();
        let (len, rest) = file.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
        let mut header: Value = serde_json::from_slice(header).unwrap();
        let mut data = data.to_vec();
        change(&mut header, &mut data);
        let header = header.to_string();
        let len = (header.len() as u64).to_le_bytes();
        fs::write(path, [&len[..], header.as_bytes(), &data].concat()).unwrap();
    }

    fn refused(&self) -> String {
        let error = match ModelFiles::open(&self.0) {
            Ok(files) => files.decoder(DecoderOptions::new).err().map(|e| chain(&e)),
            Err(error) => Some(chain(&error)),
        };
        error.expect("the model is damaged")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let rest = error.source().map(chain).unwrap_or_default();
    format!("{error}: {rest}")
}

fn at(header: &Value, part: &str) -> usize {
    let offsets = &header[format!("{Q_PROJ}.{part}")]["data_offsets"];
    offsets[0].as_u64().expect("the tensor is there") as usize
}

#[test]
fn columns_of_unknown_groups_are_refused() {
    let copy = Copy::of("gptq-a", "order");
    copy.change(|header, data| data[at(header, "g_idx")] = 9);
    let said = copy.refused();
    assert!(said.contains(Q_PROJ) && said.contains("g_idx"), "{said}");
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let copy = Copy::of("gptq-a", "nan");
    copy.change(|header, data| {
        let at = at(header, "scales");
        data[at..at + 2].copy_from_slice(&0x7e00_u16.to_le_bytes());
    });
    let said = copy.refused();
    assert!(
        said.contains(Q_PROJ) && said.contains("not finite"),
        "{said}"
    );
}

#[test]
fn parts_of_other_sizes_are_refused() {
    for (model, part, shape) in [
        ("gptq-a", "qzeros", json!([16, 4])),
        ("gptq-a", "scales", json!([128, 4])),
        ("awq-b", "scales", json!([128, 4])),
        ("packed-b", "weight_scale", json!([4, 128])),
        ("nvfp4-b", "weight_scale", json!([8, 128])),
        ("nvfp4-b", "weight_packed", json!([8192])),
    ] {
        let copy = Copy::of(model, &format!("{model}-{part}"));
        copy.change(|header, _| header[format!("{Q_PROJ}.{part}")]["shape"] = shape);
        let said = copy.refused();
        assert!(said.contains(Q_PROJ), "{model} {part}: {said}");
    }
}

#[test]
fn a_part_that_is_missing_is_named() {
    for (model, part) in [
        ("gptq-a", "qzeros"),
        ("awq-b", "scales"),
        ("int8-b", "weight_scale"),
        ("nvfp4-b", "weight_global_scale"),
        ("mxfp4-b", "weight_scale"),
    ] {
        let copy = Copy::of(model, &format!("{model}-without"));
        // Rename the tensor to an ignored one, so that its bytes still belong to a tensor.
        copy.change(|header, _| {
            let tensors = header.as_object_mut().unwrap();
            let tensor = tensors.remove(&format!("{Q_PROJ}.{part}")).expect("there");
            let unread = "model.layers.0.self_attn.rotary_emb.inv_freq";
            tensors.insert(unread.to_string(), tensor);
        });
        let said = copy.refused();
        assert!(said.contains(Q_PROJ), "{model} {part}: {said}");
    }
}

#[test]
fn factors_of_zero_are_refused() {
    let copy = Copy::of("nvfp4-b", "zero");
    copy.change(|header, data| {
        let at = at(header, "weight_global_scale");
        data[at..at + 4].fill(0);
    });
    let said = copy.refused();
    assert!(said.contains(Q_PROJ), "{said}");
}
