//! The text of a map's kernel whose invocations compute vectors of elements.
//!
//! ```text
//! struct In { x0: vec4<u32>, x1: u32 }
//! struct Out { y0: vec4<u32> }
//! fn map_load(v: u32) -> In { .. }                       // coordinates once a vector
//! fn map_quick(v0: f32, v1: f32) -> u32 { .. }           // one element; may raise a doubt
//! fn map_exact(v0: f32, v1: f32) -> u32 { .. }
//! fn map_work(raw: In) -> Out { .. }                    // quick for each, exact if in doubt
//! fn main(..) { all loads, then for each vector work and store }
//! ```
//!
//! A vector has the elements of up to 16 bytes. It lies in one row of every operand: what its elements
//! share is computed and read once. Loads of all vectors of an invocation come before the first store, so
//! that they are in flight together.

use super::operand::{Coordinates, Operand};
use super::text::{Arithmetic, GROUP, Kernel, Load, Read, bits_of, lanes, place, value_of, word};
use crate::emit::Emit;
use crate::scalar::{self, Piece};
use tercet_ir::DType;

/// How invocations compute vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    /// Elements of a vector.
    pub(super) elements: u32,
    /// Vectors of an invocation.
    pub(super) turns: u32,
}

/// The most elements of a vector.
const MOST: u32 = 8;
/// Invocations have two vectors where there are as many elements as fill a large device twice over.
const TWO_FROM: i64 = 1 << 20;

impl Vectors {
    /// Vectors of which operands and results of these dtypes have whole words, where there are some.
    pub(super) fn of(
        e: &mut Emit<'_>,
        coordinates: &Coordinates,
        operands: &[&Operand],
        results: &[DType],
        most: usize,
    ) -> Option<Vectors> {
        let all = operands.iter().map(|o| lanes(o.dtype));
        let all: Vec<u32> = all.chain(results.iter().map(|d| lanes(*d))).collect();
        let (least, greatest) = (*all.iter().min()?, *all.iter().max()?);
        let elements = (4 * least).min(MOST).max(greatest);
        if most == 0 || !coordinates.keep_together(e, elements) {
            return None;
        }
        let turns = if most as i64 >= TWO_FROM { 2 } else { 1 };
        Some(Vectors { elements, turns })
    }

    /// The words of a dtype in a vector.
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

/// Operands of one slot are one binding to some players: it can have one type only.
pub(super) fn agree(reads: &mut [Read], operands: &[&Operand]) {
    for i in 0..reads.len() {
        let same = |j: usize| operands[j].slot == operands[i].slot;
        let others = (0..reads.len()).filter(|&j| same(j));
        let differ = |j: usize| (reads[j].load, reads[j].dtype) != (reads[i].load, reads[i].dtype);
        let list: Vec<usize> = others.collect();
        if list.iter().any(|&j| differ(j)) {
            for j in list {
                if reads[j].load == Load::Vector {
                    reads[j].load = Load::Each;
                }
            }
        }
    }
}

impl Kernel<'_> {
    /// The whole module.
    pub(super) fn vector_text(&self, v: &Vectors) -> String {
        let mut pieces = Vec::new();
        let exact = self.element("exact", Arithmetic::Exact, &mut pieces);
        let quick = self.element("quick", Arithmetic::Quick, &mut pieces);
        let pieces = scalar::closure(&pieces);
        let in_doubt = pieces.contains(&Piece::Quick);
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
        text += &self.vector_main(v, pieces.contains(&Piece::Base));
        text
    }

    fn structs(&self, v: &Vectors) -> String {
        self.operand_struct(v) + &self.result_structs(v)
    }

    /// What an invocation reads for a vector.
    pub(super) fn operand_struct(&self, v: &Vectors) -> String {
        let reads = self.reads.iter().enumerate().map(|(i, read)| {
            let ty = match read.load {
                Load::Vector => v.type_of(read.dtype),
                Load::Once => "u32".to_string(),
                Load::Each => format!("array<u32, {}>", v.elements),
            };
            format!("    x{i}: {ty},\n")
        });
        let mut fields: String = reads.collect();
        if fields.is_empty() {
            fields = "    none: u32,\n".to_string();
        }
        format!("struct In {{\n{fields}}}\n")
    }

    /// The bits of an element of every result, and the words of a vector of them.
    pub(super) fn result_structs(&self, v: &Vectors) -> String {
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

    pub(super) fn load(&self, v: &Vectors) -> String {
        let n = v.elements;
        let innermost = self.axes - 1;
        let mut values: Vec<String> = Vec::new();
        for (i, read) in self.reads.iter().enumerate() {
            values.push(match read.load {
                Load::Vector => {
                    let (x, at) = (read.array(i), place(read, innermost, 0));
                    format!("{x}[({at}) / {n}u]")
                }
                Load::Once => element(i, read, &place(read, innermost, 0)),
                Load::Each => {
                    let each = (0..n).map(|k| element(i, read, &place(read, innermost, k)));
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

    /// The operands of an element as parameters of a function.
    pub(super) fn parameters(&self) -> String {
        let params = self.reads.iter().enumerate();
        let params = params.map(|(i, r)| format!("v{i}: {}", scalar::class(r.dtype).wgsl()));
        let params: Vec<String> = params.collect();
        params.join(", ")
    }

    /// A function of one element.
    pub(super) fn element(&self, name: &str, how: Arithmetic, pieces: &mut Vec<Piece>) -> String {
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

    /// The values of element `k` (a number, or a name with its lane computed).
    pub(super) fn arguments(&self, v: &Vectors, k: Option<u32>) -> String {
        let args = self.reads.iter().enumerate().map(|(i, read)| {
            let (from, lane) = match (read.load, k) {
                (Load::Vector, k) => of_vector(&format!("raw.x{i}"), lanes(read.dtype), v, k),
                (Load::Once, _) => (format!("raw.x{i}"), "0u".to_string()),
                (Load::Each, Some(k)) => (format!("raw.x{i}[{k}]"), "0u".to_string()),
                (Load::Each, None) => (format!("held.x{i}[k]"), "0u".to_string()),
            };
            value_of(read.dtype, &from, &lane)
        });
        let args: Vec<String> = args.collect();
        args.join(", ")
    }

    /// Every element exactly, in a loop, since it seldom runs.
    pub(super) fn careful(&self, v: &Vectors) -> String {
        let n = v.elements;
        format!(
            "fn map_careful(raw: In) -> Out {{\n    var held = raw;\n    var e: array<Bits, {n}>;\n    \
             for (var k = 0u; k < {n}u; k += 1u) {{\n        e[k] = map_exact({});\n    }}\n    \
             return Out({});\n}}\n",
            self.arguments(v, None),
            self.packed(v, |k| format!("e[{k}]"))
        )
    }

    /// The words of all results from the bits of elements.
    fn packed(&self, v: &Vectors, name: impl Fn(u32) -> String) -> String {
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

    pub(super) fn work(&self, v: &Vectors, in_doubt: bool) -> String {
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

    fn vector_main(&self, v: &Vectors, has_zero: bool) -> String {
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
        for t in 0..v.turns {
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

/// The type of the elements of a read's binding.
pub(super) fn binding_type(v: &Vectors, read: &Read) -> String {
    match read.load {
        Load::Vector => v.type_of(read.dtype),
        Load::Once | Load::Each => "u32".to_string(),
    }
}

/// An element of an array of words, in the low end.
fn element(i: usize, read: &Read, at: &str) -> String {
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

/// The word and the lane of element `k` of a vector.
fn of_vector(name: &str, per: u32, v: &Vectors, k: Option<u32>) -> (String, String) {
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

/// What a dispatch in vectors needs: how every operand is read.
pub(super) fn choose(
    e: &mut Emit<'_>,
    coordinates: &Coordinates,
    operands: &[&Operand],
    reads: &mut [Read],
    v: Vectors,
) {
    for (read, operand) in reads.iter_mut().zip(operands) {
        read.load = coordinates.along(e, operand, v.elements);
        // A vector of fewer elements than a word has.
        if read.load == Load::Vector && lanes(read.dtype) > v.elements {
            read.load = Load::Each;
        }
    }
    agree(reads, operands);
    debug_assert!(
        (reads.iter().filter(|r| r.load == Load::Vector))
            .all(|r| v.elements.is_multiple_of(lanes(r.dtype)))
    );
}
