//! Tests of every GGUF error by name.

use tercet_files::gguf::GgufError;

use super::common::{GgufWriter, small_gguf, string};
use super::gguf::parse;

/// Asserts that reading the bytes fails with an error that matches.
macro_rules! refused {
    ($bytes:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error = parse($bytes).unwrap_err();
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        error.to_string()
    }};
}

#[test]
fn beginnings_are_told_apart() {
    use GgufError::{BadMagic, BigEndian, Truncated, UnsupportedVersion};
    let start = |magic: &[u8], version: u32| [magic, &version.to_le_bytes(), &[0; 16]].concat();
    let message = refused!(start(b"lmgg", 1), BadMagic { .. });
    assert!(message.contains("older than GGUF"), "{message}");
    refused!(start(b"FUGG", 3), BadMagic { .. });
    refused!(start(b"GGUF", 3_u32.swap_bytes()), BigEndian { .. });
    for version in [0, 1, 4, u32::MAX] {
        refused!(start(b"GGUF", version), UnsupportedVersion { found } if *found == version);
    }
    refused!(
        Vec::new(),
        Truncated {
            offset: 0,
            need: 4,
            left: 0,
            ..
        }
    );
    assert!(parse(start(b"GGUF", 3)).is_ok());
}

#[test]
fn counts_are_bounded_before_anything_is_reserved() {
    use GgufError::{CountTooLarge, Truncated};
    let with_counts = |tensors: u64, keys: u64| {
        [
            &b"GGUF"[..],
            &3_u32.to_le_bytes(),
            &tensors.to_le_bytes(),
            &keys.to_le_bytes(),
            &[0; 64],
        ]
        .concat()
    };
    refused!(with_counts(u64::MAX, 0), CountTooLarge { offset: 8, .. });
    refused!(with_counts(0, u64::MAX), CountTooLarge { offset: 16, .. });
    refused!(with_counts(1 << 40, 0), CountTooLarge { .. });

    for len in [u64::MAX, 1 << 40, 5] {
        let bytes = [&8_u32.to_le_bytes()[..], &len.to_le_bytes()].concat();
        refused!(
            GgufWriter::default().raw("k", 9, &bytes).header(),
            CountTooLarge { .. }
        );
        let huge_string = len.max(64).to_le_bytes();
        refused!(
            GgufWriter::default().raw("k", 8, &huge_string).header(),
            Truncated { .. }
        );
    }
}

#[test]
fn bad_metadata_is_refused() {
    use GgufError::*;
    let writer = GgufWriter::default;
    let message = refused!(
        writer().raw("k", 8, &string(b"ab\xFF")).bytes(),
        InvalidUtf8 { bad, offset, .. } if bad - offset == 2
    );
    assert!(message.contains("the value of `k`"), "{message}");
    let mut bad_key = writer().u32("kk", 1);
    bad_key.entries[0][8] = 0xC3;
    refused!(bad_key.bytes(), InvalidUtf8 { offset: 32, .. });
    refused!(writer().u32("", 1).bytes(), EmptyName { .. });
    refused!(
        writer().raw("k", 13, &[0; 8]).bytes(),
        UnknownValueType { found: 13, .. }
    );
    refused!(
        writer().raw("k", 7, &[2]).bytes(),
        InvalidBool { found: 2, .. }
    );
    let bools = [&7_u32.to_le_bytes()[..], &3_u64.to_le_bytes(), &[0, 1, 9]].concat();
    refused!(
        writer().raw("k", 9, &bools).bytes(),
        InvalidBool { found: 9, .. }
    );
    let message = refused!(
        writer()
            .u32("same", 1)
            .u32("other", 1)
            .u32("same", 2)
            .bytes(),
        DuplicateKey { first: 32, .. }
    );
    assert!(message.contains("`same` occurs twice"), "{message}");

    let mut deep = Vec::new();
    for _ in 0..50 {
        deep.extend(9_u32.to_le_bytes());
        deep.extend(1_u64.to_le_bytes());
    }
    deep.extend([0; 64]);
    refused!(
        writer().raw("k", 9, &deep).bytes(),
        ArrayTooDeep { max: 4, .. }
    );

    for found in [0, 3, 48, 1 << 31] {
        refused!(
            writer().u32("general.alignment", found).bytes(),
            BadAlignment { .. }
        );
    }
    refused!(
        writer().str("general.alignment", "32").bytes(),
        WrongType { .. }
    );
}

#[test]
fn bad_tensors_are_refused() {
    use GgufError::*;
    let writer = GgufWriter::default;
    let with_room = |mut writer: GgufWriter| {
        writer.data = vec![0; 1024];
        writer.bytes()
    };
    refused!(with_room(writer().info("", &[1], 0, 0)), EmptyName { .. });
    refused!(
        with_room(writer().info("t", &[1; 5], 0, 0)),
        TooManyDims { found: 5, .. }
    );
    for dims in [
        &[u64::MAX][..],
        &[1 << 32, 1 << 32],
        &[0, u64::MAX, 2],
        &[1 << 62, 1, 1, 2],
        &[1 << 60],
    ] {
        refused!(
            with_room(writer().info("t", dims, 0, 0)),
            DimsOverflow { .. }
        );
    }
    refused!(
        with_room(writer().info("t", &[1], 99, 0)),
        UnknownTensorType { found: 99, .. }
    );
    let message = refused!(
        with_room(writer().info("t", &[1], 4, 0)),
        UnknownTensorType { found: 4, .. }
    );
    assert!(message.contains("was Q4_2"), "{message}");
    refused!(
        with_room(writer().info("t", &[33], 8, 0)),
        PartialBlock { row: 33, .. }
    );
    refused!(
        with_room(writer().info("t", &[4], 0, 16)),
        UnalignedTensor { relative: 16, .. }
    );
    refused!(
        with_room(writer().info("t", &[257], 0, 0)),
        TensorOutOfFile { bytes: 1028, .. }
    );
    refused!(
        with_room(writer().info("t", &[1], 0, u64::MAX - 31)),
        TensorOutOfFile { .. }
    );
    refused!(
        with_room(writer().info("t", &[8], 0, 0).info("t", &[8], 0, 32)),
        DuplicateTensor { .. }
    );
    refused!(
        with_room(writer().info("b", &[8], 0, 32).info("a", &[9], 0, 0)),
        OverlappingTensors { .. }
    );
    refused!(
        with_room(writer().info("b", &[8], 0, 0).info("a", &[8], 0, 0)),
        OverlappingTensors { .. }
    );
    // Valid but unusual: scalars, empty tensors (which share no bytes), gaps.
    let odd = writer()
        .info("e", &[0, 7], 0, 0)
        .info("s", &[], 0, 0)
        .info("g", &[1], 0, 512);
    let gguf = parse(with_room(odd)).unwrap();
    assert_eq!(gguf.tensor("e").unwrap().shape(), [7, 0]);
    assert_eq!(gguf.data(gguf.tensor("e").unwrap()).len(), 0);
    assert_eq!(gguf.data(gguf.tensor("s").unwrap()).len(), 4);
}

#[test]
fn names_in_messages_are_short_and_printable() {
    let name = "\u{1b}[31m".to_owned() + &"x".repeat(100_000);
    let message = refused!(
        GgufWriter::default().info(&name, &[1; 9], 0, 0).bytes(),
        GgufError::TooManyDims { .. }
    );
    assert!(
        message.len() < 400 && !message.contains('\u{1b}'),
        "{message}"
    );
}

#[test]
fn truncation_at_every_byte_is_an_error() {
    let bytes = small_gguf().bytes();
    for len in 0..bytes.len() {
        let error = parse(bytes[..len].to_vec()).expect_err("a truncated file");
        assert!(
            matches!(
                error,
                GgufError::Truncated { .. }
                    | GgufError::CountTooLarge { .. }
                    | GgufError::TensorOutOfFile { .. }
            ),
            "at {len}: {error:?}"
        );
    }
}
