use tercet_cli::internals::npy_header::{
    ALIGN_BYTES, NpyByteOrder, NpyHeader, NpyOrder, parse, print, read,
};
use tercet_cli::internals::{MAX_RANK, NpyDtype, NpyFormatError};

#[test]
fn every_type_and_shape_comes_back() {
    let long = [usize::MAX; MAX_RANK];
    for shape in [&[][..], &[3], &[0], &[2, 3], &[1, 2, 3, 4], &long] {
        for dtype in NpyDtype::ALL {
            let bytes = print(dtype, shape);
            assert_eq!(bytes.len() % ALIGN_BYTES, 0);
            let header = read(&mut bytes.as_slice()).unwrap();
            let (order, layout) = (NpyByteOrder::Little, NpyOrder::C);
            assert_eq!(
                header,
                NpyHeader {
                    dtype,
                    order,
                    layout,
                    shape: shape.to_vec()
                }
            );
        }
    }
}

#[test]
fn other_spellings_of_python_are_read() {
    let text = b"{\"shape\":(2L,3L),'descr' : '>f4','fortran_order':True}\n";
    let NpyHeader {
        dtype,
        order,
        layout,
        shape,
    } = parse(text).unwrap();
    assert_eq!((dtype, order), (NpyDtype::F32, NpyByteOrder::Big));
    assert_eq!((layout, shape), (NpyOrder::Fortran, vec![2, 3]));
}

#[test]
fn broken_dictionaries_name_the_place() {
    let check = |text: &str, offset: usize, word: &str| match parse(text.as_bytes()) {
        Err(NpyFormatError::Header {
            offset_bytes,
            expected,
        }) => {
            assert_eq!(offset_bytes, offset, "{text}: {expected}");
            assert!(expected.contains(word), "{text}: {expected}");
        }
        other => panic!("{text}: {other:?}"),
    };
    check("", 0, "`{`");
    check("{", 1, "string");
    check("{'descr", 7, "end of the string");
    check("{'descr\\'': 1}", 7, "end of the string");
    check("{'descr' '<f4'}", 9, "`:`");
    check("{'name': 1}", 1, "keys");
    check("{'shape': (1,), 'shape': (1,)}", 16, "once");
    check("{'shape': (-1,)}", 11, "dimension");
    check("{'shape': (99999999999999999999999,)}", 11, "dimension");
    check("{'shape': (1 2)}", 13, "`,` or `)`");
    check("{'shape': 1}", 10, "`(`");
    check("{'fortran_order': 1}", 18, "True or False");
    check("{'shape': (1,)}", 15, "and shape");
    check("{'shape': (1,)} x", 16, "only spaces");
}

#[test]
fn unsupported_types_are_named() {
    for descr in ["<c8", "<U4", "|O", "=f4", "|f4", "<f16", "", "é"] {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ()}}");
        let error = parse(text.as_bytes()).unwrap_err();
        assert!(matches!(&error, NpyFormatError::Dtype { descr: named } if named == descr));
    }
}
