//! The self-test of the compiler.

#[test]
fn the_compiler_of_this_build_keeps_the_meaning() {
    assert_eq!(tercet_ir::compiler_trial(), Ok(()));
}
