//! Checks that `docs/reference/operators.md` agrees with the code. The page has one row per
//! operator, generated from its declaration and the executors' support of its cases.
//! `TERCET_UPDATE_DOCS=1`, which `cargo xtask docs` sets, rewrites the page.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tercet_cpu::CpuTarget;
use tercet_ir::layout::is_view;
use tercet_ir::{DType, GradientKind, Graph, Node, OpKind, Target, Tier};
use tercet_plan::{DeviceCaps, PlanTarget};

const HEAD: &str = "\
# Operators

`cargo xtask docs` generates this page from `crates/tercet-ir/src/ops/` and the kernel tables.
`tercet ops` prints it.
The [text format](text-format.md) defines the syntax of attributes.

The column `dtypes` lists the dtypes of the operator's test cases.
GPUs do not support `f64`, and compute `i64` as `i32` if all values fit.

The columns `cpu`, `wgpu` and `vulkan` show how an executor runs the operator:

- `native`: a kernel for this operator.
- `fused`: a kernel for an operator that otherwise decomposes.
- `decomposed`: a rule rewrites the operator into other operators.
- `view`: only sizes and strides change; nothing runs.
- `leaf`: an input, parameter, constant or state; nothing runs.
- `reference`: the reference interpreter evaluates the operator; exact and slow.

If support depends on dtypes or attributes, the cell lists every variant of the test cases.
The column `wgpu` assumes the limits of a browser, the column `vulkan` a device with cooperative matrices.

The column `accuracy` is the tolerance class of `crates/tercet-tensor/src/accuracy.rs`.

The column `gradient` is `rule` for a differentiation rule.
It is `decomposed` if gradients use the decomposition of the operator.
`zero` and `none` come with the reason ([ADR 0018](../design/adr/0018-gradients-are-graphs.md)).

";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/operators.md")
}

/// Calls `f` with every node of this operator in its cases, for every dtype.
fn for_each_node(kind: OpKind, mut f: impl FnMut(DType, &Graph, &Node)) {
    for case in tercet_cases::cases(kind) {
        for &dtype in kind.doc().dtypes.iter().filter(|d| case.runs_with(**d)) {
            let built = case.build(dtype).expect("cases build");
            let own = built.graph.nodes().filter(|(_, n)| n.op.kind() == kind);
            own.for_each(|(_, node)| f(dtype, &built.graph, node));
        }
    }
}

/// Formats the words of a table cell, each with the dtypes that it applies to; a single word is
/// printed without dtypes.
fn shown(words: &BTreeMap<&'static str, Vec<DType>>) -> String {
    let named = |(word, dtypes): (&&str, &Vec<DType>)| {
        let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
        format!("{word} ({})", names.join(" "))
    };
    match words.len() {
        1 => words.keys().map(ToString::to_string).collect(),
        _ => words.iter().map(named).collect::<Vec<_>>().join(", "),
    }
}

fn is_leaf(kind: OpKind) -> bool {
    use OpKind::{Const, Input, Param, State};
    matches!(kind, Input | Param | Const | State)
}

/// The support of a target for an operator.
fn how(
    kind: OpKind,
    dtypes: fn(DType) -> bool,
    word: impl Fn(&Graph, &Node) -> &'static str,
) -> String {
    if is_leaf(kind) {
        return "leaf".to_string();
    }
    if is_view(kind) {
        return "view".to_string();
    }
    let mut words: BTreeMap<&'static str, Vec<DType>> = BTreeMap::new();
    for_each_node(kind, |dtype, graph, node| {
        let all = node
            .inputs
            .iter()
            .map(|v| graph.ty(*v))
            .chain(&node.outputs);
        if all.into_iter().all(|ty| dtypes(ty.dtype)) {
            let list = words.entry(word(graph, node)).or_default();
            if !list.contains(&dtype) {
                list.push(dtype);
            }
        }
    });
    shown(&words)
}

/// The word for a node that the target supports directly, or not.
fn word(node: &Node, native: bool) -> &'static str {
    match (node.op.kind().doc().tier, native) {
        (Tier::Core, true) => "native",
        (Tier::Composite, true) => "fused",
        (Tier::Core | Tier::Composite, false) => "decomposed",
    }
}

fn on_cpu(kind: OpKind) -> String {
    how(
        kind,
        |_| true,
        |graph, node| match CpuTarget.kernel(graph, node) {
            Some("reference_eval") => "reference",
            kernel => word(node, kernel.is_some()),
        },
    )
}

fn on_gpu(kind: OpKind, caps: &DeviceCaps) -> String {
    let narrow = |dtype| !matches!(dtype, DType::F64 | DType::I64);
    how(kind, narrow, |graph, node| {
        word(node, PlanTarget(caps).supports(graph, node).is_native())
    })
}

fn dtypes(list: &[DType]) -> String {
    let named = [
        (DType::ALL, "all"),
        (DType::NUMBERS, "numbers"),
        (DType::FLOATS, "floats"),
        (DType::INTS, "integers"),
    ];
    if let Some((_, name)) = named.iter().find(|(all, _)| *all == list) {
        return name.to_string();
    }
    let names: Vec<&str> = list.iter().map(|d| d.name()).collect();
    names.join(" ")
}

fn gradient(kind: OpKind) -> String {
    match kind.gradient() {
        GradientKind::Rule => "rule".to_string(),
        GradientKind::Decompose => "decomposed".to_string(),
        GradientKind::Zero(reason) => format!("zero: {reason}"),
        GradientKind::None(reason) => format!("none: {reason}"),
    }
}

fn row(kind: OpKind) -> String {
    let doc = kind.doc();
    let attrs = kind.attr_kinds();
    let attrs = attrs.iter().map(|(name, kind)| match kind.as_str() {
        // `docs/reference/text-format.md` contains the long list of functions.
        words if words.len() > 60 => format!("`{name}`"),
        words => format!("`{name}`: {words}"),
    });
    let operands = doc.operands.iter().map(|o| format!("`{o}`"));
    let cells = [
        format!("`{}`", doc.name),
        operands.collect::<Vec<_>>().join(" "),
        attrs.collect::<Vec<_>>().join("; "),
        dtypes(doc.dtypes),
        format!("{:?}", doc.accuracy).to_lowercase(),
        on_cpu(kind),
        on_gpu(kind, &DeviceCaps::browser()),
        on_gpu(kind, &DeviceCaps::h200()),
        gradient(kind),
        doc.text.to_string(),
    ];
    let cells = cells.map(|c| c.replace('|', "\\|"));
    format!("| {} |\n", cells.join(" | "))
}

#[test]
#[cfg_attr(
    not(feature = "splat"),
    ignore = "the list has the operators of every feature"
)]
fn the_table_of_operators_is_up_to_date() {
    let mut want = HEAD.to_string();
    want += "| operator | operands | attributes | dtypes | accuracy | cpu | wgpu | vulkan | gradient | meaning |\n";
    want += "|---|---|---|---|---|---|---|---|---|---|\n";
    OpKind::ALL.iter().for_each(|&kind| want += &row(kind));
    let doc = std::fs::read_to_string(path()).unwrap_or_default();
    // A checkout may have other line endings.
    if doc.replace("\r\n", "\n") == want {
        return;
    }
    if std::env::var_os("TERCET_UPDATE_DOCS").is_some() {
        std::fs::write(path(), want).expect("docs/reference/operators.md is written");
        return;
    }
    let pairs = doc.lines().zip(want.lines());
    let first = pairs.enumerate().find(|(_, (a, b))| a != b);
    panic!("docs/reference/operators.md is stale, first at {first:?}; run `cargo xtask docs`");
}
