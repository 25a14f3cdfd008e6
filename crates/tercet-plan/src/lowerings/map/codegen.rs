//! WGSL code generation of maps.
//!
//! ```text
//! struct Params { w: array<vec4<u32>, 1> }
//! @group(0) @binding(0) var<uniform> p: Params;
//! @group(0) @binding(1) var<storage, read> x0: array<u32>;
//! @group(0) @binding(2) var<storage, read_write> y0: array<u32>;
//! fn main(..) {
//!     let first = (flat_group(group, groups) * 256u + local) * 2u;
//!     var word0 = 0u;
//!     for (var i = first; i < min(first + 2u, p.w[0].x); i += 1u) {
//!         let v0 = float_of(x0[i >> 1u], i & 1u, 1u);
//!         let s0 = round_to(f_exp(v0), 1u);
//!         word0 |= float_bits(s0, 1u) << (16u * (i & 1u));
//!         if ((i & 1u) == 1u || i + 1u == p.w[0].x) { y0[i >> 1u] = word0; word0 = 0u; }
//!     }
//! }
//! ```
//!
//! Each thread computes whole 32-bit words of every result. The result dtype with the most elements
//! per 32-bit word determines how many elements a thread computes.

use std::fmt::Write;

use tercet_ir::DType;
use tercet_ir::scalar::ScalarOp;

use super::vector::VectorWidth;
use crate::lowerings::code;
use crate::scalar::{self, ScalarClass, WgslHelper, class, sign_extended16};

/// Threads per workgroup.
pub(super) const GROUP: u32 = 256;

/// How a thread reads the elements of an operand for one vector of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VectorLoad {
    /// The thread loads the elements as one vector of 32-bit words.
    Vector,
    /// All results of the vector read the same operand element, so the thread loads it once.
    Broadcast,
    /// The thread loads each element separately.
    PerElement,
}

/// How a map kernel reads an operand.
pub(super) struct OperandRead {
    pub(super) dtype: DType,
    /// The operand is read at the linear index of the result element.
    pub(super) flat: bool,
    /// Index of the parameter word that holds the operand's offset; `None` for offset 0.
    pub(super) offset: Option<usize>,
    pub(super) terms: Vec<IndexTerm>,
    pub(super) load: VectorLoad,
    /// Index of the result that overwrites this operand in place, element by element.
    pub(super) result: Option<usize>,
}

impl OperandRead {
    /// Short text for the access: the dtype, then the result axis groups that address the operand
    /// with their index shifts, as in `f32` or `f16[0,1>>1]`.
    fn name(&self) -> String {
        let terms = self.terms.iter().map(|t| match t.shift {
            0 => t.group.to_string(),
            n => format!("{}>>{n}", t.group),
        });
        let terms: Vec<String> = terms.collect();
        match (self.flat, self.result) {
            (true, None) => self.dtype.name().to_string(),
            (true, Some(result)) => format!("{} of y{result}", self.dtype.name()),
            (false, _) => format!("{}[{}]", self.dtype.name(), terms.join(",")),
        }
    }

    /// Name of the WGSL array that binds operand `i`.
    pub(super) fn array(&self, i: usize) -> String {
        match self.result {
            Some(result) => format!("y{result}"),
            None => format!("x{i}"),
        }
    }
}

/// One term of an operand's address: a parameter word times (coordinate of an axis group >> shift).
pub(super) struct IndexTerm {
    pub(super) group: usize,
    pub(super) shift: u8,
    pub(super) word: usize,
}

/// A map step with the WGSL names of its arguments.
pub(super) struct NamedStep<'m> {
    pub(super) at: usize,
    pub(super) op: &'m ScalarOp,
    pub(super) args: Vec<String>,
    /// Name of the operand that stores the step's value, if it was computed by an earlier kernel.
    pub(super) kept: Option<String>,
    pub(super) from: DType,
    pub(super) to: DType,
}

/// Input of the code generator for maps.
pub(super) struct MapKernelSource<'m> {
    /// Number of axis groups; a group consists of result axes that are merged into one coordinate.
    /// Parameter words from 2 on contain the sizes of the groups, except the outermost.
    pub(super) axes: usize,
    pub(super) reads: Vec<OperandRead>,
    pub(super) steps: Vec<NamedStep<'m>>,
    /// For each result, the index of the step that computes it, and the dtype of the result.
    pub(super) results: Vec<(usize, DType)>,
    /// Number of words of the parameter block.
    pub(super) words: usize,
    /// Number of elements per vector, if threads compute vectors of results.
    pub(super) vectors: Option<VectorWidth>,
}

/// Elements per 32-bit word.
pub(super) fn lanes(dtype: DType) -> u32 {
    4 / dtype.size_bytes() as u32
}

pub(super) fn word(at: usize) -> String {
    format!("p.w[{}].{}", at / 4, ["x", "y", "z", "w"][at % 4])
}

impl MapKernelSource<'_> {
    /// Elements per thread.
    pub(super) fn lanes(&self) -> u32 {
        if let Some(v) = &self.vectors {
            return v.elements * v.vectors_per_thread;
        }
        let each = self.results.iter().map(|(_, dtype)| lanes(*dtype));
        each.max().unwrap_or(1)
    }

    /// Name of the kernel for people: its steps and dtypes.
    pub(super) fn name(&self) -> String {
        const SHOWN: usize = 6;
        let mut name = "map".to_string();
        for step in self.steps.iter().take(SHOWN) {
            name += " ";
            name += step_name(step.op);
        }
        if let Some(more) = self.steps.len().checked_sub(SHOWN + 1) {
            name += &format!(" and {} more", more + 1);
        }
        let from: Vec<String> = self.reads.iter().map(OperandRead::name).collect();
        let to: Vec<&str> = self.results.iter().map(|(_, d)| d.name()).collect();
        let by = match &self.vectors {
            Some(v) => format!(" by {}", v.elements * v.vectors_per_thread),
            None => String::new(),
        };
        format!("{name} {}->{}{by}", from.join(","), to.join(","))
    }

    /// WGSL source of the whole module.
    pub(super) fn text(&self) -> String {
        if let Some(vectors) = &self.vectors {
            return self.vector_text(vectors);
        }
        let mut pieces: Vec<WgslHelper> = Vec::new();
        let mut body = String::new();
        for (i, read) in self.reads.iter().enumerate() {
            body += &load(i, read);
        }
        body += &self.values(ArithmeticMode::Exact, &mut pieces);
        for (i, (step, dtype)) in self.results.iter().enumerate() {
            body += &store(i, *step, *dtype);
        }
        let mut text = scalar::text(&pieces);
        text += "\n";
        text += &self.bindings();
        text += &self.main(&body, scalar::closure(&pieces).contains(&WgslHelper::Base));
        text
    }

    /// WGSL statements that compute the map steps.
    pub(super) fn values(&self, how: ArithmeticMode, pieces: &mut Vec<WgslHelper>) -> String {
        values(&self.steps, how, pieces)
    }

    fn bindings(&self) -> String {
        let reads = self.reads.iter().map(|_| "u32".to_string()).collect();
        let results = self.results.iter().map(|_| "u32".to_string()).collect();
        self.bindings_of(reads, results)
    }

    /// WGSL declarations of the kernel's bindings, with these array types for operands (`reads`)
    /// and results.
    pub(super) fn bindings_of(&self, reads: Vec<String>, results: Vec<String>) -> String {
        let rows = self.words.div_ceil(4);
        let mut text = format!(
            "struct Params {{ w: array<vec4<u32>, {rows}> }}\n\
             @group(0) @binding(0) var<uniform> p: Params;\n"
        );
        let reads = reads.into_iter().enumerate();
        let apart = reads.filter(|(i, _)| self.reads[*i].result.is_none());
        let reads = apart.map(|(i, ty)| (format!("x{i}"), ty, "read"));
        let writes = results.into_iter().enumerate();
        let writes = writes.map(|(i, ty)| (format!("y{i}"), ty, "read_write"));
        for (at, (name, ty, access)) in reads.chain(writes).enumerate() {
            text += &format!(
                "@group(0) @binding({}) var<storage, {access}> {name}: array<{ty}>;\n",
                at + 1
            );
        }
        text
    }

    fn main(&self, body: &str, has_zero: bool) -> String {
        let (numel, n) = (word(0), self.lanes());
        let zero = match has_zero {
            true => format!("    opaque_zero = {};\n", word(1)),
            false => String::new(),
        };
        let packed = self.results.iter().enumerate();
        let words: String = packed
            .filter(|(_, (_, dtype))| lanes(*dtype) > 1)
            .map(|(i, _)| format!("    var word{i} = 0u;\n"))
            .collect();
        let coordinates = self.coordinates();
        format!(
            "\n@compute @workgroup_size({GROUP})\n\
             fn main(\n    \
                 @builtin(workgroup_id) group: vec3<u32>,\n    \
                 @builtin(num_workgroups) groups: vec3<u32>,\n    \
                 @builtin(local_invocation_index) local: u32,\n\
             ) {{\n{zero}{words}    \
                 let first = (flat_group(group, groups) * {GROUP}u + local) * {n}u;\n    \
                 for (var i = first; i < min(first + {n}u, {numel}); i += 1u) {{\n\
             {coordinates}{body}    }}\n}}\n"
        )
    }

    /// WGSL statements that compute the coordinates that operands use, innermost axis group first.
    pub(super) fn coordinates(&self) -> String {
        let used = |group: usize| {
            let terms = self.reads.iter().flat_map(|r| &r.terms);
            terms.into_iter().any(|t| t.group == group)
        };
        let mut text = String::new();
        let mut rest = "i".to_string();
        for group in (0..self.axes).rev() {
            if !(0..=group).any(used) {
                break;
            }
            // Axis group 0 has no parameter for its size; the size of group 1 is parameter word 2.
            let size = (group > 0).then(|| word(group + 1));
            if used(group) {
                text += &match &size {
                    Some(size) => format!("        let c{group} = {rest} % {size};\n"),
                    None => format!("        let c{group} = {rest};\n"),
                };
            }
            if let Some(size) = size.filter(|_| (0..group).any(used)) {
                text += &format!("        let r{group} = {rest} / {size};\n");
                rest = format!("r{group}");
            }
        }
        text
    }
}

/// The kind of arithmetic that generated code uses for map steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArithmeticMode {
    /// Arithmetic that is correct for all operands, including subnormal numbers.
    Exact,
    /// Fast arithmetic that flags uncertain results, which are then computed again exactly.
    Fast,
    /// Like `Fast`, but with native sums and products, which may flush subnormal numbers. This mode
    /// is only used for reductions, whose tolerance covers flushed numbers.
    Native,
}

/// WGSL statements that compute the map steps.
pub(super) fn values(
    steps: &[NamedStep<'_>],
    how: ArithmeticMode,
    pieces: &mut Vec<WgslHelper>,
) -> String {
    let mut body = String::new();
    for step in steps {
        let args: Vec<&str> = step.args.iter().map(String::as_str).collect();
        let exact = || scalar::expression(step.op, step.from, step.to, &args);
        let quick = || scalar::quick(step.op, step.from, &args).unwrap_or_else(exact);
        let native = || scalar::native(step.op, step.from, &args).unwrap_or_else(quick);
        let (value, called) = match (&step.kept, how) {
            (Some(name), _) => (name.clone(), Vec::new()),
            (None, ArithmeticMode::Exact) => exact(),
            (None, ArithmeticMode::Fast) => quick(),
            (None, ArithmeticMode::Native) => native(),
        };
        pieces.extend(called);
        body += &format!("        let s{} = {value};\n", step.at);
    }
    body
}

/// True if native arithmetic of these steps may flag uncertain results, so that an exact fallback
/// is required.
pub(super) fn needs_careful_path(steps: &[NamedStep<'_>]) -> bool {
    let mut pieces = Vec::new();
    values(steps, ArithmeticMode::Native, &mut pieces);
    scalar::closure(&pieces).contains(&WgslHelper::Quick)
}

/// WGSL expression for the address of an operand's element, `ahead` elements after the current
/// index.
pub(super) fn element_index(read: &OperandRead, innermost: usize, ahead: u32) -> String {
    let ahead_of = |name: String, moves: bool| match ahead {
        1.. if moves => format!("({name} + {ahead}u)"),
        _ => name,
    };
    let mut at = match (read.flat, read.offset) {
        (true, Some(offset)) => format!("{} + {}", ahead_of("i".into(), true), word(offset)),
        (true, None) => ahead_of("i".into(), true),
        (false, Some(offset)) => word(offset),
        (false, None) => String::new(),
    };
    for term in &read.terms {
        if !at.is_empty() {
            at += " + ";
        }
        let name = ahead_of(format!("c{}", term.group), term.group == innermost);
        let _ = match term.shift {
            0 => write!(at, "{name} * {}", word(term.word)),
            n => write!(at, "({name} >> {n}u) * {}", word(term.word)),
        };
    }
    if at.is_empty() {
        at += "0u";
    }
    at
}

/// WGSL expression that unpacks one element from a 32-bit word.
pub(super) fn value_of(dtype: DType, element: &str, lane: &str) -> String {
    let code = match dtype {
        DType::I16 => return sign_extended16(&format!("({element}) >> (16u * ({lane}))")),
        dtype => code(dtype),
    };
    match class(dtype) {
        ScalarClass::Float => format!("float_of({element}, {lane}, {code}u)"),
        ScalarClass::Int => format!("int_of({element}, {lane}, {code}u)"),
        ScalarClass::Uint => format!("uint_of({element}, {lane}, {code}u)"),
        ScalarClass::Bool => format!("uint_of({element}, {lane}, {code}u) != 0u"),
    }
}

/// WGSL statement that loads one element of an operand.
fn load(i: usize, read: &OperandRead) -> String {
    let at = element_index(read, 0, 0);
    let (x, n) = (read.array(i), lanes(read.dtype));
    let (element, lane) = match n {
        1 => (format!("{x}[a{i}]"), "0u".to_string()),
        _ => (
            format!("{x}[a{i} >> {}u]", n.trailing_zeros()),
            format!("a{i} & {}u", n - 1),
        ),
    };
    let value = value_of(read.dtype, &element, &lane);
    format!("        let a{i} = {at};\n        let v{i} = {value};\n")
}

/// WGSL expression that converts the value of a step to its stored bits, in the low bits of a word.
pub(super) fn bits_of(step: usize, dtype: DType) -> String {
    match class(dtype) {
        ScalarClass::Float => format!("float_bits(s{step}, {}u)", code(dtype)),
        ScalarClass::Int if dtype == DType::I16 => format!("(bitcast<u32>(s{step}) & 0xffffu)"),
        ScalarClass::Int => format!("int_bits(s{step}, {}u)", code(dtype)),
        ScalarClass::Uint => format!("s{step}"),
        ScalarClass::Bool => format!("u32(s{step})"),
    }
}

/// WGSL statement that stores an element of result `i`. For dtypes narrower than 32 bits, the last
/// element of a word stores the whole word.
fn store(i: usize, step: usize, dtype: DType) -> String {
    let value = bits_of(step, dtype);
    let n = lanes(dtype);
    if n == 1 {
        return format!("        y{i}[i] = {value};\n");
    }
    let (bits, last, shift) = (32 / n, n - 1, n.trailing_zeros());
    format!(
        "        word{i} |= {value} << ({bits}u * (i & {last}u));\n        \
         if ((i & {last}u) == {last}u || i + 1u == {}) {{\n            \
             y{i}[i >> {shift}u] = word{i};\n            \
             word{i} = 0u;\n        \
         }}\n",
        word(0)
    )
}

fn step_name(op: &ScalarOp) -> &'static str {
    match op {
        ScalarOp::Const(..) => "const",
        ScalarOp::Unary(f) => f.name(),
        ScalarOp::Binary(f) => f.name(),
        ScalarOp::Compare(f) => f.name(),
        ScalarOp::Where => "where",
        ScalarOp::Fma => "fma",
        ScalarOp::Clamp { .. } => "clamp",
        ScalarOp::Cast(_) => "cast",
    }
}
