//! Tests of quantized weights against the values that bitsandbytes, HQQ, AutoGPTQ, GPTQModel and
//! compressed-tensors dequantize them to (`tests/data/quantised`), bit by bit.

use std::path::{Path, PathBuf};

use tercet::{DType, Scheme, Tensor, TensorType};
use tercet_files::{HfWeights, MappedFile, ModelWeight, SafeTensors, safetensors_tensor};
use tercet_networks::{HfFolder, Weights};

fn data(folder: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/quantised");
    root.join(folder)
}

/// The weight as the dtype of its reference, and the name of its storage.
fn values(weight: ModelWeight, dtype: DType) -> (Tensor, &'static str) {
    match weight {
        ModelWeight::Dense(tensor) => {
            let storage = tensor.dtype().name();
            (tensor, storage)
        }
        ModelWeight::Packed {
            scheme,
            blocks,
            shape,
        } => {
            let mut wide = vec![0f32; shape.iter().product()];
            scheme.dequantize(blocks.bytes(), &mut wide).unwrap();
            let wide: Vec<f64> = wide.into_iter().map(f64::from).collect();
            let ty = TensorType::new(dtype, &shape);
            (Tensor::from_f64s(ty, &wide).unwrap(), Scheme::name(scheme))
        }
    }
}

/// Compares the weights of a folder with their references; `storage` has the name of each weight
/// and its storage.
fn check(folder: &str, storage: &[(&str, &str)]) {
    let dir = data(folder);
    let opened = HfFolder::open(&dir).unwrap();
    let weights = Weights::Hf(HfWeights::clone(opened.weights()));
    let reference = MappedFile::from_vec(std::fs::read(dir.join("reference.safetensors")).unwrap());
    let reference = SafeTensors::parse(reference).unwrap();
    let mut found = Vec::new();
    for info in reference.tensors() {
        let name = info.name();
        let want = safetensors_tensor(&reference, info).unwrap();
        let weight = weights
            .get(name)
            .unwrap_or_else(|e| panic!("{folder} {name}: {e}"));
        assert_eq!(weight.shape(), want.shape(), "{folder} {name}");
        let (own, storage) = values(weight, want.dtype());
        assert_eq!(own.dtype(), want.dtype(), "{folder} {name}");
        // Zeros may differ in their sign.
        let (own, want) = (own.to_f64s(), want.to_f64s());
        let other = own.iter().zip(&want).position(|(a, b)| a != b);
        let values = other.map(|at| (at, own[at], want[at]));
        assert_eq!(values, None, "{folder} {name} {storage}");
        let module = name.strip_suffix(".weight").unwrap();
        found.push((module.to_string(), storage));
    }
    let found: Vec<(&str, &str)> = found.iter().map(|(n, s)| (n.as_str(), *s)).collect();
    let mut wanted = storage.to_vec();
    wanted.sort_unstable();
    let mut sorted = found.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, wanted, "{folder}");
}

#[test]
fn bitsandbytes_weights_have_the_reference_values() {
    check(
        "bitsandbytes",
        &[
            ("nf4", "f16"),
            ("nf4_nested", "bf16"),
            ("nf4_rest", "f16"),
            ("nf4_many", "bf16"),
            ("nf4_words", "bf16"),
            ("fp4", "bf16"),
            ("fp4_wide", "f32"),
            ("int8", "f16"),
            ("int8_wide", "f32"),
            ("plain", "f16"),
        ],
    );
}

#[test]
fn hqq_weights_have_the_reference_values() {
    let bits = |axis: usize| (1..=6).map(move |bits| format!("bits{bits}_axis{axis}"));
    let names: Vec<String> = bits(0).chain(bits(1)).collect();
    let mut wanted: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "f16")).collect();
    wanted.extend([
        // Rounded zero points.
        ("bits8", "int8_asym"),
        ("bits8_axis0", "f16"),
        ("ternary", "f16"),
        ("row", "f16"),
        ("bf16", "bf16"),
        ("f32", "f32"),
        ("as_float", "bf16"),
        ("as_float3", "f16"),
    ]);
    check("hqq", &wanted);
}

#[test]
fn gptq_weights_have_the_reference_values() {
    check(
        "gptq4",
        &[
            ("ordered", "f16"),
            ("ordered_bf16", "bf16"),
            ("ordered_symmetric", "f16"),
            ("runs", "int4_asym"),
            ("narrow", "f16"),
            ("without_index", "int4_asym"),
            ("zero_index", "int4_asym"),
            ("other_bits", "int8_asym"),
            ("other_group", "int4_asym"),
        ],
    );
    let some = [
        ("runs", "int4_asym"),
        ("symmetric", "int4"),
        ("ordered", "f16"),
    ];
    check("gptq2", &some);
    let all = [&some[..], &[("without_index", "int4_asym")]].concat();
    check("gptq3", &all);
    check(
        "gptq8",
        &[
            ("runs", "int8_asym"),
            ("symmetric", "int8"),
            ("groups16", "f16"),
        ],
    );
    check("gptq_v2", &[("runs", "int4_asym")]);
    check("gptqmodel", &[("runs", "int4_asym")]);
    let names: Vec<String> = (2..=8).map(|bits| format!("bits{bits}")).collect();
    let scheme = |at: usize| if at <= 2 { "int4_asym" } else { "int8_asym" };
    let planes: Vec<(&str, &str)> = names
        .iter()
        .enumerate()
        .map(|(at, name)| (name.as_str(), scheme(at)))
        .collect();
    check("gptq_planes", &planes);
}

#[test]
fn compressed_tensors_weights_have_the_reference_values() {
    // The one zero point of `tensor` is in the middle, as in symmetric weights.
    for (folder, scheme, tensor) in [
        ("packed4", "int4_asym", "int4"),
        ("packed8", "int8_asym", "int8"),
    ] {
        check(
            folder,
            &[
                ("bf16", scheme),
                ("f16", scheme),
                ("f32", "f32"),
                ("groups64", scheme),
                ("narrow", "bf16"),
                ("channel", scheme),
                ("tensor", tensor),
                ("odd_rows", scheme),
            ],
        );
    }
    let few = [
        ("bf16", "int4_asym"),
        ("channel", "int4_asym"),
        ("odd_rows", "int4_asym"),
    ];
    check("packed3", &few);
    check("packed3_whole", &few[..1]);
    check(
        "packed6",
        &[
            ("bf16", "int8_asym"),
            ("channel", "int8_asym"),
            ("narrow", "bf16"),
        ],
    );
    check(
        "packed4_symmetric",
        &[
            ("bf16", "int4"),
            ("channel", "int4"),
            ("tensor", "int4"),
            ("groups16", "bf16"),
        ],
    );
    check(
        "packed4_order",
        &[
            ("unset", "int4_asym"),
            ("runs", "int4_asym"),
            ("ordered", "bf16"),
        ],
    );
    check(
        "bytes",
        &[
            ("group", "int8_asym"),
            ("channel", "int8_asym"),
            ("tensor", "int8_asym"),
            ("narrow", "bf16"),
        ],
    );
    check("tiles", &[("block", "int8_asym")]);
}
