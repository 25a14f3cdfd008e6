//! Tests of the safetensors reader: every error by name, truncation, random damage, round trips.

use crate::common::{data, safetensors};
use proptest::prelude::*;
use tercet_files::{MappedFile, SafeDtype, SafeTensors, SafeTensorsError};

const HEADER: &str = r#"{"__metadata__":{"format":"pt"},
    "w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},
    "empty":{"dtype":"F32","shape":[0,5],"data_offsets":[12,12]},
    "s":{"dtype":"I64","shape":[],"data_offsets":[12,20]}}"#;

fn parse(bytes: Vec<u8>) -> Result<SafeTensors, SafeTensorsError> {
    SafeTensors::parse(MappedFile::from_vec(bytes))
}

fn small() -> Vec<u8> {
    safetensors(HEADER, &(0..20).collect::<Vec<u8>>())
}

#[test]
fn tensors_and_metadata_read_back() {
    let file = parse(small()).unwrap();
    let names: Vec<_> = file.tensors().iter().map(|t| t.name()).collect();
    assert_eq!(names, ["empty", "s", "w"]);
    let w = file.tensor("w").unwrap();
    assert_eq!((w.dtype(), w.shape()), (SafeDtype::F16, &[2, 3][..]));
    assert_eq!(w.element_count(), 6);
    assert_eq!(file.data(w), (0..12).collect::<Vec<u8>>());
    assert_eq!(
        file.data(file.tensor("s").unwrap()),
        (12..20).collect::<Vec<u8>>()
    );
    assert!(file.data(file.tensor("empty").unwrap()).is_empty());
    assert_eq!(file.metadata()["format"], "pt");
    assert_eq!(
        file.tensor("x").unwrap_err().to_string(),
        "the file has no tensor `x`"
    );
}

/// Asserts that a file with this header and number of data bytes gives this error.
macro_rules! refused {
    ($header:expr, $len:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error = parse(safetensors($header, &[0; $len])).unwrap_err();
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        error.to_string()
    }};
}

fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

#[test]
fn bad_headers_are_refused() {
    use SafeTensorsError::*;
    assert!(matches!(parse(vec![0; 7]), Err(TooShort { file_len: 7 })));
    for len in [11_u64, 1 << 40, u64::MAX] {
        let bytes = [&len.to_le_bytes()[..], b"{}        "].concat();
        assert!(matches!(parse(bytes), Err(HeaderTooLong { max: 10, .. })));
    }
    refused!("", 0, BadHeader { offset: 8, .. });
    refused!(" {}", 0, BadHeader { offset: 8, .. });
    refused!("[]", 0, BadHeader { offset: 8, .. });
    refused!("{} x", 0, BadHeader { offset: 11, .. });
    let message = refused!(r#"{"t":{"dtype":3}}"#, 0, BadHeader { offset, .. } if *offset > 15);
    assert!(message.contains("expected a string"), "{message}");
    refused!(r#"{"t":{"dtype":"F32","shape":[1]}}"#, 4, BadHeader { .. });
    refused!(&one("F32", "[-1]", "[0,4]"), 4, BadHeader { .. });
    refused!(&one("F32", "[1.5]", "[0,4]"), 4, BadHeader { .. });
    refused!(
        &one("F32", "[18446744073709551616]", "[0,4]"),
        4,
        BadHeader { .. }
    );
    refused!(&one("F32", "[1]", "[0,4,5]"), 4, BadHeader { .. });
    refused!(
        r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1}}"#,
        1,
        BadHeader { .. }
    );
    refused!(
        r#"{"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
        1,
        BadHeader { .. }
    );
    refused!(
        r#"{"__metadata__":{},"__metadata__":{}}"#,
        0,
        BadHeader { .. }
    );
    refused!(r#"{"__metadata__":{"a":1}}"#, 0, BadHeader { .. });
    let deep = format!(r#"{{"t":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    refused!(&deep, 0, BadHeader { .. });
    let deep = one(
        "F32",
        &format!("{}{}", "[".repeat(9_999), "]".repeat(9_999)),
        "[0,0]",
    );
    refused!(&deep, 0, BadHeader { .. });
    let bytes = [&3_u64.to_le_bytes()[..], b"{\"\xFF"].concat();
    assert!(matches!(parse(bytes), Err(BadHeader { offset: 10, .. })));
}

#[test]
fn bad_tensors_are_refused() {
    use SafeTensorsError::*;
    refused!(&one("F12", "[1]", "[0,4]"), 4, UnknownDtype { found, .. } if found == "F12");
    refused!(
        &one("F32", "[1]", "[4,0]"),
        4,
        BadOffsets {
            begin: 4,
            end: 0,
            ..
        }
    );
    refused!(
        &one("F32", "[1]", "[0,5]"),
        4,
        BadOffsets { data_len: 4, .. }
    );
    refused!(
        &one("F32", "[1]", "[0,18446744073709551615]"),
        4,
        BadOffsets { .. }
    );
    refused!(
        &one("F32", "[2]", "[0,4]"),
        4,
        WrongLength {
            need: 8,
            found: 4,
            ..
        }
    );
    refused!(&one("F32", "[0]", "[0,4]"), 4, WrongLength { need: 0, .. });
    refused!(&one("F4", "[3]", "[0,1]"), 1, PartialByte { .. });
    for shape in [
        "[18446744073709551615]",
        "[4294967296,4294967296]",
        "[0,18446744073709551615,2]",
    ] {
        refused!(&one("F32", shape, "[0,4]"), 4, ShapeOverflow { .. });
    }
    let long = format!("[2{}]", ",1".repeat(100_000));
    let message = refused!(&one("F32", &long, "[0,4]"), 4, WrongLength { need: 8, .. });
    assert!(message.len() < 400);
}

#[test]
fn tensors_that_do_not_tile_their_file_are_refused() {
    use SafeTensorsError::*;
    let two = |a: &str, ra: &str, b: &str, rb: &str| {
        format!(
            r#"{{"{a}":{{"dtype":"U8","shape":[2],"data_offsets":{ra}}},
                "{b}":{{"dtype":"U8","shape":[2],"data_offsets":{rb}}}}}"#
        )
    };
    refused!(&two("a", "[0,2]", "a", "[2,4]"), 4, DuplicateTensor { tensor } if tensor == "a");
    refused!(
        &two("a", "[0,2]", "b", "[1,3]"),
        3,
        Overlap {
            second_begin: 1,
            ..
        }
    );
    refused!(
        &two("a", "[0,2]", "b", "[0,2]"),
        2,
        Overlap {
            second_begin: 0,
            ..
        }
    );
    refused!(
        &two("a", "[0,2]", "b", "[3,5]"),
        5,
        Hole {
            begin: 2,
            end: 3,
            ..
        }
    );
    refused!(
        &two("a", "[1,3]", "b", "[3,5]"),
        5,
        Hole {
            begin: 0,
            end: 1,
            ..
        }
    );
    let message = refused!(
        &two("a", "[0,2]", "b", "[2,4]"),
        9,
        Hole {
            begin: 4,
            end: 9,
            ..
        }
    );
    assert!(message.contains("the end of the file"), "{message}");
    refused!(
        r#"{"__metadata__":{"k":"1","k":"2"}}"#,
        0,
        DuplicateMetadata { .. }
    );
}

#[test]
fn truncation_at_every_byte_is_an_error() {
    let bytes = small();
    for len in 0..bytes.len() {
        parse(bytes[..len].to_vec()).expect_err("a truncated file");
    }
}

#[test]
fn dtype_names_are_unique() {
    for (index, dtype) in SafeDtype::ALL.iter().enumerate() {
        assert!(
            SafeDtype::ALL[..index]
                .iter()
                .all(|other| other.name() != dtype.name())
        );
    }
}

#[test]
fn the_real_file_opens() {
    let file = SafeTensors::open(data("tiny-rust-llama/model.safetensors")).unwrap();
    let embedding = file.tensor("model.embed_tokens.weight").unwrap();
    assert_eq!(
        (embedding.dtype(), embedding.shape()),
        (SafeDtype::F16, &[2048, 256][..])
    );
    let parameters: usize = file.tensors().iter().map(|t| t.element_count()).sum();
    assert_eq!(parameters, 3_541_248);
    let bytes: usize = file.tensors().iter().map(|t| file.data(t).len()).sum();
    assert_eq!(bytes, 2 * parameters);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random damage gives an error or a valid file.
    #[test]
    fn damaged_files_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = small();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let len = bytes.len();
        if let Ok(file) = parse(bytes) {
            let total: usize = file.tensors().iter().map(|t| file.data(t).len()).sum();
            prop_assert!(total <= len);
        }
    }

    /// A written file reads back identically, for any alignment of the data.
    #[test]
    fn round_trip(sizes in prop::collection::vec(0_usize..9, 0..6), padding in 0_usize..8) {
        let mut data = Vec::new();
        let entries: Vec<String> = sizes.iter().enumerate().map(|(index, size)| {
            let begin = data.len();
            data.extend(std::iter::repeat_n(index as u8, 2 * size));
            format!(
                r#""t{index}":{{"dtype":"BF16","shape":[{size}],"data_offsets":[{begin},{}]}}"#,
                data.len()
            )
        }).collect();
        let header = format!("{{{}}}{}", entries.join(","), " ".repeat(padding));
        let file = parse(safetensors(&header, &data)).unwrap();
        for (index, size) in sizes.iter().enumerate() {
            let info = file.tensor(&format!("t{index}")).unwrap();
            prop_assert_eq!(file.data(info), vec![index as u8; 2 * size]);
        }
    }
}
