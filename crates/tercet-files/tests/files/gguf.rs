//! Tests of the GGUF reader: values, tensors, every error by name, truncation, and random damage.

use crate::common::{GgufWriter, data, small_gguf};
use proptest::prelude::*;
use tercet_files::gguf::{GgmlType, Gguf, GgufError, GgufValue, GgufValueType};
use tercet_files::{FileError, MappedFile};

pub(super) fn parse(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    Gguf::parse(MappedFile::from_vec(bytes))
}

/// Reads everything in a file; a panic would occur here.
fn walk(gguf: &Gguf) -> usize {
    let values: usize = gguf
        .metadata()
        .iter()
        .map(|(key, value)| key.len() + value.to_string().len())
        .sum();
    let tensors: usize = gguf
        .tensors()
        .iter()
        .map(|info| gguf.data(info).len() + info.shape().len() + info.name().len())
        .sum();
    values + tensors
}

#[test]
fn every_value_type_reads_back() {
    for version in [2, 3] {
        let writer = GgufWriter {
            version,
            ..small_gguf()
        };
        let gguf = parse(writer.bytes()).unwrap();
        assert_eq!(gguf.version(), version);
        let meta = gguf.metadata();
        let expected = [
            ("u8", GgufValue::U8(200)),
            ("i8", GgufValue::I8(-56)),
            ("u16", GgufValue::U16(60_000)),
            ("i16", GgufValue::I16(-2)),
            ("u32", GgufValue::U32(4_000_000_000)),
            ("i32", GgufValue::I32(-7)),
            ("f32", GgufValue::F32(0.5)),
            ("bool", GgufValue::Bool(true)),
            ("string", GgufValue::String("text, \u{1F980}")),
            ("u64", GgufValue::U64(u64::MAX)),
            ("i64", GgufValue::I64(i64::MIN)),
            ("f64", GgufValue::F64(1.25)),
        ];
        for (key, value) in expected {
            assert_eq!(meta.get(key), Some(value), "{key}");
        }
        let order: Vec<_> = meta.iter().map(|(key, _)| key).collect();
        assert_eq!(order[..3], ["u8", "i8", "u16"]);
        assert_eq!(meta.len(), 15);

        let strings: Vec<_> = meta
            .get_array("strings", GgufValueType::String)
            .unwrap()
            .iter()
            .collect();
        assert_eq!(strings, ["a", "", "ccc"].map(GgufValue::String));
        let ints: Vec<_> = meta
            .get_array("i32s", GgufValueType::I32)
            .unwrap()
            .iter()
            .collect();
        assert_eq!(ints, [1, -2, 3].map(GgufValue::I32));

        let nested = meta.get_array("nested", GgufValueType::Array).unwrap();
        let inner: Vec<Vec<GgufValue<'_>>> = nested
            .iter()
            .map(|value| match value {
                GgufValue::Array(array) => array.iter().collect(),
                other => panic!("not an array: {other}"),
            })
            .collect();
        assert_eq!(inner[0], [GgufValue::I8(1), GgufValue::I8(-1)]);
        assert_eq!(inner[1], [GgufValue::String("in")]);
        assert_eq!(
            meta.get("i32s").unwrap().to_string(),
            "[1, -2, 3] (3 x i32)"
        );
    }
}

#[test]
fn tensors_read_back() {
    let gguf = parse(small_gguf().bytes()).unwrap();
    let first = gguf.tensor("first").unwrap();
    assert_eq!(first.ggml_type(), GgmlType::Q8_0);
    assert_eq!((first.dims(), first.shape()), (&[32, 2][..], vec![2, 32]));
    assert_eq!((first.element_count(), first.row_bytes()), (64, 34));
    assert_eq!(gguf.data(first), [7; 68]);
    assert_eq!(gguf.data(gguf.tensor("second").unwrap()), [9; 12]);
    assert!(gguf.has_tensor("second") && !gguf.has_tensor("third"));
    assert_eq!(
        gguf.tensor("third").unwrap_err().to_string(),
        "the file has no tensor `third`"
    );
}

#[test]
fn alignment_of_the_file_is_honoured() {
    for alignment in [1, 2, 8, 64, 4096] {
        let writer = GgufWriter {
            alignment,
            ..GgufWriter::default()
        };
        let bytes = writer
            .u32("general.alignment", alignment as u32)
            .tensor("a", &[3], 24, &[1, 2, 3])
            .tensor("b", &[2], 24, &[4, 5])
            .bytes();
        let gguf = parse(bytes).unwrap();
        assert_eq!(gguf.alignment(), alignment as u64);
        assert_eq!(gguf.data(gguf.tensor("b").unwrap()), [4, 5]);
    }
}

#[test]
fn getters_name_key_and_types() {
    let gguf = parse(small_gguf().bytes()).unwrap();
    let meta = gguf.metadata();
    assert_eq!(meta.get_u32("u16").unwrap(), 60_000);
    assert_eq!(meta.get_i64("i8").unwrap(), -56);
    assert_eq!(meta.get_f32("f64").unwrap(), 1.25);
    assert!(meta.get_bool("bool").unwrap());
    assert_eq!(meta.opt_u32("nothing").unwrap(), None);
    let messages = [
        (
            meta.get_u32("nothing").map(drop),
            "the file has no metadata key `nothing`",
        ),
        (
            meta.get_u32("string").map(drop),
            "metadata key `string` is string; expected u32",
        ),
        (
            meta.get_u32("i32").map(drop),
            "metadata key `i32` is -7, which does not fit u32",
        ),
        (
            meta.get_u32("u64").map(drop),
            "metadata key `u64` is 18446744073709551615, which does not fit u32",
        ),
        (
            meta.get_str("f32").map(drop),
            "metadata key `f32` is f32; expected string",
        ),
        (
            meta.get_f32("u8").map(drop),
            "metadata key `u8` is u8; expected f32",
        ),
        (
            meta.get_bool("u8").map(drop),
            "metadata key `u8` is u8; expected bool",
        ),
        (
            meta.get_array("u8", GgufValueType::I32).map(drop),
            "metadata key `u8` is u8; expected array",
        ),
        (
            meta.get_array("strings", GgufValueType::I32).map(drop),
            "metadata key `strings` is an array of string; expected an array of i32",
        ),
    ];
    for (result, message) in messages {
        assert_eq!(result.unwrap_err().to_string(), message);
    }
}

#[test]
fn every_type_has_its_own_id_and_name() {
    for (index, ty) in GgmlType::ALL.iter().enumerate() {
        assert_eq!(GgmlType::from_id(ty.id()), Some(*ty));
        assert_eq!(GgmlType::removed_name(ty.id()), None);
        assert!(ty.block_len() > 0 && ty.block_bytes() > 0);
        for other in &GgmlType::ALL[..index] {
            assert!(other.id() < ty.id() && other.name() != ty.name());
        }
    }
    // All ids up to the last are either in use or removed.
    let last = GgmlType::ALL.last().unwrap().id();
    for id in 0..=last {
        assert!(
            GgmlType::from_id(id).is_some() != GgmlType::removed_name(id).is_some(),
            "{id}"
        );
    }
}

#[test]
fn files_that_cannot_be_opened() {
    let dir = crate::common::temp_dir("gguf-open");
    let empty = dir.join("empty.gguf");
    std::fs::write(&empty, []).unwrap();
    assert!(matches!(
        Gguf::open(dir.join("none.gguf")),
        Err(GgufError::File(FileError::NotFound { .. }))
    ));
    assert!(matches!(
        Gguf::open(&dir),
        Err(GgufError::File(FileError::NotAFile { .. }))
    ));
    assert!(matches!(
        Gguf::open(&empty),
        Err(GgufError::File(FileError::Empty { .. }))
    ));
}

#[test]
fn real_files_open() {
    for (file, weights) in [("f16", GgmlType::F16), ("q8_0", GgmlType::Q8_0)] {
        let path = data(&format!("tiny-rust-llama/tiny-rust-llama-{file}.gguf"));
        let gguf = Gguf::open(&path).unwrap();
        let meta = gguf.metadata();
        assert_eq!(meta.get_str("general.architecture").unwrap(), "llama");
        assert_eq!(meta.get_u32("llama.block_count").unwrap(), 4);
        let merges = meta
            .get_array("tokenizer.ggml.merges", GgufValueType::String)
            .unwrap();
        assert_eq!(merges.len(), 1791);
        assert_eq!(merges.iter().count(), 1791);

        let parameters: u64 = gguf.tensors().iter().map(|t| t.element_count()).sum();
        assert_eq!(parameters, 3_541_248);
        let embedding = gguf.tensor("token_embd.weight").unwrap();
        assert_eq!(embedding.shape(), [2048, 256]);
        assert_eq!(embedding.ggml_type(), weights);
        assert_eq!(
            gguf.data(embedding).len() as u64,
            2048 * embedding.row_bytes()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// A randomly damaged file gives an error or can be read completely, in bounded memory.
    #[test]
    fn damaged_files_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = small_gguf().bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let len = bytes.len();
        if let Ok(gguf) = parse(bytes) {
            prop_assert!(walk(&gguf) <= 64 * len);
        }
    }

    /// Random bytes follow a valid start of the header.
    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300), few in 0_u8..4) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([few, 0, 0, 0, 0, 0, 0, 0, few, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(noise);
        if let Ok(gguf) = parse(bytes) {
            walk(&gguf);
        }
    }

    /// A written file reads back identically.
    #[test]
    fn round_trip(
        numbers in prop::collection::btree_map("[a-z.]{1,12}", any::<u32>(), 0..8),
        texts in prop::collection::vec(".{0,20}", 0..8),
        sizes in prop::collection::vec(0_u64..20, 0..5),
    ) {
        let mut writer = GgufWriter::default();
        for (key, value) in &numbers {
            writer = writer.u32(key, *value);
        }
        writer = writer.strs("TEXTS", &texts);
        for (index, size) in sizes.iter().enumerate() {
            let data = vec![index as u8; *size as usize];
            writer = writer.tensor(&format!("t{index}"), &[*size], 24, &data);
        }
        writer.data.push(0);
        let gguf = parse(writer.bytes()).unwrap();
        for (key, value) in &numbers {
            prop_assert_eq!(gguf.metadata().get_u32(key).unwrap(), *value);
        }
        let read: Vec<_> = gguf.metadata().get_array("TEXTS", GgufValueType::String).unwrap()
            .iter().filter_map(GgufValue::as_str).collect();
        prop_assert_eq!(read, texts);
        for (index, size) in sizes.iter().enumerate() {
            let info = gguf.tensor(&format!("t{index}")).unwrap();
            prop_assert_eq!(gguf.data(info), vec![index as u8; *size as usize]);
        }
    }
}

#[test]
fn every_type_number_is_read_or_refused_by_name() {
    // Blocks of 128 are those of `Q1_0`; other forks have numbers above 42.
    for id in (0..=300).chain([1 << 16, u32::MAX]) {
        let known = GgmlType::from_id(id);
        let (len, bytes) = known.map_or((256, 256), |ty| (ty.block_len(), ty.block_bytes()));
        let rows = 256_u64.div_ceil(len);
        let data = vec![0; usize::try_from(rows * bytes).unwrap()];
        let file = small_gguf().tensor("t", &[rows * len], id, &data);
        let parsed = parse(file.bytes());
        let Some(ty) = known else {
            let error = parsed.unwrap_err().to_string();
            assert!(error.contains(&format!("type {id} ")), "{id}: {error}");
            assert!(error.contains("quantise the model again"), "{id}: {error}");
            if let Some(removed) = GgmlType::removed_name(id) {
                assert!(error.contains(removed), "{id}: {error}");
            }
            continue;
        };
        let gguf = parsed.unwrap();
        let info = gguf.tensor("t").unwrap();
        match tercet_files::gguf_weight(&gguf, info) {
            Ok(_) => {}
            Err(e) => {
                let e = e.to_string();
                assert!(
                    e.contains(ty.name()) && e.contains("use a model file"),
                    "{id}: {e}"
                );
                // Formats of weights are all read; these are intermediate.
                let others = ["Q8_1", "Q8_K"];
                assert!(others.contains(&ty.name()), "{id}: {e}");
            }
        }
    }
}
