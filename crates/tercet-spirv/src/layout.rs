//! Removes explicit memory layouts from types that only workgroup variables use.
//!
//! naga decorates every array with a stride and every struct with offsets, including those of
//! workgroup variables. The specification forbids layout decorations on workgroup variables
//! (VUID-StandaloneSpirv-None-10684; section 2.16.2 of the SPIR-V specification). Drivers accept
//! layout decorations on workgroup variables, but newer validators report an error.

use std::collections::{HashMap, HashSet};

const OP_TYPE_ARRAY: u32 = 28;
const OP_TYPE_RUNTIME_ARRAY: u32 = 29;
const OP_TYPE_STRUCT: u32 = 30;
const OP_TYPE_POINTER: u32 = 32;
const OP_DECORATE: u32 = 71;
const OP_MEMBER_DECORATE: u32 = 72;

/// Layout decorations: `RowMajor`, `ColMajor`, `ArrayStride`, `MatrixStride`, `Offset`.
const LAYOUT: [u32; 5] = [4, 5, 6, 7, 35];

const WORKGROUP: u32 = 4;
/// Storage classes whose types need explicit layouts: `Uniform`, `PushConstant`, `StorageBuffer`.
const LAID_OUT: [u32; 3] = [2, 9, 12];

/// Number of header words before the first instruction.
pub(crate) const HEADER: usize = 5;

/// Removes layout decorations from types that only workgroup variables use.
pub(crate) fn without_workgroup_layout(module: &[u32]) -> Vec<u32> {
    let types = SpirvTypes::new(module);
    let shared = types.reachable_types(|storage| storage == WORKGROUP);
    let laid_out = types.reachable_types(|storage| LAID_OUT.contains(&storage));
    let bare: HashSet<u32> = shared.difference(&laid_out).copied().collect();
    let mut kept = module[..HEADER.min(module.len())].to_vec();
    for instruction in SpirvInstructions(module.get(HEADER..).unwrap_or_default()) {
        let decoration = match (instruction[0] & 0xffff, instruction) {
            (OP_DECORATE, [_, of, decoration, ..]) => Some((of, decoration)),
            (OP_MEMBER_DECORATE, [_, of, _, decoration, ..]) => Some((of, decoration)),
            _ => None,
        };
        let goes = decoration.is_some_and(|(of, d)| bare.contains(of) && LAYOUT.contains(d));
        if !goes {
            kept.extend_from_slice(instruction);
        }
    }
    kept
}

/// Iterator over the instructions after the header, as (first word, words). Stops at a truncated
/// instruction.
pub(crate) struct SpirvInstructions<'a>(pub(crate) &'a [u32]);

impl<'a> Iterator for SpirvInstructions<'a> {
    type Item = &'a [u32];

    fn next(&mut self) -> Option<&'a [u32]> {
        let len = (*self.0.first()? >> 16) as usize;
        if len == 0 || len > self.0.len() {
            return None;
        }
        let (instruction, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(instruction)
    }
}

/// Composite and pointer types of a module.
#[derive(Default)]
struct SpirvTypes {
    /// Element or member types of each array and struct.
    parts: HashMap<u32, Vec<u32>>,
    /// Storage class and pointee type of each pointer type.
    pointers: Vec<(u32, u32)>,
}

impl SpirvTypes {
    fn new(module: &[u32]) -> SpirvTypes {
        let mut types = SpirvTypes::default();
        for instruction in SpirvInstructions(module.get(HEADER..).unwrap_or_default()) {
            match (instruction[0] & 0xffff, instruction) {
                (OP_TYPE_ARRAY | OP_TYPE_RUNTIME_ARRAY, [_, id, element, ..]) => {
                    types.parts.insert(*id, vec![*element]);
                }
                (OP_TYPE_STRUCT, [_, id, members @ ..]) => {
                    types.parts.insert(*id, members.to_vec());
                }
                (OP_TYPE_POINTER, [_, _, storage, ty]) => types.pointers.push((*storage, *ty)),
                _ => {}
            }
        }
        types
    }

    /// All types reachable from pointers of the storage classes that `storage` accepts.
    fn reachable_types(&self, storage: impl Fn(u32) -> bool) -> HashSet<u32> {
        let from = self.pointers.iter().filter(|(s, _)| storage(*s));
        let mut open: Vec<u32> = from.map(|(_, ty)| *ty).collect();
        let mut reached = HashSet::new();
        while let Some(ty) = open.pop() {
            if reached.insert(ty) {
                open.extend(self.parts.get(&ty).into_iter().flatten());
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{ENTRY, RuntimeChecks, from_wgsl};

    /// Array strides in a module, and the number of member offsets.
    fn layouts(module: &[u32]) -> (Vec<u32>, usize) {
        let (mut strides, mut offsets) = (Vec::new(), 0);
        for instruction in SpirvInstructions(&module[HEADER..]) {
            match (instruction[0] & 0xffff, instruction) {
                (OP_DECORATE, [_, _, 6, stride]) => strides.push(*stride),
                (OP_MEMBER_DECORATE, [_, _, _, 35, _]) => offsets += 1,
                _ => {}
            }
        }
        strides.sort_unstable();
        (strides, offsets)
    }

    #[test]
    fn only_buffers_keep_their_layout() {
        let text = "
            struct Block { n: u32, m: u32 }
            struct Pair { a: u32, b: vec2<u32> }
            @group(0) @binding(0) var<uniform> p: Block;
            @group(0) @binding(1) var<storage, read_write> y: array<vec2<u32>>;
            var<workgroup> t: array<Pair, 64>;
            var<workgroup> u: array<u32, 32>;
            @compute @workgroup_size(64)
            fn main(@builtin(local_invocation_index) i: u32) {
                t[i] = Pair(i, vec2(i, p.n));
                u[i & 31u] = p.m;
                workgroupBarrier();
                y[i] = t[63u - i].b + u[i & 31u];
            }";
        let module = from_wgsl(text, ENTRY, RuntimeChecks::None).unwrap();
        assert_eq!(layouts(&module), (vec![4, 8, 16], 6));
        let bare = without_workgroup_layout(&module);
        // What remains are the stride of `y`, and the offsets of the members of `Block` and of the
        // structs around `p` and `y`.
        assert_eq!(layouts(&bare), (vec![8], 4));
        // The module became shorter only by the words of the removed decorations.
        assert_eq!(module.len() - bare.len(), 2 * 4 + 2 * 5);
        assert_eq!(without_workgroup_layout(&bare), bare);
    }

    #[test]
    fn a_module_that_is_cut_off_is_no_panic() {
        for len in 0..8 {
            without_workgroup_layout(&[3 << 16 | OP_DECORATE; 8][..len]);
        }
    }
}
