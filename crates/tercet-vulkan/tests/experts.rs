//! Tests of matmuls of experts with many rows: a row has the same bits however many rows its expert
//! has, and repeated rows give the results of copied rows.

#![allow(clippy::unwrap_used, reason = "helper failures fail the test")]

mod common;

use common::{assert_silent, backend};
use tercet_ir::{CompileOptions, DType, Dim, Executable, Graph, Scheme, Tensor, TensorType, Type};
use tercet_vulkan::{VulkanBackend, VulkanDeviceKind};

const EXPERTS: usize = 6;
const COLUMNS: usize = 72;

/// Pseudo-random numbers below 2^32.
fn random(seed: u32, i: usize) -> u32 {
    let mixed = (i as u32).wrapping_add(seed).wrapping_mul(0x9e37_79b1);
    (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77)
}

/// Pseudo-random rows from -1 to 1.
fn rows(dtype: DType, shape: &[usize]) -> Tensor {
    let len: usize = shape.iter().product();
    let values: Vec<f64> = (0..len)
        .map(|i| f64::from(random(1, i) >> 22) / 512.0 - 1.0)
        .collect();
    Tensor::from_f64s(TensorType::new(dtype, shape), &values).unwrap()
}

/// Pseudo-random blocks. All F16 scales of these schemes are at even bytes, and are near 0.01.
fn weights(scheme: Scheme, k: usize) -> Tensor {
    let size = scheme.block_bytes();
    let shape = [EXPERTS, COLUMNS, k / scheme.block_len() * size];
    let scales: &[usize] = match scheme {
        Scheme::Q4K => &[0, 2],
        Scheme::Q6K => &[208],
        Scheme::Q8_0 => &[0],
        _ => unreachable!("no other scheme is tested"),
    };
    let mut bytes: Vec<u8> = (0..shape.iter().product())
        .map(|i| (random(7, i) >> 24) as u8)
        .collect();
    for block in bytes.chunks_mut(size) {
        for &at in scales {
            block[at + 1] = 0x20 | (block[at + 1] & 3);
        }
    }
    Tensor::from_bytes(TensorType::new(DType::U8, &shape[..]), &bytes).unwrap()
}

fn product(dtype: DType, scheme: Scheme, k: usize) -> Graph {
    let mut g = Graph::new();
    let x = Type::new(dtype, [Dim::sym("m"), k.into()]);
    let x = g.input("x", x).unwrap();
    let expert = Type::new(DType::I32, [Dim::sym("m")]);
    let expert = g.input("expert", expert).unwrap();
    let ty = weights(scheme, k).ty().shape.clone();
    let w = g.param("w", Type::new(DType::U8, &ty[..])).unwrap();
    let y = g.dequant_grouped_matmul(x, w, expert, scheme).unwrap();
    g.output("y", y).unwrap();
    g
}

/// The first `len` rows of the results, as bytes per row, and whether cooperative matrices computed
/// them.
fn run(
    backend: &VulkanBackend,
    (dtype, scheme, k): (DType, Scheme, usize),
    experts: &[Vec<i32>],
) -> (Vec<Vec<Vec<u8>>>, bool) {
    let g = product(dtype, scheme, k);
    let options = CompileOptions::new().bound("m", 700);
    let options = options.with_matmul_precision(Some(DType::F16));
    let mut exe = backend.compile_gpu(&g, &options).unwrap();
    let kernels = &exe.program().kernels;
    let is_coop = kernels.iter().any(|k| k.name.starts_with("gemm_grouped"));
    let exe: &mut dyn Executable = &mut exe;
    exe.set_param("w", weights(scheme, k)).unwrap();
    let all = rows(dtype, &[700, k]);
    let results = experts.iter().map(|experts| {
        let m = experts.len();
        let x = &all.bytes()[..m * k * dtype.size_bytes()];
        let x = Tensor::from_bytes(TensorType::new(dtype, &[m, k][..]), x).unwrap();
        let of = Tensor::from_slice(&[m], experts).unwrap();
        let y = exe.run(&[("x", &x), ("expert", &of)]).unwrap();
        let row = COLUMNS * dtype.size_bytes();
        y[0].bytes().chunks(row).map(<[u8]>::to_vec).collect()
    });
    (results.collect(), is_coop)
}

#[test]
fn a_row_has_the_same_bits_with_any_number_of_rows_of_its_expert() {
    let Some(backend) = backend() else {
        return;
    };
    let own = [0, 16, 63, 64, 200, 512];
    let others: [fn(usize) -> i32; 4] = [
        |i| (i % EXPERTS) as i32,
        // All rows are the same expert's, then none but the compared ones.
        |_| 4,
        |_| 1,
        |i| i32::from(i % 97 == 5) + 3,
    ];
    let experts: Vec<Vec<i32>> = others
        .iter()
        .zip([700, 513, 530, 641])
        .map(|(other, m)| {
            let of = |i| if own.contains(&i) { 4 } else { other(i) };
            (0..m).map(of).collect()
        })
        .collect();
    let cases = [
        (DType::F16, Scheme::Q4K, 256),
        (DType::F32, Scheme::Q6K, 256),
        (DType::F32, Scheme::Q8_0, 96),
        (DType::BF16, Scheme::Q4K, 256),
    ];
    // A software device compiles a kernel for a minute.
    let is_software = backend.device().kind == VulkanDeviceKind::Cpu;
    for case in cases.into_iter().take(if is_software { 1 } else { 4 }) {
        let (results, is_coop) = run(backend, case, &experts);
        if !is_coop {
            eprintln!("{} lacks matrices for {case:?}", backend.device().name);
        }
        for other in &results[1..] {
            for i in own {
                assert_eq!(results[0][i], other[i], "row {i} of {case:?}");
            }
        }
        assert!(results[0][0].iter().any(|byte| *byte != 0), "{case:?}");
    }
    assert_silent(backend);
}

#[test]
fn rows_repeated_by_the_kernels_give_the_bits_of_copied_rows() {
    let Some(backend) = backend() else {
        return;
    };
    const REPEATS: usize = 4;
    let k = 256;
    let make = |are_copied: bool| {
        let mut g = Graph::new();
        let x = Type::new(DType::F32, [Dim::sym("n"), k.into()]);
        let x = g.input("x", x).unwrap();
        let n = Dim::sym("n");
        let all = n.checked_mul(&Dim::Known(REPEATS)).unwrap();
        let expert = g
            .input("expert", Type::new(DType::I32, [all.clone()]))
            .unwrap();
        let many = g.unsqueeze(x, 1).unwrap();
        let many = g.expand(many, [n, REPEATS.into(), k.into()]).unwrap();
        let many = g.reshape(many, [all, k.into()]).unwrap();
        let shape = weights(Scheme::Q4K, k).ty().shape.clone();
        let w = g.param("w", Type::new(DType::U8, &shape[..])).unwrap();
        let y = g
            .dequant_grouped_matmul(many, w, expert, Scheme::Q4K)
            .unwrap();
        g.output("y", y).unwrap();
        if are_copied {
            g.output("rows", many).unwrap();
        }
        g
    };
    let mut both = [false, true].map(|are_copied| {
        let options = CompileOptions::new().bound("n", 170);
        let options = options.with_matmul_precision(Some(DType::F16));
        let exe = backend.compile_gpu(&make(are_copied), &options).unwrap();
        let mut exe: Box<dyn Executable> = Box::new(exe);
        exe.set_param("w", weights(Scheme::Q4K, k)).unwrap();
        exe
    });
    for n in [1, 7, 40, 170] {
        let x = rows(DType::F32, &[n, k]);
        let experts: Vec<i32> = (0..n * REPEATS)
            .map(|i| (random(3, i) % EXPERTS as u32) as i32)
            .collect();
        let experts = Tensor::from_slice(&[n * REPEATS], &experts).unwrap();
        let results = both.each_mut().map(|exe| {
            let results = exe.run(&[("x", &x), ("expert", &experts)]).unwrap();
            results[0].clone()
        });
        assert_eq!(results[0].bytes(), results[1].bytes(), "{n} rows");
    }
    assert_silent(backend);
}
