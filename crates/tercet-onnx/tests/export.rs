//! Round trips of graphs through ONNX: every exportable operator case keeps its semantics after
//! export and import.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message;
use tercet_cases::{CaseGraph, cases};
use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::{
    CompileError, DType, EvalCtx, Evaluation, Graph, OpKind, Tensor, TensorType, Type, evaluate,
    one_line,
};
use tercet_onnx::proto::ModelProto;
use tercet_onnx::{
    ExportError, ImportOptions, OnnxModel, export, import, sizes_of, write, write_with_limit,
};

/// The number of operators with an exportable case, at least.
const MIN_EXPORTED: usize = 83;

/// Cases with other semantics in ONNX, or that cannot be imported again, and the reasons.
const EXCEPTIONS: [(&str, &str); 6] = [
    (
        "stft/part_of_a_hop",
        "its symbol is not an axis of an input",
    ),
    ("unary/silu_special", "x sigmoid(x) of -inf"),
    ("unary/limits_of_silu", "x sigmoid(x) of -inf"),
    ("sort/", "ONNX sorts NaN first in ascending order"),
    ("unique/", "ONNX sorts NaN first in ascending order"),
    (
        "scan/a_branch_and_a_loop_in_a_scan",
        "the importer does not support a loop in a branch of a body",
    ),
];

/// A representative set of dtypes. Narrow GPU floats differ from F32 only by rounding.
const DTYPES: [DType; 7] = [
    DType::F32,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::I16,
    DType::U8,
    DType::Bool,
];

/// Random operators: only their distribution is preserved.
const RANDOM: [&str; 3] = ["rng_uniform", "rng_normal", "sample"];

/// The accuracy class with the largest tolerance among the operators of a graph.
fn accuracy_of(graph: &Graph) -> Accuracy {
    let classes = graph.nodes().map(|(_, n)| n.op.kind().doc().accuracy);
    // Some operators are exported as several, each with its own rounding error.
    classes.fold(Accuracy::Elementwise, Accuracy::max)
}

/// Exports, imports and compares a case. Returns false if the case is not exportable, and an error
/// if the semantics changed.
fn round_trip(case: &CaseGraph, name: &str) -> Result<bool, String> {
    let model = match export(&case.graph, |name| case.tensors.get(name).cloned()) {
        Ok(model) => model,
        Err(
            ExportError::Unsupported(CompileError::Unsupported { .. }) | ExportError::NoForm { .. },
        ) => return Ok(false),
        Err(e) => return Err(one_line(&e)),
    };
    let Ok(want) = evaluate(&case.graph, &EvalCtx::default(), &case.tensors) else {
        // A case that fails in the reference is not compared, because fault messages differ.
        return Ok(true);
    };
    keep(case, name, &model, &want)?;
    let given = |name: &str| case.tensors.get(name).cloned();
    let read = tercet_onnx::OnnxModel::read(model.encode_to_vec()).map_err(|e| one_line(&e))?;
    let options = ImportOptions::default();
    let ports = read.inputs(&options).map_err(|e| one_line(&e))?;
    let arrays: Vec<(&str, &Tensor)> = case.tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let sizes = sizes_of(&ports, &arrays);
    let imported = read.import_at(&options, &sizes, &mut Vec::new(), given);
    let imported = imported.map_err(|e| format!("import: {}", one_line(&e)))?;
    let params = imported.params.iter().cloned();
    let mut leaves: BTreeMap<String, Tensor> = case.tensors.clone();
    leaves.extend(params);
    let got = evaluate(&imported.graph, &EvalCtx::default(), &leaves);
    let got = got.map_err(|e| format!("run: {}", one_line(&e)))?;
    let class = accuracy_of(&case.graph).max(accuracy_of(&imported.graph));
    for output in case.graph.outputs() {
        let own = imported.graph.outputs();
        let own = own.iter().find(|o| o.name == output.name);
        let own = own.ok_or_else(|| format!("no output {}", output.name))?;
        let (got, want) = (got.get(own.value), want.get(output.value));
        // NumPy has no bf16, so inputs and outputs of this dtype are f32 outside of the model.
        let wide = TensorType::new(DType::F32, want.shape());
        let wide = Tensor::from_f64s(wide, &want.to_f64s()).map_err(|e| one_line(&e))?;
        let want = match want.dtype() {
            DType::BF16 => &wide,
            _ => want,
        };
        if got.ty() != want.ty() {
            return Err(format!(
                "{} is {}, not {}",
                output.name,
                got.ty(),
                want.ty()
            ));
        }
        if let Some(f) = furthest(class, got, want).filter(|f| f.units > 1.0) {
            return Err(format!("{}: {f}", output.name));
        }
    }
    Ok(true)
}

/// Writes a case for other tools if a folder is set: the model, and a graph whose initializers are
/// the input tensors and, with the prefix `out:`, the results. `xtask/peers/exported_ort.py` reads
/// them.
fn keep(case: &CaseGraph, name: &str, model: &ModelProto, want: &Evaluation) -> Result<(), String> {
    let Some(folder) = std::env::var_os("TERCET_EXPORTED") else {
        return Ok(());
    };
    let path = Path::new(&folder).join(name.replace('/', "-"));
    let mut all = Graph::new();
    let given = case.tensors.iter().map(|(n, t)| (n.clone(), t.clone()));
    let outputs = case.graph.outputs().iter();
    let outputs = outputs.map(|o| (format!("out:{}", o.name), want.get(o.value).clone()));
    let tensors: BTreeMap<String, Tensor> = given.chain(outputs).collect();
    for (name, tensor) in &tensors {
        let leaf = all.param(name, tercet_ir::Type::from(tensor.ty()));
        let leaf = leaf.map_err(|e| one_line(&e))?;
        all.output(&format!("{name}."), leaf)
            .map_err(|e| one_line(&e))?;
    }
    let data = export(&all, |name| tensors.get(name).cloned()).map_err(|e| one_line(&e))?;
    write(model.clone(), &path.with_extension("onnx")).map_err(|e| one_line(&e))?;
    write(data, &path.with_extension("data.onnx")).map_err(|e| one_line(&e))
}

#[test]
fn what_is_exported_means_the_same() {
    let mut wrong = Vec::new();
    let mut exported = 0;
    let mut counts = BTreeMap::new();
    for &kind in OpKind::ALL {
        let name = kind.doc().name;
        let (mut written, mut all) = (0, 0);
        for case in cases(kind) {
            let dtypes = kind.doc().dtypes.iter().filter(|d| case.runs_with(**d));
            for &dtype in dtypes.filter(|d| DTYPES.contains(d)) {
                let built = case.build(dtype).expect("cases build");
                all += 1;
                let full = format!("{name}/{}/{dtype}", case.name);
                let is_exception = EXCEPTIONS.iter().any(|(case, _)| full.starts_with(case));
                match round_trip(&built, &full) {
                    Ok(had_form) => written += usize::from(had_form),
                    Err(_) if RANDOM.contains(&name) || is_exception => written += 1,
                    Err(e) => wrong.push(format!("{full}: {e}")),
                }
            }
        }
        counts.insert(name, (written, all));
        exported += usize::from(written > 0);
    }
    for (name, (written, all)) in &counts {
        println!("{name}: {written} of {all}");
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(exported >= MIN_EXPORTED, "{exported} operators have a form");
}

#[test]
fn what_has_no_form_is_refused_all_at_once() {
    let text = "graph {
        %x = input{name=\"x\", ty=f32[2, 3]}()
        %a = cum_sum{axis=0, f=prod, exclusive=false, reverse=false}(%x)
        %b = cum_sum{axis=1, f=max, exclusive=false, reverse=false}(%a)
        return %b as \"y\"
    }";
    let graph = tercet_ir::parse(text).unwrap();
    let error = one_line(&export(&graph, |_| None).unwrap_err());
    assert!(
        error.contains("no cumulative `prod`") && error.contains("no cumulative `max`"),
        "{error}"
    );
}

#[test]
fn a_size_that_no_input_says_is_named() {
    let text = "graph {
        %x = input{name=\"x\", ty=f32[1]}()
        %y = expand{shape=[s]}(%x)
        return %y as \"y\"
    }";
    let graph = tercet_ir::parse(text).unwrap();
    let error = one_line(&export(&graph, |_| None).unwrap_err());
    assert!(error.contains("`s`"), "{error}");
}

#[test]
fn a_state_is_an_input_and_an_output() {
    let text = "graph {
        %x = input{name=\"x\", ty=f32[2]}()
        %s = state{name=\"sum\", ty=f32[2]}()
        %n = binary{f=add}(%x, %s)
        assign %s = %n
        return %n as \"y\"
    }";
    let graph = tercet_ir::parse(text).unwrap();
    let model = export(&graph, |_| None).unwrap();
    let imported = import(model.encode_to_vec(), &ImportOptions::default()).unwrap();
    let names = |ports: &[tercet_ir::Port]| -> Vec<String> {
        ports.iter().map(|p| p.name.clone()).collect()
    };
    assert_eq!(names(&imported.inputs), ["x", "sum"]);
    assert_eq!(names(&imported.outputs), ["y", "sum.next"]);
}

#[test]
fn large_tensors_lie_in_a_file_beside() {
    let dir = std::env::temp_dir().join(format!("tercet-export-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("model.onnx");
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [512])).unwrap();
    let w = g.param("w", Type::new(DType::F32, [512])).unwrap();
    let y = g.add(tercet_ir::ops::Where {}, &[]).err();
    assert!(y.is_some());
    let y = g.binary(tercet_ir::scalar::BinaryFn::Add, x, w).unwrap();
    g.output("y", y).unwrap();
    let weights: Vec<f32> = (0..512).map(|i| i as f32).collect();
    let weight = Tensor::from_slice(&[512], &weights).unwrap();
    let model = export(&g, |_| Some(weight.clone())).unwrap();
    write_with_limit(model, &path, 100).unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < 1024);
    let read = OnnxModel::read(path.as_path()).unwrap();
    let imported = read.import(&ImportOptions::default()).unwrap();
    let found = imported
        .params
        .iter()
        .any(|(_, t)| t.bytes() == weight.bytes());
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(found);
}
