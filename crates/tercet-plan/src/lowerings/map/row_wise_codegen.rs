//! WGSL code generation of kernels with maps and row reductions.
//!
//! ```text
//! var<private> r3: f32;                                    // constant along a row
//! fn map_load(v: u32) -> In { .. }                         // operands of a vector
//! fn pass1(raw: In) -> Pass1 { .. }                        // contribution of a vector to the first reductions
//! fn map_work(raw: In) -> Out { .. }                       // results of a vector
//! fn main(..) {
//!     for each vector of the row: join pass1(map_load(..))
//!     over_row(..)                                         // reduce across threads
//!     r3 = ..
//!     for each vector: store map_work(..)
//! }
//! ```

use std::collections::BTreeSet;

use tercet_ir::DType;
use tercet_ir::ops::ReduceFn;

use super::body::{RowStep, RowStepOp, RowSteps, StepArgument};
use super::codegen::{
    ArithmeticMode, GROUP, MapKernelSource, bits_of, needs_careful_path, value_of, values, word,
};
use super::vector::{VectorWidth, binding_type};
use crate::lowerings::{code, portable};
use crate::scalar::{self, WgslHelper, class};

/// Maximum number of row vectors that a thread adds into a single sum. If a thread has more
/// vectors, it first adds blocks of vectors and then the block sums.
const LONG: u32 = 16;

/// Input of the code generator for row kernels.
pub(super) struct RowKernelSource<'m> {
    /// Access patterns of the operands, and the results with one value per element. Code generation
    /// sets the steps for each pass.
    pub(super) map: MapKernelSource<'m>,
    pub(super) steps: RowSteps<'m>,
    /// For each operand, whether all elements of a row read the same number.
    pub(super) are_rows: &'m [bool],
    /// For each result with one number per row, the index of its step and its dtype.
    pub(super) row_results: Vec<(usize, DType)>,
    pub(super) vectors: VectorWidth,
    /// Threads per row.
    pub(super) threads: u32,
    /// Number of row vectors that each thread holds in registers; 0 if every pass reads the row
    /// from memory.
    pub(super) register_vectors: u32,
    /// Index of the first of three parameter words: rows, vectors per row, elements per row.
    pub(super) first_word: usize,
}

impl RowKernelSource<'_> {
    /// Name of the kernel that describes its steps, for people.
    pub(super) fn name(&self) -> String {
        let reductions: Vec<&str> = (self.reductions(None).iter())
            .map(|at| self.function(*at).name())
            .collect();
        let steps = self.steps.0.iter().filter(|s| !s.is_constant()).count();
        let from = self.map.reads.iter().map(|r| r.dtype.name());
        let from: Vec<&str> = from.collect();
        let results = self.map.results.iter();
        let elements: Vec<&str> = results.map(|(_, d)| d.name()).collect();
        format!(
            "rows {} in {steps} steps {}->{} by {} over {}",
            reductions.join(" "),
            from.join(","),
            elements.join(","),
            self.vectors.elements,
            self.threads
        )
    }

    /// WGSL source of the whole module.
    pub(super) fn text(mut self) -> String {
        let mut pieces = Vec::new();
        let mut functions = String::new();
        for pass in 1..=self.passes() {
            functions += &self.pass(pass, &mut pieces);
        }
        if !self.map.results.is_empty() {
            functions += &self.last_pass(&mut pieces);
        }
        let main = self.main(&mut pieces);
        let pieces = scalar::closure(&pieces);
        let threads = format!("const THREADS: u32 = {}u;", self.threads);
        let mut text = scalar::text(&pieces) + "\n";
        text += portable!("cluster.wgsl");
        let rows = portable!("rows.wgsl").replacen("override THREADS: u32 = 256u;", &threads, 1);
        text += &rows.replacen("override ACROSS", "const ACROSS", 1);
        text += portable!("row_floats.wgsl");
        text += portable!("row_ranks.wgsl");
        text += &self.bindings();
        for (at, step) in self.steps.0.iter().enumerate() {
            if step.is_row && !step.is_constant() {
                text += &format!("var<private> r{at}: {};\n", class(step.to).wgsl());
            }
        }
        text += &self.map.operand_struct(&self.vectors);
        text += &self.map.load(&self.vectors);
        text += &functions;
        let zero = match pieces.contains(&WgslHelper::Base) {
            true => format!("    opaque_zero = {};\n", word(1)),
            false => String::new(),
        };
        text + &main.replacen("{zero}", &zero, 1)
    }

    fn bindings(&self) -> String {
        let reads = self
            .map
            .reads
            .iter()
            .map(|r| binding_type(&self.vectors, r));
        let of_elements = self
            .map
            .results
            .iter()
            .map(|(_, d)| self.vectors.type_of(*d));
        let of_rows = self.row_results.iter().map(|_| "u32".to_string());
        let results = of_elements.chain(of_rows).collect();
        self.map.bindings_of(reads.collect(), results)
    }

    /// Number of passes over a row that compute reductions.
    fn passes(&self) -> usize {
        let passes = self.steps.0.iter().map(|s| s.pass);
        passes.max().unwrap_or(0)
    }

    /// Indices of the reduction steps of a pass; for `None`, of all passes.
    fn reductions(&self, pass: Option<usize>) -> Vec<usize> {
        let of_pass = |s: &RowStep| pass.is_none_or(|p| s.pass == p);
        let all = self.steps.0.iter().enumerate();
        let own = all.filter(|(_, s)| matches!(s.work, RowStepOp::Reduce(_)) && of_pass(s));
        own.map(|(at, _)| at).collect()
    }

    fn function(&self, at: usize) -> ReduceFn {
        match self.steps.0[at].work {
            RowStepOp::Reduce(f) => f,
            RowStepOp::Scalar(_) => unreachable!("invariant: the step is a reduction"),
        }
    }

    /// WGSL functions that compute what an element, and a vector, contribute to the reductions of a
    /// pass.
    fn pass(&self, pass: usize, pieces: &mut Vec<WgslHelper>) -> String {
        let reductions = self.reductions(Some(pass));
        if reductions.is_empty() {
            return String::new();
        }
        let args: Vec<StepArgument> = reductions
            .iter()
            .map(|at| self.steps.0[*at].args[0])
            .collect();
        let needed = self.steps.required_steps(args.iter().copied());
        let steps = self.steps.named_steps(&needed);
        let fields = reductions.iter().enumerate().map(|(i, at)| {
            let ty = if is_sum(self.function(*at)) {
                "f32"
            } else {
                "i32"
            };
            format!("    a{i}: {ty},\n")
        });
        let fields: String = fields.collect();
        let params = self.map.parameters();
        let given = reductions.iter().zip(&args).map(|(at, arg)| {
            let name = self.steps.name_of(*arg);
            match self.function(*at) {
                ReduceFn::Max => format!("rank_of({name})"),
                ReduceFn::Min => format!("rank_of(-({name}))"),
                ReduceFn::Sum | ReduceFn::Mean | ReduceFn::Prod => name,
            }
        });
        let given: Vec<String> = given.collect();
        let mut element = |name: &str, how: ArithmeticMode| {
            let body = values(&steps, how, pieces);
            format!(
                "fn pass{pass}_{name}({}) -> Pass{pass} {{\n{body}        return Pass{pass}({});\n}}\n",
                params,
                given.join(", ")
            )
        };
        let in_doubt = needs_careful_path(&steps);
        let exact = match in_doubt {
            true => element("exact", ArithmeticMode::Exact),
            false => element("exact", ArithmeticMode::Native),
        };
        let mut text = format!("struct Pass{pass} {{\n{fields}}}\n{exact}");
        let n = self.vectors.elements;
        if in_doubt {
            text += &element("quick", ArithmeticMode::Native);
            text += &format!(
                "fn pass{pass}_careful(raw: In) -> Pass{pass} {{\n    var held = raw;\n    \
                 var all = pass{pass}_exact({});\n    for (var k = 1u; k < {n}u; k += 1u) {{\n        \
                 let one = pass{pass}_exact({});\n        all = Pass{pass}({});\n    }}\n    return all;\n}}\n",
                self.map.arguments(&self.vectors, Some(0)),
                self.map.arguments(&self.vectors, None),
                self.combined_fields(&reductions, "all", "one"),
            );
        }
        text + &self.vector_body(pass, &reductions, in_doubt)
    }

    /// WGSL function that computes what a vector contributes to the reductions of a pass. It uses
    /// exact arithmetic if an element is flagged as uncertain.
    fn vector_body(&self, pass: usize, reductions: &[usize], in_doubt: bool) -> String {
        let n = self.vectors.elements;
        let name = if in_doubt { "quick" } else { "exact" };
        let mut text = format!("fn pass{pass}(raw: In) -> Pass{pass} {{\n");
        if in_doubt {
            text += "    doubt = false;\n";
        }
        for k in 0..n {
            let args = self.map.arguments(&self.vectors, Some(k));
            text += &format!("    let e{k} = pass{pass}_{name}({args});\n");
        }
        if in_doubt {
            text +=
                &format!("    if (doubt) {{\n        return pass{pass}_careful(raw);\n    }}\n");
        }
        let mut width = 1;
        while width < n {
            for k in (0..n).step_by(2 * width as usize) {
                let joined = self.combined_fields(
                    reductions,
                    &tree_name(k, width),
                    &tree_name(k + width, width),
                );
                let to = tree_name(k, 2 * width);
                text += &format!("    let {to} = Pass{pass}({joined});\n");
            }
            width *= 2;
        }
        text + &format!("    return {};\n}}\n", tree_name(0, n))
    }

    /// WGSL expression that combines two partial results of a pass; they have one field per
    /// reduction.
    fn combined_fields(&self, reductions: &[usize], a: &str, b: &str) -> String {
        let fields = reductions
            .iter()
            .enumerate()
            .map(|(i, at)| match self.function(*at) {
                ReduceFn::Max | ReduceFn::Min => format!("max({a}.a{i}, {b}.a{i})"),
                ReduceFn::Sum | ReduceFn::Mean | ReduceFn::Prod => format!("{a}.a{i} + {b}.a{i}"),
            });
        let fields: Vec<String> = fields.collect();
        fields.join(", ")
    }

    /// WGSL functions of the last pass, which compute the results with one value per element.
    fn last_pass(&mut self, pieces: &mut Vec<WgslHelper>) -> String {
        let wanted = self
            .map
            .results
            .iter()
            .map(|(at, _)| StepArgument::Step(*at));
        let needed = self.steps.required_steps(wanted.collect::<Vec<_>>());
        let steps = self.steps.named_steps(&needed);
        // A result with one number per row gets a separate variable name.
        let results = self.map.results.iter().map(|(at, _)| *at);
        let rows: BTreeSet<usize> = results.filter(|at| self.steps.0[*at].is_row).collect();
        let rows: String = (rows.iter())
            .map(|at| format!("        let s{at} = {};\n", self.steps.name_of_step(*at)))
            .collect();
        let element = |name: &str, how: ArithmeticMode, pieces: &mut Vec<WgslHelper>| {
            let body = values(&steps, how, pieces);
            let params = self.map.parameters();
            let bits = self.map.results.iter().map(|(s, d)| bits_of(*s, *d));
            let bits: Vec<String> = bits.collect();
            format!(
                "fn map_{name}({}) -> Bits {{\n{rows}{body}        return Bits({});\n}}\n",
                params,
                bits.join(", ")
            )
        };
        let mut text = self.map.result_structs(&self.vectors);
        let in_doubt = needs_careful_path(&steps);
        if in_doubt {
            text += &element("exact", ArithmeticMode::Exact, pieces);
            text += &element("quick", ArithmeticMode::Native, pieces);
            text += &self.map.careful(&self.vectors);
        } else {
            text += &element("exact", ArithmeticMode::Native, pieces);
        }
        text + &self.map.work(&self.vectors, in_doubt)
    }

    fn main(&self, pieces: &mut Vec<WgslHelper>) -> String {
        let [rows, units] = [0, 1].map(|i| word(self.first_word + i));
        let threads = self.threads;
        let mut text = format!(
            "\n@compute @workgroup_size({GROUP})\n\
             fn main(\n    \
                 @builtin(workgroup_id) group: vec3<u32>,\n    \
                 @builtin(num_workgroups) groups: vec3<u32>,\n    \
                 @builtin(local_invocation_index) index: u32,\n\
             ) {{\n{{zero}}    \
                 take_place(index);\n    \
                 let row = flat_group(group, groups) * group_rows() + own_row;\n    \
                 let units = {units};\n    \
                 let first = min(row, {rows} - 1u) * units;\n"
        );
        for i in 0..self.register_vectors {
            text += &format!(
                "    let h{i} = map_load(first + min(thread + {}u, units - 1u));\n",
                i * threads
            );
        }
        let raw = match self.register_vectors {
            0 => "map_load(first)",
            _ => "h0",
        };
        text += &format!("    let any = {raw};\n");
        for pass in 0..=self.passes() {
            text += &self.reduce(pass);
            text += &self.row_steps(pass, pieces);
        }
        text += &self.stores(&rows);
        text + "}\n"
    }

    /// WGSL loop over the vectors of a row; the statements in `body` refer to the current vector as
    /// `h`.
    fn each_vector(&self, body: &str) -> String {
        let threads = self.threads;
        if self.register_vectors == 0 {
            return format!(
                "    for (var u = thread; u < units; u += {threads}u) {{\n        \
                 let h = map_load(first + u);\n{body}    }}\n"
            );
        }
        let each = (0..self.register_vectors).map(|i| {
            format!(
                "    if (thread + {0}u < units) {{\n        let u = thread + {0}u;\n        \
                 let h = h{i};\n{body}    }}\n",
                i * threads
            )
        });
        each.collect()
    }

    /// WGSL statements that compute the reductions of a pass over the row.
    fn reduce(&self, pass: usize) -> String {
        let reductions = self.reductions(Some(pass));
        if reductions.is_empty() {
            return String::new();
        }
        let is_long = self.register_vectors == 0 || self.register_vectors > LONG;
        let mut text = String::new();
        let mut body = format!("        let one{pass} = pass{pass}(h);\n");
        let sums: Vec<usize> = (0..reductions.len())
            .filter(|i| is_sum(self.function(reductions[*i])))
            .collect();
        let field = |i: usize| format!("one{pass}.a{i}");
        for pair in sums.chunks(2) {
            let i = pair[0];
            let second = pair.get(1).map_or("0.0".to_string(), |j| field(*j));
            let both = format!("vec2<f32>({}, {second})", field(i));
            match is_long {
                true => {
                    text += &format!("    var t{pass}_{i}: Total;\n");
                    body += &format!("        t{pass}_{i} = add(t{pass}_{i}, {both});\n");
                }
                false => {
                    text += &format!("    var t{pass}_{i} = vec2<f32>(0.0, 0.0);\n");
                    body += &format!("        t{pass}_{i} += {both};\n");
                }
            }
        }
        for (i, at) in reductions.iter().enumerate() {
            if is_sum(self.function(*at)) {
                continue;
            }
            text += &format!("    var t{pass}_{i} = rank_of(as_float(0xff800000u));\n");
            body += &format!("        t{pass}_{i} = max(t{pass}_{i}, {});\n", field(i));
        }
        text += &self.each_vector(&body);
        for pair in sums.chunks(2) {
            let i = pair[0];
            let own = match is_long {
                true => format!("t{pass}_{i}.high + t{pass}_{i}.low"),
                false => format!("t{pass}_{i}"),
            };
            text += &format!("    let w{pass}_{i} = over_row({own}, SUM);\n");
            for (j, part) in pair.iter().zip(["x", "y"]) {
                text += &self.finish(reductions[*j], &format!("w{pass}_{i}.{part}"));
            }
        }
        for (i, at) in reductions.iter().enumerate() {
            let own = format!("vec2<f32>(of_rank(t{pass}_{i}), 0.0)");
            let greatest = format!("over_row({own}, GREATEST).x");
            let all = match self.function(*at) {
                ReduceFn::Max => greatest,
                ReduceFn::Min => format!("-{greatest}"),
                ReduceFn::Sum | ReduceFn::Mean | ReduceFn::Prod => continue,
            };
            text += &self.finish(*at, &all);
        }
        text
    }

    /// WGSL expression for the final value of a reduction, from the combined contributions of all
    /// elements.
    fn finish(&self, at: usize, all: &str) -> String {
        let step = &self.steps.0[at];
        let value = match self.function(at) {
            ReduceFn::Mean => format!("{all} / f32({})", word(self.first_word + 2)),
            _ => all.to_string(),
        };
        match step.to {
            DType::F32 => format!("    r{at} = {value};\n"),
            to => format!("    r{at} = round_to({value}, {}u);\n", code(to)),
        }
    }

    /// WGSL statements for the once-per-row steps that can be computed after a pass.
    fn row_steps(&self, pass: usize, pieces: &mut Vec<WgslHelper>) -> String {
        let mut text = String::new();
        for (at, step) in self.steps.0.iter().enumerate() {
            let RowStepOp::Scalar(op) = &step.work else {
                continue;
            };
            if step.pass != pass || !step.is_row || step.is_constant() {
                continue;
            }
            let args = step.args.iter().map(|arg| match *arg {
                StepArgument::Operand(i) => {
                    debug_assert!(
                        self.are_rows[i],
                        "invariant: the operand is constant along a row"
                    );
                    value_of(self.map.reads[i].dtype, &format!("any.x{i}"), "0u")
                }
                StepArgument::Step(s) => self.steps.name_of_step(s),
            });
            let args: Vec<String> = args.collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let (value, called) = scalar::expression(op, step.from, step.to, &args);
            pieces.extend(called);
            text += &format!("    r{at} = {value};\n");
        }
        text
    }

    fn stores(&self, rows: &str) -> String {
        let mut text = format!("    if (row >= {rows}) {{\n        return;\n    }}\n");
        let elements = self.map.results.len();
        if elements > 0 {
            let mut body = "        let out = map_work(h);\n".to_string();
            for i in 0..elements {
                body += &format!("        y{i}[first + u] = out.y{i};\n");
            }
            text += &self.each_vector(&body);
        }
        if !self.row_results.is_empty() {
            text += "    if (thread == 0u) {\n";
            for (i, (at, dtype)) in self.row_results.iter().enumerate() {
                let value = format!("let s{at} = {};", self.steps.name_of_step(*at));
                let bits = bits_of(*at, *dtype);
                text += &format!("        {{ {value} y{}[row] = {bits}; }}\n", elements + i);
            }
            text += "    }\n";
        }
        text
    }
}

fn is_sum(f: ReduceFn) -> bool {
    matches!(f, ReduceFn::Sum | ReduceFn::Mean)
}

/// Name of the WGSL variable that combines the contributions of `width` elements from `k` on.
fn tree_name(k: u32, width: u32) -> String {
    match width {
        1 => format!("e{k}"),
        _ => format!("e{k}_{width}"),
    }
}
