use tercet::{DType, Device, Graph, Scheme, Type};
use tercet_networks::MatmulPrecision;

/// Test graph with matmuls of these weights; `weights` gives the scheme and the number of rows.
fn graph(weights: &[(Scheme, usize)], dense: bool) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [3, 256])).unwrap();
    for (i, &(scheme, rows)) in weights.iter().enumerate() {
        let stored = scheme.stored_len(256).unwrap();
        let ty = Type::new(scheme.storage(), [rows, stored]);
        let w = g.param(&format!("w{i}"), ty).unwrap();
        let y = g.dequant_matmul(x, w, scheme).unwrap();
        g.output(&format!("y{i}"), y).unwrap();
    }
    if dense {
        let w = g.param("w", Type::new(DType::F32, [256, 64])).unwrap();
        let y = g.matmul(x, w).unwrap();
        g.output("y", y).unwrap();
    }
    g
}

#[test]
fn weights_and_device_decide() {
    let (f16, bf16) = (DType::F16, DType::BF16);
    let (both, half): (&[DType], &[DType]) = (&[f16, bf16], &[f16]);
    let packed = graph(&[(Scheme::Q4K, 64), (Scheme::Q6K, 16)], true);
    let halves = graph(&[(Scheme::F16, 64)], false);
    let brains = graph(&[(Scheme::BF16, 64), (Scheme::F16, 8)], false);
    let mixed = graph(&[(Scheme::BF16, 4), (Scheme::Q8_0, 64)], false);
    let dense = graph(&[], true);
    for (graph, faster, want) in [
        (&packed, both, Some(f16)),
        (&packed, half, Some(f16)),
        (&packed, &[bf16][..], Some(bf16)),
        (&packed, &[][..], None),
        (&halves, both, Some(f16)),
        (&brains, both, Some(bf16)),
        // Most of these weights are BF16, which F16 matmuls would round, so F16 is not chosen.
        (&brains, half, None),
        (&mixed, both, Some(f16)),
        (&dense, both, None),
    ] {
        assert_eq!(MatmulPrecision::Auto.choose_dtype(graph, [faster; 2]), want);
        assert_eq!(MatmulPrecision::Full.choose_dtype(graph, [faster; 2]), None);
        assert_eq!(
            MatmulPrecision::Fixed(bf16).choose_dtype(graph, [faster; 2]),
            Some(bf16)
        );
    }
    // On CPUs, rounding the inputs of matmuls gains speed only with quantized weights.
    let processor: [&[DType]; 2] = [&[], half];
    assert_eq!(
        MatmulPrecision::Auto.choose_dtype(&packed, processor),
        Some(f16)
    );
    assert_eq!(MatmulPrecision::Auto.choose_dtype(&halves, processor), None);
    assert_eq!(MatmulPrecision::Auto.choose_dtype(&dense, processor), None);
}

#[test]
fn processors_gain_by_f16_or_by_nothing() {
    // Whether F16 inputs are faster on a CPU depends on its instruction set.
    assert_eq!(Device::cpu().fast_matmul_dtypes(), []);
    let cpu = Device::cpu().fast_quant_matmul_dtypes();
    assert!(cpu.is_empty() || cpu == [DType::F16], "{cpu:?}");
    assert_eq!(Device::reference().fast_matmul_dtypes(), []);
}
