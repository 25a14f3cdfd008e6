//! Tests of the description of a build, and of names in traces.

use tercet::BUILD;
use tercet::internals::escaped;

#[test]
fn a_build_names_its_compiler() {
    assert!(BUILD.compiler.starts_with("rustc "), "{BUILD}");
    assert!(BUILD.target.contains(std::env::consts::ARCH), "{BUILD}");
    assert!(["0", "1", "2", "3", "s", "z"].contains(&BUILD.opt_level));
    let text = BUILD.to_string();
    for part in [BUILD.version, BUILD.compiler, BUILD.target, BUILD.profile] {
        assert!(text.contains(part), "{BUILD}");
    }
}

#[test]
fn names_are_json_strings() {
    assert_eq!(escaped("a\"b\\c\n"), "a\\\"b\\\\c\\u000a");
}
