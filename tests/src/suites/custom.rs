//! Tests of user-defined operators on every executor, and of their validation errors.

#[path = "../../../examples/custom-op/src/median.rs"]
mod median;
mod refused;
mod text;

use crate::{SuiteTest, executors};
use tercet::attr::AttrLiteral;
use tercet::custom::{CustomOp, WgslGrid, WgslKernel, WgslParam};
use tercet::grad::{NoGradient, Vjp, VjpResult};
use tercet::{
    CompileError, CompileOptions, DType, Device, Dim, EvalError, Graph, Tensor, TensorType, Type,
    TypeError,
};

type BoxError = Box<dyn std::error::Error>;
type InferFn = fn(&[&Type]) -> Result<Vec<Type>, TypeError>;
type EvalFn = fn(&[&Tensor], &[TensorType]) -> Result<Vec<Tensor>, EvalError>;

/// An operator assembled from its parts.
#[derive(Clone, Debug)]
struct TestCustomOp {
    name: &'static str,
    infer: InferFn,
    eval: EvalFn,
    kernels: Option<Vec<WgslKernel>>,
}

/// The type of the first operand.
fn same(operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
    Ok(vec![operands[0].clone()])
}

fn first(operands: &[&Tensor], _: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
    Ok(vec![operands[0].clone()])
}

const OWN: TestCustomOp = TestCustomOp {
    name: "test.own",
    infer: same,
    eval: first,
    kernels: None,
};

impl CustomOp for TestCustomOp {
    fn name(&self) -> &str {
        self.name
    }

    fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
        Vec::new()
    }

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        (self.infer)(operands)
    }

    fn eval(&self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        (self.eval)(operands, results)
    }

    fn kernels(&self, _: &[&Type], _: &[Type]) -> Option<Vec<WgslKernel>> {
        self.kernels.clone()
    }

    fn gradient(&self, _: &mut Vjp<'_>) -> VjpResult {
        Err(NoGradient::because("the test only runs it"))
    }
}

/// The names and devices of the executors of this machine.
fn devices() -> Vec<(&'static str, &'static Device)> {
    let found = executors().iter().filter_map(|e| match e.device() {
        Ok(device) => Some((e.name, device)),
        Err(reason) if e.is_required() => panic!("{}: {reason}", e.name),
        Err(_) => None,
    });
    found.collect()
}

/// A graph with the operator between two others, so that its operands and results share a buffer.
fn between(op: impl CustomOp + 'static, size: impl Into<Dim>, results: u8) -> Graph {
    let mut g = Graph::new();
    let build = || {
        let x = g.input("x", Type::new(DType::F32, [size.into()]))?;
        let before = g.neg(x)?;
        let y = g.custom(op, &[before, before])?;
        for port in 0..results {
            let after = g.neg(y.port(port))?;
            g.output(&format!("y{port}"), after)?;
        }
        g.output("before", before)
    };
    build().expect("the graph is well typed");
    g
}

const TWO: &str = "
    struct Block { n: u32, shift: i32, scale: f32 }
    @group(0) @binding(0) var<uniform> block: Block;
    @group(0) @binding(1) var<storage, read> a: array<f32>;
    @group(0) @binding(2) var<storage, read> b: array<u32>; // the same numbers as bits
    @group(0) @binding(3) var<storage, read_write> y: array<f32>;

    @compute @workgroup_size(32)
    fn sums(
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) local: u32,
    ) {
        let i = (group.y * count.x + group.x) * 32u + local;
        if i < block.n {
            y[i] = a[i] * block.scale + bitcast<f32>(b[block.n - 1u - i]) + f32(block.shift);
        }
    }";

const PLACES: &str = "
    @group(0) @binding(1) var<storage, read> a: array<f32>;
    @group(0) @binding(2) var<storage, read> b: array<f32>;
    @group(0) @binding(3) var<storage, read_write> places: array<i32>;

    @compute @workgroup_size(8, 2, 1)
    fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.y == 1u && id.x < arrayLength(&places) {
            places[id.x] = i32(id.x) * 3;
        }
    }";

/// `0.5 x + reversed x - 3` by one kernel, and three times the indices by another without a
/// parameter block.
fn two_kernels(n: Dim) -> TestCustomOp {
    let sums = WgslKernel {
        source: TWO.to_string(),
        entry: "sums".to_string(),
        workgroup: [32, 1, 1],
        writes: vec![0],
        params: vec![
            WgslParam::U32(n.clone()),
            WgslParam::I32(-3),
            WgslParam::F32(0.5),
        ],
        grid: WgslGrid::Line(n.clone()),
    };
    let places = WgslKernel {
        source: PLACES.to_string(),
        entry: "main".to_string(),
        workgroup: [8, 2, 1],
        writes: vec![1],
        params: vec![],
        grid: WgslGrid::Axes([n, 2.into(), 1.into()]),
    };
    TestCustomOp {
        name: "test.two",
        infer: |operands| {
            Ok(vec![
                operands[0].clone(),
                operands[0].with_dtype(DType::I32),
            ])
        },
        eval: |operands, results| {
            let (x, n) = (operands[0].to_f64s(), operands[0].numel());
            let sums: Vec<f64> = (0..n).map(|i| 0.5 * x[i] + x[n - 1 - i] - 3.0).collect();
            let places: Vec<i64> = (0..n as i64).map(|i| 3 * i).collect();
            Ok(vec![
                Tensor::from_f64s(results[0].clone(), &sums)?,
                Tensor::from_i64s(results[1].clone(), &places)?,
            ])
        },
        kernels: Some(vec![sums, places]),
    }
}

fn users_kernels_give_what_users_functions_give() -> Result<(), BoxError> {
    let g = between(two_kernels(Dim::sym("n")), Dim::sym("n"), 2);
    let options = CompileOptions::new().bound("n", 300);
    for (name, device) in devices() {
        let mut exe = device.compile(&g, &options)?;
        for n in [7usize, 300, 1, 0, 33] {
            // Integer inputs make all sums exact.
            let x: Vec<f32> = (0..n).map(|i| (i * 37 % 64) as f32 - 32.0).collect();
            let outputs = exe.run(&[("x", &Tensor::from_slice(&[n], &x)?)])?;
            let sum = |i: usize| 0.5 * x[i] + x[n - 1 - i] + 3.0;
            let sums: Vec<f32> = (0..n).map(sum).collect();
            assert_eq!(outputs[0].as_slice::<f32>()?, sums, "{name} {n}");
            let places: Vec<i32> = (0..n as i32).map(|i| -3 * i).collect();
            assert_eq!(outputs[1].as_slice::<i32>()?, places, "{name} {n}");
        }
    }
    Ok(())
}

/// Tests the example crate `custom-op` on every executor. The crate's own tests run on the CPU
/// only.
fn the_example_agrees_with_its_reference() -> Result<(), BoxError> {
    let mut g = Graph::new();
    let shape = [Dim::sym("rows"), Dim::sym("columns")];
    let x = g.input("x", Type::new(DType::F32, shape))?;
    let y = g.custom(median::RunningMedian { width: 5 }, &[x])?;
    g.output("y", y)?;
    let options = CompileOptions::new().bound("rows", 9).bound("columns", 200);
    let mut want = Device::reference().compile(&g, &options)?;
    for (name, device) in devices() {
        let mut exe = device.compile(&g, &options)?;
        for [rows, columns] in [[3, 200], [9, 1], [1, 3], [0, 7], [4, 0]] {
            let x: Vec<f32> = (0..rows * columns).map(|i| (i * 37 % 19) as f32).collect();
            let x = Tensor::from_slice(&[rows, columns], &x)?;
            let (got, want) = (exe.run(&[("x", &x)])?, want.run(&[("x", &x)])?);
            assert_eq!(got, want, "{name} {rows} {columns}");
        }
    }
    Ok(())
}

fn an_operator_without_wgsl_runs_on_the_cpu_only() -> Result<(), BoxError> {
    let g = between(OWN, 3, 1);
    let x = Tensor::from_slice(&[3], &[1f32, -2.0, 0.5])?;
    for device in [Device::cpu(), Device::reference()] {
        let mut exe = device.compile(&g, &CompileOptions::new())?;
        assert_eq!(
            exe.run(&[("x", &x)])?[0].as_slice::<f32>()?,
            [1.0, -2.0, 0.5]
        );
    }
    for (name, device) in devices().into_iter().filter(|(name, _)| *name != "cpu") {
        let error = device.compile(&g, &CompileOptions::new()).err();
        let Some(CompileError::Unsupported { nodes, .. }) = error else {
            panic!("{name}: {error:?}");
        };
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0].op, "custom");
        assert_eq!(nodes[0].reason, "`test.own` has no WGSL for f32[3], f32[3]");
    }
    Ok(())
}

const WILD: &str = "
    @group(0) @binding(1) var<storage, read> a: array<u32>;
    @group(0) @binding(2) var<storage, read> b: array<u32>;
    @group(0) @binding(3) var<storage, read_write> y: array<u32>;
    var<workgroup> few: array<u32, 4>;

    @compute @workgroup_size(64)
    fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        few[id.x * 999u] = 7u;
        workgroupBarrier();
        for (var i = 0u; i < 3000u; i += 1u) {
            y[i * 1000u + id.x] = a[i * 77777u + id.x] + b[0u - i - 1u] + few[i + id.x * 4096u];
        }
    }";

fn a_kernel_that_writes_everywhere_stays_inside_its_result() -> Result<(), BoxError> {
    let wild = WgslKernel {
        source: WILD.to_string(),
        entry: "main".to_string(),
        workgroup: [64, 1, 1],
        writes: vec![0],
        params: vec![],
        grid: WgslGrid::Line(64.into()),
    };
    let op = TestCustomOp {
        name: "test.wild",
        kernels: Some(vec![wild]),
        ..OWN
    };
    let mut g = between(op, 100, 1);
    let [one, two] = [0u8, 1].map(|i| g.input(&format!("i{i}"), Type::new(DType::F32, [5000])));
    let sum = g.plus(one?, two?)?;
    let sum = g.neg(sum)?;
    g.output("sum", sum)?;
    let x = Tensor::from_slice(&[100], &[1f32; 100])?;
    let other = Tensor::from_slice(&[5000], &[2f32; 5000])?;
    for (name, device) in devices() {
        let mut exe = device.compile(&g, &CompileOptions::new())?;
        for _ in 0..2 {
            let outputs = exe.run(&[("x", &x), ("i0", &other), ("i1", &other)])?;
            assert_eq!(outputs[1].as_slice::<f32>()?, [-1f32; 100], "{name}");
            assert_eq!(outputs[2].as_slice::<f32>()?, [-4f32; 5000], "{name}");
        }
    }
    Ok(())
}

fn a_long_line_goes_on_along_the_second_axis() -> Result<(), BoxError> {
    const N: usize = 70_001;
    let kernel = WgslKernel {
        source: TWO
            .replace("@workgroup_size(32)", "@workgroup_size(1)")
            .replace(" * 32u", ""),
        workgroup: [1, 1, 1],
        ..two_kernels(N.into())
            .kernels
            .into_iter()
            .flatten()
            .next()
            .expect("two kernels")
    };
    let op = TestCustomOp {
        name: "test.long",
        kernels: Some(vec![kernel]),
        eval: |operands, results| {
            let (x, n) = (operands[0].to_f64s(), operands[0].numel());
            let sums: Vec<f64> = (0..n).map(|i| 0.5 * x[i] + x[n - 1 - i] - 3.0).collect();
            Ok(vec![Tensor::from_f64s(results[0].clone(), &sums)?])
        },
        ..OWN
    };
    let g = between(op, N, 1);
    let x: Vec<f32> = (0..N).map(|i| (i % 64) as f32).collect();
    let x = Tensor::from_slice(&[N], &x)?;
    let mut want = None;
    for (name, device) in devices() {
        let mut exe = device.compile(&g, &CompileOptions::new())?;
        let got = exe.run(&[("x", &x)])?.swap_remove(0);
        assert_eq!(want.get_or_insert_with(|| got.clone()), &got, "{name}");
    }
    Ok(())
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = vec![
        SuiteTest::fallible(
            "custom/users_kernels_give_what_users_functions_give",
            users_kernels_give_what_users_functions_give,
        ),
        SuiteTest::fallible(
            "custom/the_example_agrees_with_its_reference",
            the_example_agrees_with_its_reference,
        ),
        SuiteTest::fallible(
            "custom/an_operator_without_wgsl_runs_on_the_cpu_only",
            an_operator_without_wgsl_runs_on_the_cpu_only,
        ),
        SuiteTest::fallible(
            "custom/a_kernel_that_writes_everywhere_stays_inside_its_result",
            a_kernel_that_writes_everywhere_stays_inside_its_result,
        ),
        SuiteTest::fallible(
            "custom/a_long_line_goes_on_along_the_second_axis",
            a_long_line_goes_on_along_the_second_axis,
        ),
    ];
    tests.extend(refused::tests());
    tests.extend(text::tests());
    tests
}
