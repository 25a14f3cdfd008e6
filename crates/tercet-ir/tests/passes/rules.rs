//! Tests of legalization: every rule applies to some case and preserves its meaning.

use std::collections::BTreeSet;

use tercet_cases::{CaseGraph, cases};
use tercet_ir::accuracy::Accuracy;
use tercet_ir::backend::Signature;
use tercet_ir::legalize::{RULES, legalize, legalize_traced};
use tercet_ir::verify::verify;
use tercet_ir::{
    CompileError, DType, Graph, Node, Op, OpKind, Support, Target, Tier, Type, one_line,
};

use crate::{difference, run};

/// A target with only core operators, and only their plain forms.
pub(crate) struct Strict;

impl Target for Strict {
    fn name(&self) -> &'static str {
        "strict"
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Support {
        let shapes: Vec<_> = node.inputs.iter().map(|v| &graph.ty(*v).shape).collect();
        let reason = match (&node.op, shapes.as_slice()) {
            (op, _) if computes(op) && graph.ty(node.inputs[0]).dtype == DType::I16 => "i16",
            (op, _) if op.kind().doc().tier == Tier::Composite => "composite",
            (Op::Attention(_) | Op::Rope(_) | Op::Map(_), _) => "no fused kernel",
            (Op::MatMul(_), [a, b]) if a.rank() < 2 || b.rank() < 2 => "vector operand",
            (Op::MatMul(_), [a, b]) if a[..a.rank() - 2] != b[..b.rank() - 2] => "batch differs",
            (Op::Binary(_) | Op::Compare(_) | Op::Where(_) | Op::Fma(_), [first, rest @ ..])
                if rest.iter().any(|s| s != first) =>
            {
                "shapes differ"
            }
            (Op::Fft(_), [x]) if !has_short_fft(x[x.rank() - 2].known()) => "long",
            _ => return Support::Native,
        };
        Support::Missing {
            reason: reason.to_string(),
        }
    }
}

/// True for core operators that compute or compare numbers of several elements.
fn computes(op: &Op) -> bool {
    matches!(
        op,
        Op::ArgMax(_)
            | Op::ArgMin(_)
            | Op::CumSum(_)
            | Op::MatMul(_)
            | Op::Pool(_)
            | Op::Reduce(_)
            | Op::ScatterAdd(_)
            | Op::ScatterElements(_)
            | Op::ScatterNd(_)
            | Op::Sort(_)
            | Op::TopK(_)
    )
}

/// True for transform lengths that are a supported radix or a short power of two, and for symbolic
/// ones, which have no decomposition.
fn has_short_fft(n: Option<usize>) -> bool {
    n.is_none_or(|n| n <= 7 || n <= 64 && n.is_power_of_two())
}

/// Calls `f` with every case of every operator and dtype.
fn for_each_case(mut f: impl FnMut(OpKind, &str, DType, &CaseGraph)) {
    for &kind in OpKind::ALL {
        let doc = kind.doc();
        for case in cases(kind) {
            for &dtype in doc.dtypes.iter().filter(|d| case.runs_with(**d)) {
                let name = format!("{}/{}/{dtype}", doc.name, case.name);
                let built = case
                    .build(dtype)
                    .unwrap_or_else(|e| panic!("{name}: {}", one_line(&e)));
                f(kind, &name, dtype, &built);
            }
        }
    }
}

/// The error of the decomposed form of a case, if any.
fn check(kind: OpKind, case: &CaseGraph, legal: &Graph) -> Result<(), String> {
    verify(legal).map_err(|e| one_line(&e))?;
    assert_eq!(Signature::of(&case.graph), Signature::of(legal));
    for (_, node) in legal.nodes() {
        if let Support::Missing { reason } = Strict.supports(legal, node) {
            return Err(format!("{node}: {reason}"));
        }
    }
    // A decomposition has the roundings of its parts.
    let class = kind.doc().accuracy.max(Accuracy::Exact);
    let (mut a, mut b) = (case.tensors.clone(), case.tensors.clone());
    for step in 0..case.runs as u64 {
        match (run(&case.graph, step, &mut a), run(legal, step, &mut b)) {
            (Ok(want), Ok(got)) => {
                for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                    if let Some(d) = difference(class, g, w) {
                        return Err(format!("result {i}: {d}"));
                    }
                }
            }
            (Err(_), Err(_)) => {}
            (Ok(_), Err(e)) => return Err(format!("fails: {}", one_line(&e))),
            (Err(e), Ok(_)) => return Err(format!("does not fail: {}", one_line(&e))),
        }
    }
    Ok(())
}

#[test]
fn decompositions_mean_the_same_and_every_rule_fires() {
    let mut fired: BTreeSet<&str> = BTreeSet::new();
    let mut wrong = Vec::new();
    for_each_case(
        |kind, name, _, case| match legalize_traced(&case.graph, &Strict) {
            Err(e) => wrong.push(format!("{name}: {}", one_line(&e))),
            Ok((legal, rules)) => {
                fired.extend(rules);
                if let Err(e) = check(kind, case, &legal) {
                    wrong.push(format!("{name}: {e}"));
                }
            }
        },
    );
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    let all: BTreeSet<&str> = RULES.iter().copied().flatten().map(|r| r.name).collect();
    assert_eq!(fired, all);
}

#[test]
fn composite_operators_have_rules() {
    for &kind in OpKind::ALL {
        let has = RULES.iter().copied().flatten().any(|r| r.on == kind);
        assert!(
            has || kind.doc().tier != Tier::Composite,
            "{} has no rule",
            kind.doc().name
        );
    }
}

#[test]
fn rule_names_are_unique() {
    let mut names = BTreeSet::new();
    for rule in RULES.iter().copied().flatten() {
        assert!(names.insert(rule.name), "two rules are named {}", rule.name);
    }
}

/// A target without matmuls and without F16 sums.
struct Poor;

impl Target for Poor {
    fn name(&self) -> &'static str {
        "poor"
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Support {
        let half = node.inputs.iter().any(|v| graph.ty(*v).dtype == DType::F16);
        let reason = match node.op.kind() {
            OpKind::MatMul | OpKind::Linear => "no kernel for products",
            OpKind::Unary if half => "no kernel for f16",
            _ => return Support::Native,
        };
        Support::Missing {
            reason: reason.to_string(),
        }
    }
}

#[test]
fn everything_unsupported_is_reported_at_once() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F16, [2, 2])).unwrap();
    let e = g.exp(x).unwrap();
    let y = g.matmul(e, x).unwrap();
    let z = g.linear(y, x, None, None).unwrap();
    g.output("z", z).unwrap();
    let error = legalize(&g, &Poor).unwrap_err();
    let CompileError::Unsupported { nodes, .. } = &error else {
        panic!("{error}");
    };
    let ops: Vec<&str> = nodes.iter().map(|n| n.op).collect();
    assert_eq!(ops, ["unary", "mat_mul", "mat_mul"]);
    assert_eq!(
        error.to_string(),
        "poor cannot run 3 of the graph's nodes:\
         \n  %1 unary -> f16[2, 2]: no kernel for f16; cast its operands to f32\
         \n  %2 mat_mul -> f16[2, 2]: no kernel for products; compile for an executor that supports it, \
         such as `cpu`; `poor` does not\
         \n  %3 mat_mul -> f16[2, 2]: no kernel for products; compile for an executor that supports it, \
         such as `cpu`; `poor` does not"
    );
}

#[test]
fn a_target_that_has_everything_changes_nothing() {
    struct All;
    impl Target for All {
        fn name(&self) -> &'static str {
            "all"
        }
        fn supports(&self, _: &Graph, _: &Node) -> Support {
            Support::Native
        }
    }
    for_each_case(|_, name, _, case| {
        let legal = legalize(&case.graph, &All).unwrap();
        assert_eq!(legal, case.graph, "{name}");
    });
}
