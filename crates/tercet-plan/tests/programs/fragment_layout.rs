//! The probe of fragment layouts runs a kernel that depends on them.

use tercet_ir::CompileOptions;
use tercet_plan::{CoopShape, CoopType, DeviceCaps, NativeOps, compile, lanes};

#[test]
fn the_product_that_is_tried_runs_on_the_matrices_in_question() {
    let shape = CoopShape {
        ty: CoopType::F16,
        m: 16,
        n: 8,
        k: 16,
        narrow_accumulators: true,
    };
    let probed = DeviceCaps {
        coop: vec![shape],
        natives: NativeOps {
            f16_conversions: true,
            ..NativeOps::default()
        },
        ..DeviceCaps::h200()
    };
    let lanes = lanes(&probed).unwrap().expect("a probe");
    let program = compile(&lanes.graph, &CompileOptions::new(), &DeviceCaps::h200()).unwrap();
    let [kernel] = &program.kernels[..] else {
        panic!("{program}");
    };
    assert!(
        kernel.name.starts_with("few_rows_streamed_f16 "),
        "{kernel}"
    );
}
