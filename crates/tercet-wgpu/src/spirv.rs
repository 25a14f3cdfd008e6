//! SPIR-V kernels. wgpu passes them to Vulkan unchanged and without specialization constants, so
//! the values are written into the module.

const SPEC_CONSTANT: u32 = 50;
const DECORATE: u32 = 71;
const SPEC_ID: u32 = 1;
const BINDING: u32 = 33;
/// The number of header words before the first instruction.
const HEADER: usize = 5;

/// The module with `values` as the defaults of its specialization constants 0, 1, ..., each 32 bits
/// wide.
///
/// # Errors
/// The defect of the module.
pub(crate) fn specialized(mut module: Vec<u32>, values: &[u32]) -> Result<Vec<u32>, String> {
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
pub(crate) fn renumber_bindings(
    mut module: Vec<u32>,
    bindings: &[u32],
) -> Result<Vec<u32>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with two constants of type 1: result id 2 has SpecId 1, result id 3 has SpecId 0.
    fn module() -> Vec<u32> {
        let mut m = vec![0x0723_0203, 0x10500, 0, 4, 0];
        m.extend([4 << 16 | DECORATE, 2, SPEC_ID, 1]);
        m.extend([4 << 16 | DECORATE, 3, SPEC_ID, 0]);
        m.extend([4 << 16 | SPEC_CONSTANT, 1, 2, 77]);
        m.extend([4 << 16 | SPEC_CONSTANT, 1, 3, 78]);
        m
    }

    #[test]
    fn constants_get_their_values() {
        let made = specialized(module(), &[5, 6]).unwrap();
        assert_eq!(made[16], 6);
        assert_eq!(made[20], 5);
        assert_eq!(made[..13], module()[..13]);
    }

    #[test]
    fn bindings_are_numbered_by_their_places() {
        let mut m = module();
        m.extend([4 << 16 | DECORATE, 5, BINDING, 1]);
        m.extend([4 << 16 | DECORATE, 6, BINDING, 2]);
        let made = renumber_bindings(m.clone(), &[1, 2]).unwrap();
        let mut wanted = m.clone();
        (wanted[24], wanted[28]) = (0, 1);
        assert_eq!(made, wanted);
        let e = renumber_bindings(m, &[0, 1]).unwrap_err();
        assert_eq!(e, "unexpected binding 2");
    }

    #[test]
    fn other_modules_are_refused() {
        let e = specialized(module(), &[5]).unwrap_err();
        assert_eq!(e, "specialization constant 1 has no value");
        let e = specialized(module(), &[5, 6, 7]).unwrap_err();
        assert_eq!(e, "specialization constant 2 does not exist");
        let mut cut = module();
        cut.pop();
        let e = specialized(cut, &[5, 6]).unwrap_err();
        assert_eq!(e, "truncated instruction at word 17");
    }
}
