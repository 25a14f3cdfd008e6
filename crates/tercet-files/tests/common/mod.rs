//! Writers of small GGUF and safetensors files, valid or intentionally broken.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};

/// The folder of committed test data.
pub(crate) fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data")
        .join(path)
}

/// A new empty folder for the test of this name.
pub(crate) fn temp_dir(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).expect("removes what a run before left");
    }
    std::fs::create_dir_all(&dir).expect("makes a folder");
    dir
}

pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// Builder of a GGUF file, without any checks.
#[derive(Clone)]
pub(crate) struct GgufWriter {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) entries: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<Vec<u8>>,
    pub(crate) data: Vec<u8>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            entries: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }
}

impl GgufWriter {
    /// Adds a metadata entry with a value type and raw bytes.
    pub(crate) fn raw(mut self, key: &str, ty: u32, value: &[u8]) -> Self {
        self.entries
            .push([&string(key.as_bytes()), &ty.to_le_bytes()[..], value].concat());
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    pub(crate) fn str(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &string(value.as_bytes()))
    }

    pub(crate) fn strs<T: AsRef<str>>(self, key: &str, values: &[T]) -> Self {
        let mut bytes = [
            &8_u32.to_le_bytes()[..],
            &(values.len() as u64).to_le_bytes(),
        ]
        .concat();
        for value in values {
            bytes.extend(string(value.as_ref().as_bytes()));
        }
        self.raw(key, 9, &bytes)
    }

    pub(crate) fn i32s(self, key: &str, values: &[i32]) -> Self {
        let mut bytes = [
            &5_u32.to_le_bytes()[..],
            &(values.len() as u64).to_le_bytes(),
        ]
        .concat();
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    /// Adds a tensor's table entry with any offset, without data.
    pub(crate) fn info(mut self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let mut bytes = string(name.as_bytes());
        bytes.extend((dims.len() as u32).to_le_bytes());
        bytes.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        bytes.extend(ty.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        self.tensors.push(bytes);
        self
    }

    /// Adds a tensor with its data at the next aligned offset.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], ty: u32, data: &[u8]) -> Self {
        self.data
            .resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend(data);
        self.info(name, dims, ty, offset)
    }

    pub(crate) fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        bytes.extend(self.entries.concat());
        bytes.extend(self.tensors.concat());
        bytes
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(&self.data);
        bytes
    }
}

/// A file with a metadata value of every type and two tensors.
pub(crate) fn small_gguf() -> GgufWriter {
    let nested = [
        &9_u32.to_le_bytes()[..],
        &2_u64.to_le_bytes(),
        &1_u32.to_le_bytes(),
        &2_u64.to_le_bytes(),
        &[1, 255],
        &8_u32.to_le_bytes(),
        &1_u64.to_le_bytes(),
        &string("in".as_bytes()),
    ]
    .concat();
    GgufWriter::default()
        .raw("u8", 0, &[200])
        .raw("i8", 1, &[200])
        .raw("u16", 2, &60_000_u16.to_le_bytes())
        .raw("i16", 3, &(-2_i16).to_le_bytes())
        .u32("u32", 4_000_000_000)
        .raw("i32", 5, &(-7_i32).to_le_bytes())
        .f32("f32", 0.5)
        .bool("bool", true)
        .str("string", "text, \u{1F980}")
        .strs("strings", &["a", "", "ccc"])
        .raw("u64", 10, &u64::MAX.to_le_bytes())
        .raw("i64", 11, &i64::MIN.to_le_bytes())
        .raw("f64", 12, &1.25_f64.to_le_bytes())
        .i32s("i32s", &[1, -2, 3])
        .raw("nested", 9, &nested)
        .tensor("first", &[32, 2], 8, &[7; 68])
        .tensor("second", &[3], 0, &[9; 12])
}

/// A safetensors file with this header and data.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [string(header.as_bytes()), data.to_vec()].concat()
}
