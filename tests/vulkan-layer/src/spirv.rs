//! Shader modules: hash, capabilities, workgroup size, and matrices that multiply wrong.

use std::collections::HashMap;

/// Words before the first instruction.
const HEADER_WORDS: usize = 5;

const OP_NOP: u32 = 0;
const OP_EXECUTION_MODE: u16 = 16;
const OP_CAPABILITY: u16 = 17;
const OP_CONSTANT: u16 = 43;
const OP_CONSTANT_COMPOSITE: u16 = 44;
const OP_SPEC_CONSTANT: u16 = 50;
const OP_SPEC_CONSTANT_COMPOSITE: u16 = 51;
const OP_DECORATE: u16 = 71;
const OP_COPY_OBJECT: u32 = 83;
const OP_EXECUTION_MODE_ID: u16 = 331;
const OP_COOPERATIVE_MATRIX_MUL_ADD: u16 = 4459;

const MODE_LOCAL_SIZE: u32 = 17;
const MODE_LOCAL_SIZE_ID: u32 = 38;
const DECORATION_SPEC_ID: u32 = 1;
const DECORATION_BUILT_IN: u32 = 11;
const BUILT_IN_WORKGROUP_SIZE: u32 = 25;

/// FNV-1a over the words of a module.
pub(crate) fn hash(words: &[u32]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The instructions of a module: position, operation, and operands.
fn instructions(words: &[u32]) -> impl Iterator<Item = (usize, u16, &[u32])> {
    let mut at = HEADER_WORDS.min(words.len());
    std::iter::from_fn(move || {
        let first = *words.get(at)?;
        let count = (first >> 16) as usize;
        let operands = words.get(at + 1..at + count.max(1))?;
        let found = (at, first as u16, operands);
        at += count.max(1);
        Some(found)
    })
}

/// The numbers of the capabilities that a module declares.
pub(crate) fn capabilities(words: &[u32]) -> Vec<u32> {
    let all = instructions(words).filter(|(_, op, _)| *op == OP_CAPABILITY);
    all.filter_map(|(.., operands)| operands.first().copied())
        .collect()
}

/// The workgroup size of a module as constants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkgroupSize([SizeConstant; 3]);

/// A constant, with its number if it is a specialization constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SizeConstant {
    value: u32,
    spec_id: Option<u32>,
}

impl WorkgroupSize {
    /// The invocations of a workgroup with these specialization constants.
    pub(crate) fn invocations(&self, constants: &HashMap<u32, u32>) -> u64 {
        let of = |size: &SizeConstant| {
            let given = size.spec_id.and_then(|id| constants.get(&id));
            u64::from(*given.unwrap_or(&size.value))
        };
        self.0.iter().map(of).product()
    }
}

/// The workgroup size of a module; `None` if it declares none.
pub(crate) fn workgroup_size(words: &[u32]) -> Option<WorkgroupSize> {
    let mut spec_ids = HashMap::new();
    let mut constants = HashMap::new();
    let mut composites = HashMap::new();
    let (mut literal, mut ids, mut built_in) = (None, None, None);
    for (_, op, operands) in instructions(words) {
        match (op, operands) {
            (OP_EXECUTION_MODE, [_, MODE_LOCAL_SIZE, x, y, z]) => literal = Some([*x, *y, *z]),
            (OP_EXECUTION_MODE_ID, [_, MODE_LOCAL_SIZE_ID, x, y, z]) => ids = Some([*x, *y, *z]),
            (OP_DECORATE, [id, DECORATION_SPEC_ID, number]) => {
                spec_ids.insert(*id, *number);
            }
            (OP_DECORATE, [id, DECORATION_BUILT_IN, BUILT_IN_WORKGROUP_SIZE]) => {
                built_in = Some(*id);
            }
            (OP_CONSTANT | OP_SPEC_CONSTANT, [_, id, value, ..]) => {
                constants.insert(*id, *value);
            }
            (OP_CONSTANT_COMPOSITE | OP_SPEC_CONSTANT_COMPOSITE, [_, id, x, y, z]) => {
                composites.insert(*id, [*x, *y, *z]);
            }
            _ => {}
        }
    }
    let sized = |id: u32| SizeConstant {
        value: constants.get(&id).copied().unwrap_or(1),
        spec_id: spec_ids.get(&id).copied(),
    };
    // The decorated constant goes before the execution mode.
    let ids = built_in.and_then(|id| composites.get(&id).copied()).or(ids);
    let fixed = |value| SizeConstant {
        value,
        spec_id: None,
    };
    match (ids, literal) {
        (Some(ids), _) => Some(WorkgroupSize(ids.map(sized))),
        (None, Some(literal)) => Some(WorkgroupSize(literal.map(fixed))),
        (None, None) => None,
    }
}

/// The module with matrix multiplications that return their accumulator. `None` if it has none.
pub(crate) fn spoiled(words: &[u32]) -> Option<Vec<u32>> {
    let mut changed = words.to_vec();
    let products = instructions(words).filter(|(_, op, _)| *op == OP_COOPERATIVE_MATRIX_MUL_ADD);
    let mut found = false;
    for (at, _, operands) in products {
        let [ty, result, _, _, accumulator, ..] = *operands else {
            continue;
        };
        let copy = [4 << 16 | OP_COPY_OBJECT, ty, result, accumulator];
        changed[at..at + 4].copy_from_slice(&copy);
        // An instruction without operands has one word.
        changed[at + 4..=at + operands.len()].fill(1 << 16 | OP_NOP);
        found = true;
    }
    found.then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [u32; HEADER_WORDS] = [0x0723_0203, 0x0001_0600, 0, 100, 0];

    fn module(instructions: &[&[u32]]) -> Vec<u32> {
        let mut words = HEADER.to_vec();
        for i in instructions {
            words.push((i.len() as u32) << 16 | i[0]);
            words.extend(&i[1..]);
        }
        words
    }

    #[test]
    fn a_spoiled_module_copies_its_accumulators() {
        let product = [u32::from(OP_COOPERATIVE_MATRIX_MUL_ADD), 1, 2, 3, 4, 5, 8];
        let words = module(&[&[17, 6022], &product]);
        let copied = module(&[&[17, 6022], &[83, 1, 2, 5], &[0], &[0], &[0]]);
        assert_eq!(spoiled(&words), Some(copied));
        assert_eq!(spoiled(&module(&[&[17, 1]])), None);
        assert_eq!(capabilities(&words), [6022]);
        assert_ne!(hash(&words), hash(&module(&[&[17, 1]])));
    }

    #[test]
    fn workgroup_sizes_follow_specialization_constants() {
        let literal = module(&[&[16, 1, MODE_LOCAL_SIZE, 8, 4, 1]]);
        let none = HashMap::new();
        let size = workgroup_size(&literal).expect("a size");
        assert_eq!(size.invocations(&none), 32);
        let words = module(&[
            &[16, 1, MODE_LOCAL_SIZE, 1, 1, 1],
            &[71, 5, DECORATION_SPEC_ID, 7],
            &[71, 9, DECORATION_BUILT_IN, BUILT_IN_WORKGROUP_SIZE],
            &[50, 2, 5, 64],
            &[43, 2, 6, 2],
            &[51, 3, 9, 5, 6, 6],
        ]);
        let size = workgroup_size(&words).expect("a size");
        assert_eq!(size.invocations(&none), 256);
        assert_eq!(size.invocations(&HashMap::from([(7, 512)])), 2048);
        assert_eq!(workgroup_size(&module(&[&[17, 1]])), None);
    }
}
