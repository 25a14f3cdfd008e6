//! Test of a model with NVFP4 blocks and separate factor tensors, compared to the same weights in
//! F32.

use crate::common::GgufWriter;
use tercet::{DType, Device};
use tercet_files::gguf::GgmlType;
use tercet_files::{Gguf, MappedFile};
use tercet_ir::Scheme;
use tercet_ir::quant::quantize_nvfp4;
use tercet_networks::{Decoder, DecoderDims, DecoderOptions, DecoderSpec, RopeLayout, Weights};

const HIDDEN: usize = 64;
const FFN: usize = 128;
const VOCAB: usize = 48;

/// `name`, rows and columns.
const MATRICES: [(&str, usize, usize); 9] = [
    ("token_embd", VOCAB, HIDDEN),
    ("blk.0.attn_q", HIDDEN, HIDDEN),
    ("blk.0.attn_k", HIDDEN / 2, HIDDEN),
    ("blk.0.attn_v", HIDDEN / 2, HIDDEN),
    ("blk.0.attn_output", HIDDEN, HIDDEN),
    ("blk.0.ffn_gate", FFN, HIDDEN),
    ("blk.0.ffn_up", FFN, HIDDEN),
    ("blk.0.ffn_down", HIDDEN, FFN),
    ("output", VOCAB, HIDDEN),
];

fn config() -> DecoderSpec {
    let dims = DecoderDims {
        hidden: HIDDEN,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: HIDDEN / 2,
        ffn: FFN,
        vocab: VOCAB,
        context: 16,
    };
    DecoderSpec {
        rope_layout: RopeLayout::Pairs,
        ..DecoderSpec::llama(dims)
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The model file with NVFP4 blocks and factors, or with the equivalent F32 weights.
fn file(packed: bool) -> Weights {
    let (f32s, mut state) = (GgmlType::F32.id(), 1u32);
    let mut file = GgufWriter::default();
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
        let ones = floats(&[1.0; HIDDEN]);
        file = file.tensor(&format!("{name}.weight"), &[HIDDEN as u64], f32s, &ones);
    }
    for (name, rows, cols) in MATRICES {
        let drawn: Vec<f32> = (0..rows * cols)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect();
        let (blocks, factor) = quantize_nvfp4(&drawn).unwrap();
        let dims = [cols as u64, rows as u64];
        let weight = format!("{name}.weight");
        file = match packed {
            true => file
                .tensor(&weight, &dims, GgmlType::NVFP4.id(), &blocks)
                .tensor(&format!("{name}.scale"), &[1], f32s, &floats(&[factor])),
            false => {
                let mut values = vec![0.0; rows * cols];
                Scheme::Nvfp4.dequantize(&blocks, &mut values).unwrap();
                values.iter_mut().for_each(|value| *value *= factor);
                file.tensor(&weight, &dims, f32s, &floats(&values))
            }
        };
    }
    Weights::Gguf(Gguf::parse(MappedFile::from_vec(file.bytes())).unwrap())
}

fn logits(packed: bool, dtype: DType) -> Vec<f32> {
    let config = config();
    let options = DecoderOptions {
        dtype,
        ..DecoderOptions::new(&config)
    };
    let llama = Decoder::build(&config, &file(packed), options).unwrap();
    let mut generator = llama.generator(&Device::cpu()).unwrap();
    generator
        .forward(&[3, 47, 0, 11, 11])
        .unwrap()
        .logits
        .to_vec()
}

#[test]
fn factors_are_applied() {
    let expected = logits(false, DType::F32);
    let greatest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    assert!(greatest > 0.1, "{expected:?}");
    // The factor is about 1/5000; without it, F16 sums would overflow.
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 1e-2)] {
        for (got, want) in logits(true, dtype).iter().zip(&expected) {
            let error = (got - want).abs();
            assert!(
                error <= tolerance * greatest,
                "{dtype:?}: {got}, want {want}"
            );
        }
    }
}

#[test]
fn a_factor_beside_a_weight_is_one_finite_number() {
    let (ty, bytes) = (GgmlType::NVFP4, [0x38; 36]);
    let alone = || GgufWriter::default().tensor("w.weight", &[64, 1], ty.id(), &bytes);
    let factor = |file: GgufWriter| {
        let gguf = Gguf::parse(MappedFile::from_vec(file.bytes())).unwrap();
        Weights::Gguf(gguf).factor("w.weight")
    };
    assert_eq!(factor(alone()).unwrap(), None);
    let of = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let len = values.len() as u64;
        factor(alone().tensor("w.scale", &[len], GgmlType::F32.id(), &bytes))
    };
    assert_eq!(of(&[0.125]).unwrap(), Some(0.125));
    for wrong in [&[1.0, 2.0][..], &[f32::NAN], &[f32::INFINITY]] {
        let error = of(wrong).err().unwrap();
        assert!(error.to_string().contains("`w.scale`"), "{error}");
    }
}
