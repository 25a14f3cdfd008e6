//! The probe of fragment layouts runs a kernel that depends on them.

use tercet_ir::CompileOptions;
use tercet_plan::{DeviceCaps, compile, lanes};

#[test]
fn the_product_that_is_tried_runs_on_the_matrices_in_question() {
    let caps = DeviceCaps::h200();
    let lanes = lanes(&caps).unwrap().expect("a probe");
    let program = compile(&lanes.graph, &CompileOptions::new(), &caps).unwrap();
    let [kernel] = &program.kernels[..] else {
        panic!("{program}");
    };
    assert!(
        kernel.name.starts_with("few_rows_streamed_f16 "),
        "{kernel}"
    );
}
