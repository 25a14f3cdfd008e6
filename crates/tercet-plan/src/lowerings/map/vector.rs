//! WGSL code generation of maps whose threads compute vectors of elements.
//!
//! ```text
//! struct In { x0: vec4<u32>, x1: u32 }
//! struct Out { y0: vec4<u32> }
//! fn map_load(v: u32) -> In { .. }                       // coordinates, once per vector
//! fn map_quick(v0: f32, v1: f32) -> u32 { .. }           // one element; may flag it as uncertain
//! fn map_exact(v0: f32, v1: f32) -> u32 { .. }
//! fn map_work(raw: In) -> Out { .. }                    // quick for each element, exact if one is uncertain
//! fn main(..) { all loads, then for each vector work and store }
//! ```
//!
//! A vector consists of consecutive elements with up to 16 bytes in total. All elements of a vector
//! belong to one row of every operand, so that shared values are computed and read once. A thread
//! issues all its loads before the first store, so that they overlap.

use super::codegen::{
    ArithmeticMode, GROUP, MapKernelSource, OperandRead, VectorLoad, bits_of, element_index, lanes,
    value_of, word,
};
use super::operand::{CoordinateGroups, IndexedOperand};
use crate::emit::LoweringCtx;
use crate::scalar::{self, WgslHelper};
use tercet_ir::DType;

/// How many elements and vectors each thread of a map kernel computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct VectorWidth {
    /// Elements per vector.
    pub(super) elements: u32,
    /// Vectors per thread.
    pub(super) vectors_per_thread: u32,
}

/// Maximum number of elements per vector.
const MAX_VECTOR_WIDTH: u32 = 8;
/// Number of result elements from which on each thread computes two vectors; half as many saturate
/// a large device.
const TWO_FROM: i64 = 1 << 20;

impl VectorWidth {
    /// Selects a vector length that gives whole 32-bit words for operands and results of these
    /// dtypes; `None` if there is none.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        coordinates: &CoordinateGroups,
        operands: &[&IndexedOperand],
        results: &[DType],
        most: usize,
    ) -> Option<VectorWidth> {
        let all = operands.iter().map(|o| lanes(o.dtype));
        let all: Vec<u32> = all.chain(results.iter().map(|d| lanes(*d))).collect();
        let (least, greatest) = (*all.iter().min()?, *all.iter().max()?);
        let elements = (4 * least).min(MAX_VECTOR_WIDTH).max(greatest);
        if most == 0 || !coordinates.is_contiguous(e, elements) {
            return None;
        }
        let turns = if most as i64 >= TWO_FROM { 2 } else { 1 };
        Some(VectorWidth {
            elements,
            vectors_per_thread: turns,
        })
    }

    /// Number of 32-bit words that a vector of this dtype takes.
    pub(super) fn words(self, dtype: DType) -> u32 {
        self.elements / lanes(dtype)
    }

    pub(super) fn type_of(self, dtype: DType) -> String {
        vector_type(self.words(dtype))
    }
}

fn vector_type(words: u32) -> String {
    match words {
        1 => "u32".to_string(),
        n => format!("vec{n}<u32>"),
    }
}

/// Gives all reads of one slot the same binding type, because some GPU runtimes use a single
/// binding per slot.
pub(super) fn agree(reads: &mut [OperandRead], operands: &[&IndexedOperand]) {
    for i in 0..reads.len() {
        let same = |j: usize| operands[j].slot == operands[i].slot;
        let others = (0..reads.len()).filter(|&j| same(j));
        let differ = |j: usize| (reads[j].load, reads[j].dtype) != (reads[i].load, reads[i].dtype);
        let list: Vec<usize> = others.collect();
        if list.iter().any(|&j| differ(j)) {
            for j in list {
                if reads[j].load == VectorLoad::Vector {
                    reads[j].load = VectorLoad::PerElement;
                }
            }
        }
    }
}

impl MapKernelSource<'_> {
    /// WGSL source of the whole module.
    pub(super) fn vector_text(&self, v: &VectorWidth) -> String {
        let mut pieces = Vec::new();
        let exact = self.element("exact", ArithmeticMode::Exact, &mut pieces);
        let quick = self.element("quick", ArithmeticMode::Fast, &mut pieces);
        let pieces = scalar::closure(&pieces);
        let in_doubt = pieces.contains(&WgslHelper::Quick);
        let mut text = scalar::text(&pieces);
        text += "\n";
        text += &self.bindings_of(
            self.reads.iter().map(|r| binding_type(v, r)).collect(),
            self.results.iter().map(|(_, d)| v.type_of(*d)).collect(),
        );
        text += &self.structs(v);
        text += &self.load(v);
        text += &exact;
        if in_doubt {
            text += &quick;
            text += &self.careful(v);
        }
        text += &self.work(v, in_doubt);
        text += &self.vector_main(v, pieces.contains(&WgslHelper::Base));
        text
    }

    fn structs(&self, v: &VectorWidth) -> String {
        self.operand_struct(v) + &self.result_structs(v)
    }

    /// WGSL struct that holds the operand data which a thread loads for one vector of results.
    pub(super) fn operand_struct(&self, v: &VectorWidth) -> String {
        let reads = self.reads.iter().enumerate().map(|(i, read)| {
            let ty = match read.load {
                VectorLoad::Vector => v.type_of(read.dtype),
                VectorLoad::Broadcast => "u32".to_string(),
                VectorLoad::PerElement => format!("array<u32, {}>", v.elements),
            };
            format!("    x{i}: {ty},\n")
        });
        let mut fields: String = reads.collect();
        if fields.is_empty() {
            fields = "    none: u32,\n".to_string();
        }
        format!("struct In {{\n{fields}}}\n")
    }

    /// WGSL structs for the results of one element, and for the packed result words of a vector.
    pub(super) fn result_structs(&self, v: &VectorWidth) -> String {
        let results = self.results.iter().enumerate();
        let bits: String = results
            .clone()
            .map(|(i, _)| format!("    y{i}: u32,\n"))
            .collect();
        let words: String = results
            .map(|(i, (_, d))| format!("    y{i}: {},\n", v.type_of(*d)))
            .collect();
        format!("struct Bits {{\n{bits}}}\nstruct Out {{\n{words}}}\n\n")
    }

    pub(super) fn load(&self, v: &VectorWidth) -> String {
        let n = v.elements;
        let innermost = self.axes - 1;
        let mut values: Vec<String> = Vec::new();
        for (i, read) in self.reads.iter().enumerate() {
            values.push(match read.load {
                VectorLoad::Vector => {
                    let (x, at) = (read.array(i), element_index(read, innermost, 0));
                    format!("{x}[({at}) / {n}u]")
                }
                VectorLoad::Broadcast => element(i, read, &element_index(read, innermost, 0)),
                VectorLoad::PerElement => {
                    let each = (0..n).map(|k| element(i, read, &element_index(read, innermost, k)));
                    let each: Vec<String> = each.collect();
                    format!("array<u32, {n}>({})", each.join(", "))
                }
            });
        }
        if values.is_empty() {
            values.push("v".to_string());
        }
        format!(
            "fn map_load(v: u32) -> In {{\n        let i = v * {n}u;\n{}        return In({});\n}}\n",
            self.coordinates(),
            values.join(", ")
        )
    }

    /// WGSL parameters of the function that computes one element: the operand values of this
    /// element.
    pub(super) fn parameters(&self) -> String {
        let params = self.reads.iter().enumerate();
        let params = params.map(|(i, r)| format!("v{i}: {}", scalar::class(r.dtype).wgsl()));
        let params: Vec<String> = params.collect();
        params.join(", ")
    }

    /// WGSL function that computes one element.
    pub(super) fn element(
        &self,
        name: &str,
        how: ArithmeticMode,
        pieces: &mut Vec<WgslHelper>,
    ) -> String {
        let body = self.values(how, pieces);
        let params = self.parameters();
        let bits = self.results.iter().map(|(s, d)| bits_of(*s, *d));
        let bits: Vec<String> = bits.collect();
        format!(
            "fn map_{name}({}) -> Bits {{\n{body}        return Bits({});\n}}\n",
            params,
            bits.join(", ")
        )
    }

    /// WGSL arguments (operand values) of the call that computes element `k` of a vector. For
    /// `None`, the generated code uses its loop variable `k`.
    pub(super) fn arguments(&self, v: &VectorWidth, k: Option<u32>) -> String {
        let args = self.reads.iter().enumerate().map(|(i, read)| {
            let (from, lane) = match (read.load, k) {
                (VectorLoad::Vector, k) => {
                    vector_load(&format!("raw.x{i}"), lanes(read.dtype), v, k)
                }
                (VectorLoad::Broadcast, _) => (format!("raw.x{i}"), "0u".to_string()),
                (VectorLoad::PerElement, Some(k)) => (format!("raw.x{i}[{k}]"), "0u".to_string()),
                (VectorLoad::PerElement, None) => (format!("held.x{i}[k]"), "0u".to_string()),
            };
            value_of(read.dtype, &from, &lane)
        });
        let args: Vec<String> = args.collect();
        args.join(", ")
    }

    /// WGSL function that computes all elements of a vector with exact arithmetic. The function is
    /// a loop, not unrolled, because it rarely runs.
    pub(super) fn careful(&self, v: &VectorWidth) -> String {
        let n = v.elements;
        format!(
            "fn map_careful(raw: In) -> Out {{\n    var held = raw;\n    var e: array<Bits, {n}>;\n    \
             for (var k = 0u; k < {n}u; k += 1u) {{\n        e[k] = map_exact({});\n    }}\n    \
             return Out({});\n}}\n",
            self.arguments(v, None),
            self.packed(v, |k| format!("e[{k}]"))
        )
    }

    /// WGSL statements that pack the elements of every result into 32-bit words.
    fn packed(&self, v: &VectorWidth, name: impl Fn(u32) -> String) -> String {
        let results = self.results.iter().enumerate().map(|(i, (_, dtype))| {
            let per = lanes(*dtype);
            let words = (0..v.words(*dtype)).map(|w| {
                let lane = |l: u32| match l {
                    0 => format!("{}.y{i}", name(w * per)),
                    l => format!("({}.y{i} << {}u)", name(w * per + l), l * 32 / per),
                };
                let lanes: Vec<String> = (0..per).map(lane).collect();
                lanes.join(" | ")
            });
            let words: Vec<String> = words.collect();
            format!("{}({})", v.type_of(*dtype), words.join(", "))
        });
        let results: Vec<String> = results.collect();
        results.join(", ")
    }

    pub(super) fn work(&self, v: &VectorWidth, in_doubt: bool) -> String {
        let name = if in_doubt { "quick" } else { "exact" };
        let mut text = "fn map_work(raw: In) -> Out {\n".to_string();
        if in_doubt {
            text += "    doubt = false;\n";
        }
        for k in 0..v.elements {
            text += &format!(
                "    let e{k} = map_{name}({});\n",
                self.arguments(v, Some(k))
            );
        }
        if in_doubt {
            text += "    if (doubt) {\n        return map_careful(raw);\n    }\n";
        }
        text += &format!(
            "    return Out({});\n}}\n",
            self.packed(v, |k| format!("e{k}"))
        );
        text
    }

    fn vector_main(&self, v: &VectorWidth, has_zero: bool) -> String {
        let zero = match has_zero {
            true => format!("    opaque_zero = {};\n", word(1)),
            false => String::new(),
        };
        let store = |at: &str, from: &str| -> String {
            let results = 0..self.results.len();
            results
                .map(|i| format!("y{i}[{at}] = {from}.y{i}; "))
                .collect()
        };
        let mut loads = String::new();
        let mut stores = String::new();
        for t in 0..v.vectors_per_thread {
            loads += &format!("    let v{t} = first + {t}u * apart;\n");
            loads += &format!("    let in{t} = map_load(min(v{t}, count - 1u));\n");
            stores += &format!(
                "    if (v{t} < count) {{ let out = map_work(in{t}); {}}}\n",
                store(&format!("v{t}"), "out")
            );
        }
        format!(
            "\n@compute @workgroup_size({GROUP})\n\
             fn main(\n    \
                 @builtin(workgroup_id) group: vec3<u32>,\n    \
                 @builtin(num_workgroups) groups: vec3<u32>,\n    \
                 @builtin(local_invocation_index) local: u32,\n\
             ) {{\n{zero}    \
                 let first = flat_group(group, groups) * {GROUP}u + local;\n    \
                 let apart = groups.x * groups.y * {GROUP}u;\n    \
                 let count = {} / {}u;\n    \
                 if (first >= count) {{\n        return;\n    }}\n\
             {loads}{stores}}}\n",
            word(0),
            v.elements
        )
    }
}

/// WGSL element type of the array that binds an operand.
pub(super) fn binding_type(v: &VectorWidth, read: &OperandRead) -> String {
    match read.load {
        VectorLoad::Vector => v.type_of(read.dtype),
        VectorLoad::Broadcast | VectorLoad::PerElement => "u32".to_string(),
    }
}

/// WGSL expression for an element of operand `i`, in the low bits of a word.
fn element(i: usize, read: &OperandRead, at: &str) -> String {
    let x = read.array(i);
    match lanes(read.dtype) {
        1 => format!("{x}[{at}]"),
        n => format!(
            "{x}[({at}) >> {}u] >> ((({at}) & {}u) * {}u)",
            n.trailing_zeros(),
            n - 1,
            32 / n
        ),
    }
}

/// WGSL expressions for the word that holds element `k` of a vector, and for the position in the
/// word. For `None`, the generated code uses its loop variable `k`.
fn vector_load(name: &str, per: u32, v: &VectorWidth, k: Option<u32>) -> (String, String) {
    let words = v.elements / per;
    let k = match k {
        Some(k) if words == 1 => return (name.to_string(), format!("{}u", k % per)),
        Some(k) => return (format!("{name}[{}]", k / per), format!("{}u", k % per)),
        None => "k",
    };
    match words {
        1 => (name.to_string(), format!("{k} % {per}u")),
        _ => (format!("{name}[{k} / {per}u]"), format!("{k} % {per}u")),
    }
}

/// Determines the vector access pattern of every operand.
pub(super) fn choose(
    e: &mut LoweringCtx<'_>,
    coordinates: &CoordinateGroups,
    operands: &[&IndexedOperand],
    reads: &mut [OperandRead],
    v: VectorWidth,
) {
    for (read, operand) in reads.iter_mut().zip(operands) {
        read.load = coordinates.along(e, operand, v.elements);
        // A vector has fewer elements than one 32-bit word of this operand holds.
        if read.load == VectorLoad::Vector && lanes(read.dtype) > v.elements {
            read.load = VectorLoad::PerElement;
        }
    }
    agree(reads, operands);
    debug_assert!(
        (reads.iter().filter(|r| r.load == VectorLoad::Vector))
            .all(|r| v.elements.is_multiple_of(lanes(r.dtype)))
    );
}
