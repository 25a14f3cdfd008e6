//! Tests of file tensors as IR tensors.

use crate::common::{GgufWriter, data, safetensors};
use tercet_files::gguf::GgmlType;
use tercet_files::{
    Gguf, MappedFile, ModelWeight, SafeTensors, WeightError, gguf_weight, safetensors_tensor,
};
use tercet_ir::{DType, Scheme};

#[test]
fn mapped_weights_are_shared() {
    let gguf = Gguf::open(data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf")).unwrap();
    let info = gguf.tensor("blk.0.attn_k.weight").unwrap();
    let ModelWeight::Packed {
        scheme,
        blocks,
        shape,
    } = gguf_weight(&gguf, info).unwrap()
    else {
        panic!("not packed");
    };
    assert_eq!((scheme, shape), (Scheme::Q8_0, vec![64, 256]));
    assert_eq!(
        (blocks.dtype(), blocks.shape()),
        (DType::U8, &[64, 272][..])
    );
    assert_eq!(blocks.bytes().as_ptr(), gguf.data(info).as_ptr());
    let norm = gguf.tensor("output_norm.weight").unwrap();
    let ModelWeight::Dense(dense) = gguf_weight(&gguf, norm).unwrap() else {
        panic!("not dense");
    };
    assert_eq!(dense.bytes().as_ptr(), gguf.data(norm).as_ptr());
    let bytes = gguf.data(norm).to_vec();
    drop(gguf);
    assert_eq!(dense.bytes(), bytes, "the tensor keeps the mapping alive");
    assert_eq!(dense.as_slice::<f32>().unwrap().len(), 256);
}

#[test]
fn both_files_hold_the_same_norms() {
    let gguf = Gguf::open(data("tiny-rust-llama/tiny-rust-llama-f16.gguf")).unwrap();
    let safe = SafeTensors::open(data("tiny-rust-llama/model.safetensors")).unwrap();
    let norm = gguf_weight(&gguf, gguf.tensor("output_norm.weight").unwrap()).unwrap();
    let other = safetensors_tensor(&safe, safe.tensor("model.norm.weight").unwrap()).unwrap();
    let ModelWeight::Dense(norm) = norm else {
        panic!("not dense");
    };
    assert_eq!(norm.to_f64s(), other.to_f64s());
}

#[test]
fn every_type_converts_or_is_refused() {
    for ty in GgmlType::ALL {
        let bytes = vec![0; 2 * ty.block_bytes() as usize];
        let file = GgufWriter::default()
            .tensor("w", &[ty.block_len(), 2], ty.id(), &bytes)
            .bytes();
        let gguf = Gguf::parse(MappedFile::from_vec(file)).unwrap();
        match gguf_weight(&gguf, gguf.tensor("w").unwrap()) {
            Ok(ModelWeight::Packed {
                scheme,
                blocks,
                shape,
            }) => {
                if [GgmlType::Q1_0, GgmlType::Q2_0].contains(ty) {
                    assert_eq!(scheme, Scheme::Q4_0);
                    continue;
                }
                assert_eq!(scheme.block_len() as u64, ty.block_len());
                assert_eq!(scheme.block_bytes() as u64, ty.block_bytes());
                assert_eq!(scheme.name(), ty.name().to_lowercase());
                assert_eq!(blocks.shape(), [2, ty.block_bytes() as usize]);
                assert_eq!(shape, [2, ty.block_len() as usize]);
            }
            Ok(ModelWeight::Dense(tensor)) => {
                assert_eq!(tensor.dtype().name(), ty.name().to_lowercase());
                assert_eq!(tensor.shape(), [2, 1]);
            }
            Err(WeightError::UnsupportedType { tensor, found, .. }) => {
                assert_eq!((tensor.as_str(), found), ("w", ty.name()));
                use GgmlType::{Q8_1, Q8_K};
                assert!([Q8_1, Q8_K].contains(ty), "{}", ty.name());
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn misaligned_data_is_copied() {
    for padding in 0..8 {
        let header = format!(
            r#"{{"x":{{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}}}{}"#,
            " ".repeat(padding)
        );
        let values = [1.5_f64, -2.25].map(f64::to_le_bytes).concat();
        let bytes = safetensors(&header, &values);
        let file = SafeTensors::parse(MappedFile::from_vec(bytes)).unwrap();
        let x = safetensors_tensor(&file, file.tensor("x").unwrap()).unwrap();
        assert_eq!(x.as_slice::<f64>().unwrap(), [1.5, -2.25]);
    }
    let header = r#"{"x":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#;
    let file = SafeTensors::parse(MappedFile::from_vec(safetensors(header, &[0; 2]))).unwrap();
    assert!(matches!(
        safetensors_tensor(&file, file.tensor("x").unwrap()),
        Err(WeightError::UnsupportedType {
            found: "F8_E4M3",
            ..
        })
    ));
    let header = format!(
        r#"{{"x":{{"dtype":"U8","shape":{:?},"data_offsets":[0,1]}}}}"#,
        [1; 40]
    );
    let file = SafeTensors::parse(MappedFile::from_vec(safetensors(&header, &[0]))).unwrap();
    assert!(matches!(
        safetensors_tensor(&file, file.tensor("x").unwrap()),
        Err(WeightError::TooManyDims { rank: 40, .. })
    ));
}

/// Q1_0 and Q2_0 become Q4_0 with the same values: `d * (2 bit - 1)` and `d * (code - 1)`, codes
/// from the lowest bits.
#[test]
fn one_and_two_bit_blocks_keep_their_values() {
    type Value = fn(&[u8], usize) -> f32;
    let cases: [(GgmlType, Value); 2] = [
        (GgmlType::Q1_0, |codes, at| {
            f32::from(codes[at / 8] >> (at % 8) & 1) * 2.0 - 1.0
        }),
        (GgmlType::Q2_0, |codes, at| {
            f32::from(codes[at / 4] >> (at % 4 * 2) & 3) - 1.0
        }),
    ];
    for (ty, value) in cases {
        let (len, rows) = (ty.block_len() as usize, 3);
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for block in 0..2 * rows {
            // F16 scales 1.5, -0.25, and a subnormal number.
            let (bits, scale) =
                [(0x3E00_u16, 1.5), (0xB400, -0.25), (1, 2f32.powi(-24))][block % 3];
            let codes: Vec<u8> = (0..16).map(|i| (i * 37 + block * 101 + 27) as u8).collect();
            bytes.extend(bits.to_le_bytes());
            bytes.extend(&codes);
            expected.extend((0..len).map(|at| scale * value(&codes, at)));
        }
        let file = GgufWriter::default()
            .tensor("w", &[2 * len as u64, rows as u64], ty.id(), &bytes)
            .bytes();
        let gguf = Gguf::parse(MappedFile::from_vec(file)).unwrap();
        let found = gguf_weight(&gguf, gguf.tensor("w").unwrap()).unwrap();
        let ModelWeight::Packed {
            scheme,
            blocks,
            shape,
        } = &found
        else {
            panic!("{ty} is not packed");
        };
        assert_eq!((*scheme, &shape[..]), (Scheme::Q4_0, &[rows, 2 * len][..]));
        let mut values = vec![0.0; rows * 2 * len];
        scheme.dequantize(blocks.bytes(), &mut values).unwrap();
        assert_eq!(values, expected, "{ty}");
    }
}
