//! WGSL code generation of kernels with sums over leading axes.
//!
//! ```text
//! fn map_load(v: u32) -> In { .. }                         // operands of a vector
//! fn given_quick(v0: f32) -> Given { .. }                  // contribution of an element to the sums
//! fn main(..) {
//!     for each row of the strip: t0_0 += given(..).a0 ..   // per element
//!     add those of other rows of the workgroup
//!     y0[strip * columns + column] = ..
//! }
//! ```

use super::body::{RowSteps, StepArgument};
use super::codegen::{ArithmeticMode, GROUP, MapKernelSource, needs_careful_path, values, word};
use super::vector::{VectorWidth, binding_type};
use crate::scalar::{self, WgslHelper};

/// Number of rows that a thread reads per loop iteration (unrolling).
const TURNS: u32 = 4;

/// Input of the code generator for kernels with column or channel sums.
pub(super) struct ColumnKernelSource<'m> {
    /// Access patterns of the operands, and the elementwise steps that compute the summands.
    pub(super) map: MapKernelSource<'m>,
    pub(super) steps: RowSteps<'m>,
    /// Sources of the sums.
    pub(super) sums: &'m [StepArgument],
    pub(super) vectors: VectorWidth,
    pub(super) around: OuterAxes,
    /// Whether the kernel writes the partial results of all sums to one buffer, one sum after the
    /// other.
    pub(super) single_buffer: bool,
    /// Index of the first of five parameter words. The words for sums over rows: rows, vectors per
    /// row, rows per strip, workgroups across a row, strips. The words for channels: vectors per
    /// channel, contiguous vectors, vectors per strip, channels, strips.
    pub(super) first_word: usize,
}

/// Position of the summed axes relative to the axes that remain in the result.
#[derive(Clone, Copy)]
pub(super) enum OuterAxes {
    /// Column sums (over rows), with this number of adjacent threads per row.
    ThreadsPerRow(u32),
    /// Sums over axes before and after the channel axis; each workgroup processes one channel.
    Channels,
}

impl ColumnKernelSource<'_> {
    /// Name of the kernel that describes its steps, for people.
    pub(super) fn name(&self) -> String {
        let from: Vec<&str> = self.map.reads.iter().map(|r| r.dtype.name()).collect();
        let steps = self.steps.0.iter().filter(|s| !s.is_constant()).count();
        let (what, over) = match self.around {
            OuterAxes::ThreadsPerRow(beside) => ("columns", format!(" over {beside}")),
            OuterAxes::Channels => ("channels", String::new()),
        };
        format!(
            "{what} {} sums of {steps} steps {} by {}{over}",
            self.sums.len(),
            from.join(","),
            self.vectors.elements,
        )
    }

    /// WGSL source of the whole module.
    pub(super) fn text(&self) -> String {
        let mut pieces = Vec::new();
        let functions = self.functions(&mut pieces);
        let pieces = scalar::closure(&pieces);
        let zero = match pieces.contains(&WgslHelper::Base) {
            true => format!("    opaque_zero = {};\n", word(1)),
            false => String::new(),
        };
        let mut text = scalar::text(&pieces) + "\n";
        let reads = self.map.reads.iter();
        let reads = reads.map(|r| binding_type(&self.vectors, r)).collect();
        let results = match self.single_buffer {
            true => vec!["u32".to_string()],
            false => vec!["u32".to_string(); self.sums.len()],
        };
        text += &self.map.bindings_of(reads, results);
        text += &self.map.operand_struct(&self.vectors);
        text += &self.map.load(&self.vectors);
        text += &functions;
        text + &match self.around {
            OuterAxes::ThreadsPerRow(beside) => self.main(&zero, beside),
            OuterAxes::Channels => self.main_of_channels(&zero),
        }
    }

    /// Index of the buffer for the partial results of sum `i`, and their offset in it as a WGSL
    /// expression. In a shared buffer, sum `i` follows the previous sums, each of `columns` columns
    /// by `strips` strips.
    fn target(&self, i: usize, strips: &str, columns: &str) -> (usize, String) {
        match (self.single_buffer, i) {
            (true, 1..) => (0, format!("{i}u * {strips} * {columns} + ")),
            (true, 0) => (0, String::new()),
            (false, _) => (i, String::new()),
        }
    }

    /// WGSL functions that compute what an element, and a vector of elements, contribute to the
    /// sums.
    fn functions(&self, pieces: &mut Vec<WgslHelper>) -> String {
        let needed = self.steps.required_steps(self.sums.iter().copied());
        let steps = self.steps.named_steps(&needed);
        let params = self.map.parameters();
        let given: Vec<String> = self.sums.iter().map(|s| self.steps.name_of(*s)).collect();
        let mut element = |name: &str, how: ArithmeticMode| {
            let body = values(&steps, how, pieces);
            format!(
                "fn given_{name}({}) -> Given {{\n{body}        return Given({});\n}}\n",
                params,
                given.join(", ")
            )
        };
        let in_doubt = needs_careful_path(&steps);
        let exact = match in_doubt {
            true => element("exact", ArithmeticMode::Exact),
            false => element("exact", ArithmeticMode::Native),
        };
        let fields = (0..self.sums.len()).map(|i| format!("    a{i}: f32,\n"));
        let fields: String = fields.collect();
        let n = self.vectors.elements;
        let mut text =
            format!("struct Given {{\n{fields}}}\nalias All = array<Given, {n}>;\n{exact}");
        let name = if in_doubt { "quick" } else { "exact" };
        let all = (0..n).map(|k| {
            let args = self.map.arguments(&self.vectors, Some(k));
            format!("given_{name}({args})")
        });
        let all: Vec<String> = all.collect();
        let all = all.join(", ");
        if in_doubt {
            let args = self.map.arguments(&self.vectors, None);
            text += &element("quick", ArithmeticMode::Native);
            text += &format!(
                "fn given_careful(raw: In) -> All {{\n    var held = raw;\n    var all: All;\n    \
                 for (var k = 0u; k < {n}u; k += 1u) {{\n        all[k] = given_exact({args});\n    }}\n    \
                 return all;\n}}\n\
                 fn given(raw: In) -> All {{\n    doubt = false;\n    let all = All({all});\n    \
                 if (doubt) {{\n        return given_careful(raw);\n    }}\n    return all;\n}}\n"
            );
        } else {
            text += &format!("fn given(raw: In) -> All {{\n    return All({all});\n}}\n");
        }
        text
    }

    fn main(&self, zero: &str, beside: u32) -> String {
        let [rows, units, strip, across, strips] =
            [0, 1, 2, 3, 4].map(|i| word(self.first_word + i));
        let deep = GROUP / beside;
        let n = self.vectors.elements;
        let each = |line: &dyn Fn(usize, u32) -> String| self.each(line);
        let sums = each(&|i, k| format!("    var t{i}_{k} = 0.0;\n"));
        let mut loads = String::new();
        let mut adds = String::new();
        for t in 0..TURNS {
            let row = format!("row + {}u", t * deep);
            loads +=
                &format!("        let h{t} = map_load(min({row}, {rows} - 1u) * units + own);\n");
            let add = each(&|i, k| format!("            t{i}_{k} += all[{k}].a{i};\n"));
            adds += &format!(
                "        if ({row} < end) {{\n            let all = given(h{t});\n{add}        }}\n"
            );
        }
        let totals = each(&|i, k| {
            let (to, before) = self.target(i, &strips, &format!("(units * {n}u)"));
            format!(
                "    total(index, t{i}_{k});\n    \
                 if (is_first) {{\n        y{to}[{before}at + {k}u] = bitcast<u32>(all_rows(beside));\n    }}\n"
            )
        });
        format!(
            "var<workgroup> pool: array<f32, {GROUP}>;\n\
             fn total(index: u32, x: f32) {{\n    workgroupBarrier();\n    pool[index] = x;\n    \
             workgroupBarrier();\n}}\n\
             fn all_rows(beside: u32) -> f32 {{\n    var sum = pool[beside];\n    \
             for (var k = 1u; k < {deep}u; k += 1u) {{\n        sum += pool[k * {beside}u + beside];\n    }}\n    \
             return sum;\n}}\n\
             \n@compute @workgroup_size({GROUP})\n\
             fn main(\n    \
                 @builtin(workgroup_id) group: vec3<u32>,\n    \
                 @builtin(num_workgroups) groups: vec3<u32>,\n    \
                 @builtin(local_invocation_index) index: u32,\n\
             ) {{\n{zero}    \
                 let flat = flat_group(group, groups);\n    \
                 let units = {units};\n    \
                 let beside = index % {beside}u;\n    \
                 let unit = (flat % {across}) * {beside}u + beside;\n    \
                 let own = min(unit, units - 1u);\n    \
                 let part = flat / {across};\n    \
                 let end = min((part + 1u) * {strip}, {rows});\n\
             {sums}    \
                 for (var row = part * {strip} + index / {beside}u; row < end; row += {}u) {{\n\
             {loads}{adds}    }}\n    \
                 let is_first = index < {beside}u && unit < units && part < {strips};\n    \
                 let at = (part * units + unit) * {n}u;\n\
             {totals}}}\n",
            TURNS * deep
        )
    }

    /// Generates one WGSL line for each pair of a sum and an element of a vector.
    fn each(&self, line: &dyn Fn(usize, u32) -> String) -> String {
        let n = self.vectors.elements;
        let all = (0..self.sums.len()).flat_map(|i| (0..n).map(move |k| (i, k)));
        all.map(|(i, k)| line(i, k)).collect()
    }

    /// WGSL source of `main` for channels: each workgroup processes a strip of one channel.
    fn main_of_channels(&self, zero: &str) -> String {
        let [vectors, together, strip, channels, strips] =
            [0, 1, 2, 3, 4].map(|i| word(self.first_word + i));
        let n = self.vectors.elements;
        let sums = self.each(&|i, k| format!("    var t{i}_{k} = 0.0;\n"));
        let mut loads = String::new();
        let mut adds = String::new();
        for t in 0..TURNS {
            let at = format!("at + {}u", t * GROUP);
            loads += &format!("        let h{t} = map_load(vector_of({at}, channel));\n");
            let add = self.each(&|i, k| format!("            t{i}_{k} += all[{k}].a{i};\n"));
            adds += &format!(
                "        if ({at} < end) {{\n            let all = given(h{t});\n{add}        }}\n"
            );
        }
        let totals = (0..self.sums.len()).map(|i| {
            let own: Vec<String> = (0..n).map(|k| format!("t{i}_{k}")).collect();
            let (to, before) = self.target(i, &strips, &channels);
            format!(
                "    let s{i} = total(index, {});\n    \
                 if (index == 0u && part < {strips}) {{\n        \
                 y{to}[{before}part * {channels} + channel] = bitcast<u32>(s{i});\n    }}\n",
                own.join(" + ")
            )
        });
        let totals: String = totals.collect();
        let halves = (0..GROUP.ilog2()).rev().map(|bit| {
            let half = 1 << bit;
            format!(
                "    if (index < {half}u) {{\n        pool[index] += pool[index + {half}u];\n    }}\n    \
                 workgroupBarrier();\n"
            )
        });
        let halves: String = halves.collect();
        format!(
            "var<workgroup> pool: array<f32, {GROUP}>;\n\
             fn total(index: u32, x: f32) -> f32 {{\n    workgroupBarrier();\n    pool[index] = x;\n    \
             workgroupBarrier();\n    \
{halves}    return pool[0];\n}}\n\
             fn vector_of(at: u32, channel: u32) -> u32 {{\n    \
             let i = min(at, {vectors} - 1u);\n    let entry = i / {together};\n    \
             return (entry * {channels} + channel) * {together} + i - entry * {together};\n}}\n\
             \n@compute @workgroup_size({GROUP})\n\
             fn main(\n    \
                 @builtin(workgroup_id) group: vec3<u32>,\n    \
                 @builtin(num_workgroups) groups: vec3<u32>,\n    \
                 @builtin(local_invocation_index) index: u32,\n\
             ) {{\n{zero}    \
                 let flat = flat_group(group, groups);\n    \
                 let channel = flat % {channels};\n    \
                 let part = flat / {channels};\n    \
                 let end = min((part + 1u) * {strip}, {vectors});\n\
             {sums}    \
                 for (var at = part * {strip} + index; at < end; at += {}u) {{\n\
             {loads}{adds}    }}\n\
             {totals}}}\n",
            TURNS * GROUP
        )
    }
}
