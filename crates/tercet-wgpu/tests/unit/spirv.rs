//! Constants and bindings of SPIR-V modules.

use tercet_wgpu::internals::{
    BINDING, DECORATE, SPEC_CONSTANT, SPEC_ID, renumber_bindings, specialized,
};

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
