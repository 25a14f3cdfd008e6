//! SPIR-V kernels. wgpu passes them to Vulkan unchanged and without specialization constants, so
//! the values are written into the module.

/// The instruction `OpSpecConstant`.
pub const SPEC_CONSTANT: u32 = 50;
/// The instruction `OpDecorate`.
pub const DECORATE: u32 = 71;
/// The decoration `SpecId`.
pub const SPEC_ID: u32 = 1;
/// The decoration `Binding`.
pub const BINDING: u32 = 33;
/// The number of header words before the first instruction.
const HEADER: usize = 5;

/// The module with `values` as the defaults of its specialization constants 0, 1, ..., each 32 bits
/// wide.
///
/// # Errors
/// The defect of the module.
pub fn specialized(mut module: Vec<u32>, values: &[u32]) -> Result<Vec<u32>, String> {
    let places = instructions(&module)?;
    let decorated = places.iter().filter_map(|&at| match module[at..] {
        [head, target, SPEC_ID, id, ..] if head & 0xffff == DECORATE => Some((target, id)),
        _ => None,
    });
    let ids: std::collections::HashMap<u32, u32> = decorated.collect();
    let mut written = vec![false; values.len()];
    for at in places {
        let [head, _, result, _, ..] = module[at..] else {
            continue;
        };
        let Some(&id) = ids.get(&result).filter(|_| head & 0xffff == SPEC_CONSTANT) else {
            continue;
        };
        let Some(value) = values.get(id as usize) else {
            return Err(format!("specialization constant {id} has no value"));
        };
        module[at + 3] = *value;
        written[id as usize] = true;
    }
    match written.iter().position(|done| !done) {
        None => Ok(module),
        Some(id) => Err(format!("specialization constant {id} does not exist")),
    }
}

/// The module with each entry of `bindings` replaced by its index. wgpu numbers the bindings of a
/// layout from zero, but kernels without a parameter block start at one.
///
/// # Errors
/// The defect of the module.
pub fn renumber_bindings(mut module: Vec<u32>, bindings: &[u32]) -> Result<Vec<u32>, String> {
    for at in instructions(&module)? {
        let [head, _, BINDING, binding, ..] = module[at..] else {
            continue;
        };
        if head & 0xffff == DECORATE {
            let place = bindings.iter().position(|b| *b == binding);
            module[at + 3] = place.ok_or(format!("unexpected binding {binding}"))? as u32;
        }
    }
    Ok(module)
}

/// The word offsets of a module's instructions.
fn instructions(module: &[u32]) -> Result<Vec<usize>, String> {
    let mut places = Vec::new();
    let mut at = HEADER;
    while let Some(head) = module.get(at) {
        let words = (head >> 16) as usize;
        if words == 0 || at + words > module.len() {
            return Err(format!("truncated instruction at word {at}"));
        }
        places.push(at);
        at += words;
    }
    Ok(places)
}
