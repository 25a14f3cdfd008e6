//! Files made by NumPy (`tests/data/npy/make.py`), round trips, and hostile bytes.

use std::fs;
use std::io::Cursor;

use super::*;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/npy")
        .join(name)
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tercet-npy-{}-{name}", std::process::id()))
}

/// 0 to 5 as `dtype`.
fn counting(dtype: NpyDtype) -> Vec<u8> {
    let elements = 0..6_u8;
    match dtype {
        NpyDtype::Bool => elements.map(|x| x % 2).collect(),
        NpyDtype::I8 | NpyDtype::U8 => elements.collect(),
        NpyDtype::F16 => [0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500_u16]
            .map(u16::to_le_bytes)
            .concat(),
        NpyDtype::F32 => elements.flat_map(|x| f32::from(x).to_le_bytes()).collect(),
        NpyDtype::I32 => elements.flat_map(|x| i32::from(x).to_le_bytes()).collect(),
        NpyDtype::U32 => elements.flat_map(|x| u32::from(x).to_le_bytes()).collect(),
        NpyDtype::F64 => elements.flat_map(|x| f64::from(x).to_le_bytes()).collect(),
        NpyDtype::I64 => elements.flat_map(|x| i64::from(x).to_le_bytes()).collect(),
    }
}

fn matrix(dtype: NpyDtype) -> NpyArray<'static> {
    NpyArray::new(dtype, vec![2, 3], counting(dtype)).unwrap()
}

fn parse(bytes: &[u8]) -> Result<NpyArray<'static>, FormatError> {
    read(&mut &bytes[..], bytes.len() as u64, MAX_ARRAY_BYTES)
}

/// A version 1.0 file with this dictionary and this data.
fn raw(dictionary: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(dictionary.len()).unwrap().to_le_bytes());
    bytes.extend(dictionary.as_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn numpys_files_are_read_and_written_byte_for_byte() {
    let numpy_names = [
        "bool", "int8", "uint8", "float16", "float32", "int32", "uint32", "float64", "int64",
    ];
    for (dtype, name) in NpyDtype::ALL.into_iter().zip(numpy_names) {
        let path = data(&format!("c_{name}.npy"));
        assert_eq!(read_npy(&path).unwrap(), matrix(dtype), "{name}");
        let mut written = Vec::new();
        write_npy(&mut written, &matrix(dtype)).unwrap();
        assert_eq!(written, fs::read(&path).unwrap(), "{name}");
    }
}

#[test]
fn big_endian_files_are_converted() {
    let files = [
        ("float16", NpyDtype::F16),
        ("float32", NpyDtype::F32),
        ("int32", NpyDtype::I32),
        ("float64", NpyDtype::F64),
    ];
    for (name, dtype) in files {
        let array = read_npy(&data(&format!("big_{name}.npy"))).unwrap();
        assert_eq!(array, matrix(dtype), "{name}");
    }
}

#[test]
fn fortran_order_is_transposed() {
    let array = read_npy(&data("fortran.npy")).unwrap();
    let expected = (0..24_u8)
        .flat_map(|x| f32::from(x).to_le_bytes())
        .collect::<Vec<u8>>();
    assert_eq!(
        array,
        NpyArray::new(NpyDtype::F32, vec![2, 3, 4], expected).unwrap()
    );
}

#[test]
fn scalars_vectors_and_empty_arrays_keep_their_shape() {
    let scalar = read_npy(&data("scalar.npy")).unwrap();
    assert_eq!(
        scalar.into_parts(),
        (NpyDtype::F32, vec![], 2.5_f32.to_le_bytes().to_vec())
    );
    let vector = read_npy(&data("vector.npy")).unwrap();
    assert_eq!((vector.dtype, &vector.shape[..]), (NpyDtype::I32, &[3][..]));
    let empty = read_npy(&data("empty.npy")).unwrap();
    assert_eq!(
        (&empty.shape[..], &empty.bytes[..]),
        (&[2, 0, 3][..], &[][..])
    );
}

#[test]
fn later_versions_differ_in_the_header_only() {
    for name in ["version2.npy", "version3.npy"] {
        assert_eq!(
            read_npy(&data(name)).unwrap(),
            matrix(NpyDtype::F32),
            "{name}"
        );
    }
}

#[test]
fn archives_stored_and_deflated_are_read() {
    let ids = (0..3_i32).flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
    let expected = [
        ("x".to_owned(), matrix(NpyDtype::F32)),
        (
            "ids".to_owned(),
            NpyArray::new(NpyDtype::I32, vec![3], ids).unwrap(),
        ),
    ];
    for name in ["stored.npz", "deflated.npz"] {
        assert_eq!(read_npz(&data(name)).unwrap(), expected, "{name}");
    }
    let path = scratch("round.npz");
    write_npz(File::create(&path).unwrap(), &expected).unwrap();
    assert_eq!(read_npz(&path).unwrap(), expected);
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_comes_back_as_written() {
    let path = scratch("round.npy");
    write_npy(&mut File::create(&path).unwrap(), &matrix(NpyDtype::I64)).unwrap();
    assert_eq!(read_npy(&path).unwrap(), matrix(NpyDtype::I64));
    fs::remove_file(&path).unwrap();
    assert!(matches!(
        read_npy(&path),
        Err(NpyError::File { action: "open", .. })
    ));
}

#[test]
fn unsupported_types_are_refused_by_name() {
    let message = |name: &str| match read_npy(&data(name)) {
        Err(NpyError::Array { source, .. }) => source.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    assert!(message("complex.npy").starts_with("element type `<c8` is not supported"));
    assert!(message("structured.npy").starts_with("element type `a structure`"));
}

#[test]
fn a_file_cut_anywhere_or_too_long_is_refused() {
    for name in ["c_float32.npy", "version2.npy", "fortran.npy"] {
        let mut bytes = fs::read(data(name)).unwrap();
        for len in 0..bytes.len() {
            let error = parse(&bytes[..len]).unwrap_err();
            let expected = matches!(error, FormatError::Magic | FormatError::Length { .. });
            assert!(expected, "{name} cut at {len}: {error}");
        }
        bytes.push(0);
        assert!(
            matches!(parse(&bytes), Err(FormatError::Trailing { .. })),
            "{name}"
        );
    }
}

#[test]
fn any_changed_byte_gives_an_array_or_an_error() {
    let bytes = fs::read(data("fortran.npy")).unwrap();
    for index in 0..128 {
        for value in [0, b'(', b'9', b'\'', 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[index] = value;
            if let Ok(array) = parse(&changed) {
                let (dtype, shape, bytes) = array.into_parts();
                assert_eq!(bytes.len() as u64, len_bytes(dtype, &shape).unwrap());
            }
        }
    }
}

#[test]
fn promises_of_size_cost_no_memory() {
    let shaped = |shape: &str| {
        raw(
            &format!("{{'descr': '<f8', 'fortran_order': True, 'shape': {shape}}}"),
            &[0; 8],
        )
    };
    let check = |shape: &str| parse(&shaped(shape)).unwrap_err();
    assert!(matches!(
        check("(1099511627776,)"),
        FormatError::TooLarge { .. }
    ));
    assert!(matches!(
        check("(4294967296, 4294967296)"),
        FormatError::TooLarge { .. }
    ));
    assert!(matches!(
        check("(0, 4294967296, 4294967296)"),
        FormatError::TooLarge { .. }
    ));
    assert!(matches!(
        check("(18446744073709551615,)"),
        FormatError::TooLarge { .. }
    ));
    assert!(matches!(
        check("(18446744073709551616,)"),
        FormatError::Header { .. }
    ));
    assert!(matches!(
        check("(1000000000,)"),
        FormatError::Length { found: 8, .. }
    ));
    assert!(matches!(
        check(&format!("({})", "1,".repeat(65))),
        FormatError::Rank { rank: 65 }
    ));
    let header = b"\x93NUMPY\x02\x00\xff\xff\xff\xff{";
    assert!(matches!(
        parse(header),
        Err(FormatError::HeaderLength {
            len_bytes: u32::MAX
        })
    ));
    assert!(matches!(
        parse(b"\x93NUMPY\x04\x00\0\0"),
        Err(FormatError::Version { major: 4, .. })
    ));
}

#[test]
fn booleans_other_than_zero_and_one_become_one() {
    let dictionary = "{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}";
    let array = parse(&raw(dictionary, &[0, 1, 0xfe])).unwrap();
    assert_eq!(array.bytes[..], [0, 1, 1]);
}

#[test]
fn a_length_that_does_not_fit_the_shape_is_refused() {
    let error = NpyArray::new(NpyDtype::F32, vec![2, 3], vec![0u8; 23]).unwrap_err();
    assert!(matches!(
        error,
        FormatError::Length {
            expected: 24,
            found: 23
        }
    ));
}

#[test]
fn archives_are_limited_in_total_and_survive_damage() {
    let path = Path::new("a.npz");
    for name in ["stored.npz", "deflated.npz"] {
        let bytes = fs::read(data(name)).unwrap();
        let read = |bytes: &[u8], limit| npz::read_archive(Cursor::new(bytes), path, limit);
        assert_eq!(read(&bytes, 36).unwrap().len(), 2);
        let error = read(&bytes, 35).unwrap_err();
        assert!(
            matches!(&error, NpyError::Entry { entry, source: FormatError::TooLarge { .. }, .. } if entry == "ids"),
            "{error}"
        );
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len], 36).is_err(), "{name} cut at {len}");
        }
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 0x55;
            // Not every byte of a zip file matters: the call must come back, either way.
            if let Ok(arrays) = read(&changed, 36) {
                assert!(arrays.len() <= 2, "{name} changed at {index}");
            }
        }
    }
}
