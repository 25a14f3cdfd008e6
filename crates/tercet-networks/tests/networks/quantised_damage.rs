//! Tests that damaged tensors of quantized weights are errors with the name of the weight and the
//! damage, and that every format in `tests/data/quantised` survives each of them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tercet_files::{MappedFile, ModelWeight, SafeTensors};
use tercet_networks::{HfFolder, Weights};

/// A tensor of a stored file: dtype, shape and bytes.
type StoredTensor = (String, Value, Vec<u8>);

/// The stored tensors of a folder's copy, to be changed.
struct Damage {
    dir: PathBuf,
    config: Value,
    tensors: Vec<StoredTensor>,
}

impl Damage {
    fn of(folder: &str, name: &str) -> Damage {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/quantised");
        let from = root.join(folder);
        let config = fs::read(from.join("config.json")).unwrap();
        let config = serde_json::from_slice(&config).unwrap();
        let bytes = fs::read(from.join("model.safetensors")).unwrap();
        let file = SafeTensors::parse(MappedFile::from_vec(bytes)).unwrap();
        let tensors = file.tensors().iter().map(|info| {
            let header = json!({"dtype": info.dtype().name(), "shape": info.shape()});
            (info.name().to_string(), header, file.data(info).to_vec())
        });
        let id = std::process::id();
        Damage {
            dir: std::env::temp_dir().join(format!("tercet-damage-{id}-{folder}-{name}")),
            config,
            tensors: tensors.collect(),
        }
    }

    fn tensor(&mut self, name: &str) -> &mut StoredTensor {
        let found = self.tensors.iter_mut().find(|(own, ..)| own == name);
        found.unwrap_or_else(|| panic!("no {name}"))
    }

    fn replace(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>) {
        let found = self.tensor(name);
        (found.1, found.2) = (json!({"dtype": dtype, "shape": shape}), bytes);
    }

    fn remove(&mut self, name: &str) {
        self.tensor(name);
        self.tensors.retain(|(own, ..)| own != name);
    }

    /// The result of reading a weight from the folder with these tensors.
    fn read(&self, weight: &str) -> Result<ModelWeight, String> {
        fs::create_dir_all(&self.dir).unwrap();
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, info, bytes) in &self.tensors {
            let mut info = info.clone();
            info["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
            header.insert(name.clone(), info);
            data.extend(bytes);
        }
        let header = Value::Object(header).to_string();
        let len = (header.len() as u64).to_le_bytes();
        let file = [&len[..], header.as_bytes(), &data].concat();
        fs::write(self.dir.join("model.safetensors"), file).unwrap();
        fs::write(self.dir.join("config.json"), self.config.to_string()).unwrap();
        let opened = HfFolder::open(&self.dir).map_err(|e| e.to_string());
        let read = opened.and_then(|opened| {
            let weights = Weights::Hf(opened.weights().clone());
            weights.get(weight).map_err(|e| e.to_string())
        });
        fs::remove_dir_all(&self.dir).unwrap();
        read
    }

    fn refused(&self, module: &str, about: &str) {
        let error = self
            .read(&format!("{module}.weight"))
            .map(|w| w.shape().to_vec());
        let error = error.expect_err("the weight is damaged");
        assert!(
            error.contains(module) && error.contains(about),
            "{about}: {error}"
        );
    }
}

const STATE: &str = "nf4_nested.weight.quant_state.bitsandbytes__nf4";

/// The damaged 4-bit weight with another value in its JSON object.
fn state_with(key: &str, value: Value) -> Damage {
    let mut damage = Damage::of("bitsandbytes", key);
    let mut state: Value = serde_json::from_slice(&damage.tensor(STATE).2).unwrap();
    state[key] = value;
    let bytes = state.to_string().into_bytes();
    damage.replace(STATE, "U8", &[bytes.len()], bytes);
    damage
}

#[test]
fn damaged_states_of_bitsandbytes_are_refused() {
    for (key, value, about) in [
        ("blocksize", json!(0), "blocksize"),
        ("blocksize", json!(63), "blocksize"),
        ("blocksize", json!(1u64 << 62), "blocksize"),
        ("blocksize", json!(128), "absmax"),
        ("blocksize", json!(-64), "JSON"),
        ("nested_blocksize", json!(0), "nested_blocksize"),
        ("nested_blocksize", json!(null), "nested_blocksize"),
        ("nested_offset", json!(null), "nested_offset"),
        ("nested_offset", json!(1e300), "not finite"),
        ("dtype", json!("float8"), "float8"),
        ("dtype", json!(null), "JSON"),
        ("quant_type", json!("fp4"), "quant_type"),
        ("shape", json!([16, 127]), "shape"),
        ("shape", json!([1u64 << 40, 1u64 << 40]), "shape"),
        ("shape", json!([0, 128]), "shape"),
        ("shape", json!(null), "JSON"),
    ] {
        state_with(key, value).refused("nf4_nested", about);
    }
    let mut damage = Damage::of("bitsandbytes", "json");
    damage.replace(STATE, "U8", &[3], b"{\"a".to_vec());
    damage.refused("nf4_nested", "JSON");
}

#[test]
fn missing_tensors_are_named() {
    for (folder, module, part) in [
        (
            "bitsandbytes",
            "nf4_nested",
            "weight.quant_state.bitsandbytes__nf4",
        ),
        ("bitsandbytes", "nf4_nested", "weight.absmax"),
        ("bitsandbytes", "nf4_nested", "weight.quant_map"),
        ("bitsandbytes", "nf4_nested", "weight.nested_absmax"),
        ("bitsandbytes", "nf4_nested", "weight.nested_quant_map"),
        ("bitsandbytes", "int8", "SCB"),
        ("hqq", "row", "scale"),
        ("hqq", "row", "zero"),
        ("hqq", "row", "shape"),
        ("hqq", "row", "axis"),
        ("hqq", "row", "group_size"),
        ("gptq4", "ordered", "qzeros"),
        ("gptq4", "ordered", "scales"),
        ("packed4", "bf16", "weight_zero_point"),
        ("packed4", "bf16", "weight_scale"),
        ("bytes", "channel", "weight_zero_point"),
    ] {
        let mut damage = Damage::of(folder, part);
        damage.remove(&format!("{module}.{part}"));
        damage.refused(module, part);
    }
}

#[test]
fn tensors_of_other_sizes_are_refused() {
    for (folder, name, dtype, shape, about) in [
        ("bitsandbytes", "nf4.weight", "U8", &[100, 1][..], "weight"),
        ("bitsandbytes", "nf4.weight.absmax", "F32", &[31], "absmax"),
        (
            "bitsandbytes",
            "nf4.weight.quant_map",
            "F32",
            &[15],
            "quant_map",
        ),
        ("bitsandbytes", "int8.SCB", "F32", &[15], "SCB"),
        ("bitsandbytes", "int8.weight", "I8", &[2048], "matrix"),
        ("hqq", "row.W_q", "U8", &[8, 100], "W_q"),
        ("hqq", "row.scale", "F16", &[15, 1], "scale"),
        ("hqq", "row.zero", "F16", &[3], "zero"),
        ("hqq", "row.shape", "I64", &[3], "shape"),
        ("gptq4", "ordered.g_idx", "I32", &[7], "g_idx"),
        ("gptq4", "ordered.qzeros", "I32", &[4, 3], "qzeros"),
        ("gptq3", "without_index.qweight", "I32", &[7, 32], "scales"),
        (
            "packed4",
            "bf16.weight_zero_point",
            "I32",
            &[2, 4],
            "weight_zero_point",
        ),
        (
            "packed4",
            "bf16.weight_packed",
            "I32",
            &[24, 15],
            "weight_packed",
        ),
        (
            "packed4",
            "bf16.weight_packed",
            "I32",
            &[0, 15],
            "weight_packed",
        ),
        ("packed4", "bf16.weight_shape", "I64", &[2], "weight_shape"),
        (
            "packed4_order",
            "ordered.weight_g_idx",
            "I32",
            &[64],
            "weight_g_idx",
        ),
        (
            "tiles",
            "block.weight_scale",
            "BF16",
            &[2, 4],
            "weight_scale",
        ),
    ] {
        let mut damage = Damage::of(folder, name);
        let bits: usize = dtype
            .trim_start_matches(char::is_alphabetic)
            .parse()
            .unwrap();
        let len = shape.iter().product::<usize>() * bits / 8;
        damage.replace(name, dtype, shape, vec![0; len]);
        let (module, _) = name.split_once('.').unwrap();
        damage.refused(module, about);
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let i32s = |value: i32| value.to_le_bytes().to_vec();
    for (name, dtype, bytes, about) in [
        ("row.group_size", "I32", i32s(0), "group_size"),
        ("row.group_size", "I32", i32s(-1), "group_size"),
        ("row.group_size", "I32", i32s(100), "group_size"),
        ("row.group_size", "I32", i32s(i32::MAX), "group_size"),
        ("row.axis", "I32", i32s(2), "axis"),
        ("row.quant_zero", "U8", vec![1], "quant_zero"),
        ("row.packing", "U8", b"4bit_xy".to_vec(), "packing"),
        (
            "row.compute_dtype",
            "U8",
            b"torch.int8".to_vec(),
            "compute_dtype",
        ),
        ("row.shape", "I64", vec![0xff; 16], "shape"),
        ("row.shape", "I64", [0x7f; 16].to_vec(), "shape"),
    ] {
        let mut damage = Damage::of("hqq", name);
        let size = dtype.trim_start_matches(char::is_alphabetic);
        let len = bytes.len() * 8 / size.parse::<usize>().unwrap();
        let shape = if len == 1 { vec![] } else { vec![len] };
        damage.replace(name, dtype, &shape, bytes);
        damage.refused("row", about);
    }
    let mut damage = Damage::of("bitsandbytes", "format");
    damage.tensor("int8.weight_format").2 = vec![3];
    damage.refused("int8", "weight_format");
    let mut damage = Damage::of("gptq4", "index");
    damage.tensor("ordered.g_idx").2[..4].copy_from_slice(&(-2i32).to_le_bytes());
    damage.refused("ordered", "g_idx");
}

/// Whatever a tensor's bytes are, the weight is read or refused.
#[test]
fn any_bytes_of_any_tensor_are_read_or_refused() {
    for folder in ["bitsandbytes", "hqq", "gptq3", "packed3", "packed4_order"] {
        let whole = Damage::of(folder, "bytes");
        for at in 0..whole.tensors.len() {
            let name = whole.tensors[at].0.clone();
            let (module, _) = name.split_once('.').unwrap();
            for byte in [0, 0x7f, 0xff] {
                let mut damage = Damage::of(folder, "bytes");
                damage.tensors[at].2.fill(byte);
                if let Err(error) = damage.read(&format!("{module}.weight")) {
                    assert!(error.contains(module), "{name}: {error}");
                }
            }
        }
    }
}
