//! Tests of invalid user-defined operators: kernels that do not match their declaration, and
//! functions with inconsistent results.

use tercet::custom::{WgslGrid, WgslKernel, WgslParam};
use tercet::{
    CompileError, CompileOptions, DType, Device, EvalError, Graph, RunError, Tensor, Type, one_line,
};
use tercet_plan::DeviceCaps;

use crate::SuiteTest;

use super::{BoxError, EvalFn, InferFn, OWN, TestCustomOp, between};

/// A valid kernel that doubles its operand, with the size in its parameter block.
const GOOD: &str = "
    struct Block { n: u32, scale: f32 }
    @group(0) @binding(0) var<uniform> block: Block;
    @group(0) @binding(1) var<storage, read> a: array<f32>;
    @group(0) @binding(2) var<storage, read> b: array<f32>;
    @group(0) @binding(3) var<storage, read_write> y: array<f32>;
    var<workgroup> shared_words: array<u32, 64>;

    @compute @workgroup_size(64, 1, 1)
    fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < block.n { y[id.x] = a[id.x] + b[id.x]; }
    }";

fn good() -> WgslKernel {
    WgslKernel {
        source: GOOD.to_string(),
        entry: "main".to_string(),
        workgroup: [64, 1, 1],
        writes: vec![0],
        params: vec![WgslParam::U32(8.into()), WgslParam::F32(1.0)],
        grid: WgslGrid::Line(8.into()),
    }
}

/// The error of compiling a graph with these kernels, in one line; `None` if it succeeds.
fn refusal(kernels: Vec<WgslKernel>) -> Option<String> {
    let op = TestCustomOp {
        kernels: Some(kernels),
        ..OWN
    };
    let g = between(op, 8, 1);
    match tercet_plan::compile(&g, &CompileOptions::new(), &DeviceCaps::browser()) {
        Ok(_) => None,
        Err(CompileError::Unsupported { nodes, .. }) => Some(nodes[0].reason.clone()),
        Err(e) => panic!("{}", one_line(&e)),
    }
}

/// A text in [`GOOD`], its replacement, and a part of the expected error.
const CHANGED: [(&str, &str, &str); 15] = [
    ("struct Block {", "struct Block", "expected `{`"),
    ("y[id.x] = a", "y[id.x] = 1u + a", "wgsl:"),
    (
        "fn main",
        "fn other",
        "it has no compute entry point `main`",
    ),
    (
        "64, 1, 1)",
        "32, 1, 1)",
        "workgroup size is [32, 1, 1] in the module, expected [64, 1, 1] as declared",
    ),
    (
        "u32, 64>",
        "u32, 5000>",
        "a workgroup uses 20000 bytes of shared memory; expected at most 16384",
    ),
    (
        "var<workgroup>",
        "override k: u32 = 1u; var<workgroup>",
        "it has overrides",
    ),
    (
        "@binding(2)",
        "@binding(4)",
        "`b` at binding 4 of group 0 is an extra binding",
    ),
    (
        "@group(0) @binding(2)",
        "@group(1) @binding(2)",
        "`b` at binding 2 of group 1 is an extra binding",
    ),
    (
        "@group(0) @binding(2) var<storage, read> b: array<f32>;",
        "const b = array(1f);",
        "binding 2 for operand 1 is missing",
    ),
    (
        "var<storage, read> a",
        "var<storage, read_write> a",
        "`a` is an operand, but it is not read-only",
    ),
    (
        "b: array<f32>",
        "b: array<f32, 8>",
        "`b` is not a runtime-sized array of u32, i32 or f32",
    ),
    ("b: array<f32>", "b: array<vec2<f32>>", "wgsl:"),
    (
        "scale: f32",
        "scale: u32",
        "the declared parameters, expected u32, f32",
    ),
    (
        "n: u32, ",
        "@align(8) n: u32, @align(8) ",
        "the declared parameters, expected u32, f32",
    ),
    ("var<workgroup>", "enable f16; var<workgroup>", "wgsl:"),
];

/// Wrong declarations of [`GOOD`], and a part of each expected error.
fn said() -> [(WgslKernel, &'static str); 6] {
    [
        (
            WgslKernel {
                writes: vec![],
                ..good()
            },
            "`y` at binding 3 of group 0 is an extra binding",
        ),
        (
            WgslKernel {
                writes: vec![1],
                ..good()
            },
            "it writes result 1, but the operator has 1 results",
        ),
        (
            WgslKernel {
                writes: vec![0, 0],
                ..good()
            },
            "binding 4 for result 0 is missing",
        ),
        (
            WgslKernel {
                params: vec![],
                ..good()
            },
            "`block` at binding 0 of group 0 is a parameter block, but no parameters are declared",
        ),
        (
            WgslKernel {
                params: vec![WgslParam::U32(8.into())],
                ..good()
            },
            "the declared parameters, expected u32",
        ),
        (
            WgslKernel {
                grid: WgslGrid::Axes([(65536 * 64).into(), 1.into(), 1.into()]),
                ..good()
            },
            "its grid has up to 65536 workgroups along axis 0; expected at most 65535",
        ),
    ]
}

fn a_kernel_that_is_not_as_it_is_said_to_be_is_refused() {
    assert_eq!(refusal(vec![good()]), None);
    for (from, to, want) in CHANGED {
        let source = GOOD.replacen(from, to, 1);
        assert_ne!(source, GOOD, "{from}");
        let found = refusal(vec![WgslKernel { source, ..good() }]);
        let found = found.unwrap_or_else(|| panic!("{from} as {to} was taken"));
        assert!(found.starts_with("the WGSL of `test.own`: "), "{found}");
        assert!(found.contains(want), "{from} as {to}: {found}");
    }
    for (kernel, want) in said() {
        let found = refusal(vec![kernel]).unwrap_or_else(|| panic!("{want} was taken"));
        assert!(found.contains(want), "{want}: {found}");
    }
    let twice = refusal(vec![good(), good()]).expect("two kernels write one result");
    assert!(
        twice.contains("2 kernels write result 0; expected exactly one"),
        "{twice}"
    );
    let none = refusal(vec![]).expect("no kernel writes the result");
    assert!(none.contains("0 kernels write result 0"), "{none}");
}

fn functions_that_break_their_word_are_errors() -> Result<(), BoxError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [2]))?;
    let mut refused = |op: TestCustomOp| one_line(&g.custom(op, &[x]).expect_err("it is refused"));
    let none: InferFn = |_| Ok(vec![]);
    let many: InferFn = |operands| Ok(vec![operands[0].clone(); 256]);
    let told = refused(TestCustomOp { infer: none, ..OWN });
    assert!(
        told.contains("`test.own` has 0 results; accepted: 1 to 255"),
        "{told}"
    );
    let told = refused(TestCustomOp { infer: many, ..OWN });
    assert!(told.contains("has 256 results"), "{told}");
    for name in ["", "two words", "a..b", "9.a", "nan"] {
        let told = refused(TestCustomOp { name, ..OWN });
        assert!(told.contains("is not a name of the form"), "{name}: {told}");
    }
    let evals: [(EvalFn, &str); 4] = [
        (
            |_, _| Ok(vec![]),
            "`test.own` returned 0 results; expected 1",
        ),
        (
            |x, _| Ok(vec![x[0].clone(), x[0].clone()]),
            "returned 2 results; expected 1",
        ),
        (
            |_, _| Ok(vec![Tensor::scalar(1f32)]),
            "result 0 of `test.own` is f32[]; expected f32[2]",
        ),
        (
            |_, _| Err(EvalError::Data("the moon is full".to_string())),
            "the moon is full",
        ),
    ];
    let data = Tensor::from_slice(&[2], &[1f32, 2.0])?;
    for (eval, want) in evals {
        for constant in [false, true] {
            let mut g = Graph::new();
            let x = g.input("x", Type::new(DType::F32, [2]))?;
            let operand = match constant {
                true => g.constant(data.clone())?,
                false => x,
            };
            let y = g.custom(TestCustomOp { eval, ..OWN }, &[operand])?;
            g.output("y", y)?;
            for device in [Device::cpu(), Device::reference()] {
                let mut exe = device.compile(&g, &CompileOptions::new())?;
                let error = exe.run(&[("x", &data)]).expect_err("the run fails");
                assert!(matches!(error, RunError::Node { .. }), "{error:?}");
                let told = one_line(&error);
                assert!(told.contains(want), "{told}");
            }
        }
    }
    Ok(())
}

/// The tests of this file.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::asserting(
            "custom/a_kernel_that_is_not_as_it_is_said_to_be_is_refused",
            a_kernel_that_is_not_as_it_is_said_to_be_is_refused,
        ),
        SuiteTest::fallible(
            "custom/functions_that_break_their_word_are_errors",
            functions_that_break_their_word_are_errors,
        ),
    ]
}
