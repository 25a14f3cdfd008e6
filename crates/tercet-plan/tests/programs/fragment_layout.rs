//! The probe of fragment layouts runs a kernel that depends on them.

use half::f16;
use tercet_ir::{CompileOptions, Tensor};
use tercet_plan::{CoopShape, CoopType, DeviceCaps, NativeOps, compile, lanes};

/// A device whose fragment layout is probed.
fn probed() -> DeviceCaps {
    let shape = CoopShape {
        ty: CoopType::F16,
        m: 16,
        n: 8,
        k: 16,
        narrow_accumulators: true,
    };
    DeviceCaps {
        coop: vec![shape],
        natives: NativeOps {
            f16_conversions: true,
            ..NativeOps::default()
        },
        ..DeviceCaps::h200()
    }
}

#[test]
fn the_product_that_is_tried_runs_on_the_matrices_in_question() {
    let lanes = lanes(&probed()).unwrap().expect("a probe");
    let program = compile(&lanes.graph, &CompileOptions::new(), &DeviceCaps::h200()).unwrap();
    let [kernel] = &program.kernels[..] else {
        panic!("{program}");
    };
    assert!(
        kernel.name.starts_with("few_rows_streamed_f16 "),
        "{kernel}"
    );
}

#[test]
fn elements_in_other_places_are_found() {
    let probe = lanes(&probed()).unwrap().expect("a probe");
    let [(_, rows), (_, columns)] = probe.inputs();
    let (&[row_count, len], &[column_count, _]) = (rows.shape(), columns.shape()) else {
        panic!("{rows:?} {columns:?}");
    };
    let columns = columns.as_slice::<f16>().unwrap();
    let product = |swap: bool| {
        let mut rows = rows.as_slice::<f32>().unwrap().to_vec();
        if swap {
            rows.swap(0, 8);
        }
        let sums: Vec<f32> = (0..row_count * column_count)
            .map(|at| {
                let (row, column) = (at / column_count * len, at % column_count * len);
                let terms = (0..len).map(|k| rows[row + k] * columns[column + k].to_f32());
                terms.sum()
            })
            .collect();
        [Tensor::from_slice(&[row_count, column_count], &sums).unwrap()]
    };
    assert!(probe.are_right(&product(false)));
    assert!(!probe.are_right(&product(true)));
    assert!(!probe.are_right(&[]));
    assert!(lanes(&DeviceCaps::browser()).unwrap().is_none());
}
